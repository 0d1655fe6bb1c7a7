"""The files for containers, Kubernetes and systemd: what linters say of them, and that they fit the program.

Linters are asked where they are: hadolint and kubernetes-validate come with the dev extra on Linux, systemd-analyze
with systemd. Kubernetes has no schemas of what operators add: operator_kinds.json says, in our words, what the custom
resource definition of prometheus-operator v1 and kustomize allow in the fields that are of use here, and nothing else.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.arguments import read_arguments
from tests.support.tables import table

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
UNIT = ROOT / "deploy" / "systemd" / "dragoman.service"
OPERATORS: dict[str, Any] = json.loads((Path(__file__).parent / "operator_kinds.json").read_text())
"""Kind -> schema, where Kubernetes itself has none."""
MOST_EXPOSED = 2.0  # of 10, by systemd's own count


def tool(name: str) -> str:
    """A program of this environment or of the machine; the test is skipped without it."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    yaml = pytest.importorskip("yaml")
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            yield path, document


def instructions() -> list[str]:
    """Those of the Dockerfile, each on one line."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_built_from_files_that_are_there() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [word for line in instructions() if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name


def test_the_image_runs_as_nobody_special_and_says_when_it_is_healthy() -> None:
    lines = instructions()
    (user,) = [line.split()[1] for line in lines if line.startswith("USER")]
    assert int(user) > 1000
    assert any(line.startswith("HEALTHCHECK") and "/ping" in line for line in lines)
    assert 'ENTRYPOINT ["dragoman"]' in lines, "SageMaker runs the image with the word serve"
    label = next(line for line in lines if line.startswith("LABEL"))
    assert 'com.amazonaws.sagemaker.capabilities.accept-bind-to-port="true"' in label


def test_the_images_python_is_one_that_is_supported() -> None:
    (default,) = [line.partition("=")[2] for line in instructions() if line.startswith("ARG PYTHON=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {default}" in project["classifiers"]


@table("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_knows_every_field_of_the_manifests(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for place, document in documents():
        if place == path and document["kind"] not in OPERATORS:
            validate.validate(document, validate.latest_version(), strict=True)


def problems(document: dict[str, Any]) -> list[str]:
    """What is wrong with a resource of a kind that an operator adds."""
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(OPERATORS[document["kind"]])
    return [error.message for error in checker.iter_errors(document)]


def of_kind(kind: str) -> dict[str, Any]:
    """The one manifest of that kind."""
    (found,) = [document for _, document in documents() if document["kind"] == kind]
    return found


@pytest.mark.parametrize("kind", OPERATORS)
def test_operators_know_every_field_of_the_manifests(kind: str) -> None:
    assert problems(of_kind(kind)) == []


@table(
    ("place", "value"),
    [
        (("apiVersion",), "monitoring.coreos.com/v2"),
        (("spec", "selector"), None),
        (("spec", "selector", "matchLables"), {}),
        (("spec", "endpoints", 0, "interval"), "15 s"),
        (("spec", "endpoints", 0, "interval"), 15),
        (("spec", "endpoints", 0, "port"), 8080),
        (("spec", "endpoints", 0, "authorisation"), {}),
        (("spec", "endpoints", 0, "authorization", "credentials", "key"), None),
    ],
    ids=str,
)
def test_a_field_that_is_wrong_or_has_another_name_is_found(place: tuple[str | int, ...], value: object) -> None:
    document: Any = copy.deepcopy(of_kind("ServiceMonitor"))
    part = document
    for step in place[:-1]:
        part = part[step]
    if value is None:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    assert len(problems(document)) == 1


def test_the_kustomization_names_every_manifest() -> None:
    named = next(document for _, document in documents() if document["kind"] == "Kustomization")["resources"]
    assert sorted(named) == [path.name for path in MANIFESTS if path.name != "kustomization.yaml"]


def test_the_pod_is_restricted_and_starts_a_command_line_that_the_program_takes() -> None:
    deployment = next(document for _, document in documents() if document["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    command, *words = container["args"]
    assert command == "serve"
    read_arguments(words)
    waits = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    drain_s = float(waits["--drain-delay"]) + float(waits["--drain-timeout"])
    assert pod["terminationGracePeriodSeconds"] > drain_s, "or what runs is killed"


def test_the_service_and_its_monitor_find_the_pods() -> None:
    by_kind = {document["kind"]: document for _, document in documents()}
    labels = by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"] == by_kind["Service"]["metadata"]["labels"]
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"] for port in by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in by_kind["Service"]["spec"]["ports"]} <= ports


def test_the_unit_starts_a_command_line_that_the_program_takes() -> None:
    (command,) = re.findall(r"^ExecStart=\S+ serve (.+)$", UNIT.read_text(), re.MULTILINE)
    read_arguments(command.split())
    (drain_s,) = re.findall(r"--drain-timeout (\d+)", command)
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(stop_s) > int(drain_s), "or what runs is killed"


def test_systemd_finds_the_unit_well_closed() -> None:
    analyze = tool("systemd-analyze")
    command = [analyze, "security", "--offline=yes", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze knows no --offline")
    (exposure,) = re.findall(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure) <= MOST_EXPOSED


def test_systemd_can_read_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/dragoman/bin/dragoman", "/bin/true"))
    command = [tool("systemd-analyze"), "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
