"""docs/testing.md tells the clients that `make test-clients` runs, with the versions that are pinned for it.

Their tests ask for nothing that those environments lack.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.support.tables import table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "testing.md"
CLIENTS = ROOT / "tests" / "clients"
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<version>\S+) \| (?P<environment>python|litellm|npm) \|", re.MULTILINE)
BESIDES = {"zod"}  # packages that others need beside them


def pinned(environment: str) -> dict[str, str]:
    """The clients of an environment and their versions."""
    folder = CLIENTS / environment
    if environment == "npm":
        packages: dict[str, str] = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
        return {name: version for name, version in packages.items() if name not in BESIDES}
    requirements = (folder / "requirements.txt").read_text(encoding="utf-8")
    clients = re.split(r"^#.*\n", requirements, flags=re.MULTILINE)[
        1
    ]  # what runs the tests stands below a comment of its own
    names = [re.split(r"[\[ ]", line)[0] for line in clients.splitlines()]
    versions = dict(
        re.findall(r"^([^#=]+)==(\S+)$", (folder / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    return {name: versions[name] for name in names}


def all_pinned() -> dict[tuple[str, str], str]:
    """The version of every client of every environment."""
    folders = ("python", "litellm", "npm")
    return {(folder, name): version for folder in folders for name, version in pinned(folder).items()}


def test_the_page_tells_every_client_with_its_version(update_golden: bool) -> None:
    known = all_pinned()
    text = PAGE.read_text(encoding="utf-8")
    if update_golden:
        for (folder, name), version in known.items():
            row = re.compile(rf"^(\| `{re.escape(name)}` \| )\S+( \| {folder} \|)", re.MULTILINE)
            text = row.sub(rf"\g<1>{version}\g<2>", text)
        PAGE.write_text(text, encoding="utf-8")
    told = {(row["environment"], row["name"]): row["version"] for row in ROW.finditer(text)}
    assert told == known


def test_npm_installs_the_versions_that_its_package_file_names() -> None:
    lock = json.loads((CLIENTS / "npm" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    packages = json.loads((CLIENTS / "npm" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    assert {name: lock[f"node_modules/{name}"]["version"] for name in packages} == packages


def lacking(environment: str) -> list[str]:
    """The modules that are here, and not in an environment of clients."""

    def plain(name: str) -> str:
        return re.sub("[-_.]+", "-", name).lower()

    constraints = (CLIENTS / environment / "constraints.txt").read_text(encoding="utf-8")
    there = {plain(name) for name in re.findall(r"^([^#=]+)==", constraints, re.MULTILINE)}
    modules = metadata.packages_distributions().items()
    return ["dragoman", *(module for module, names in modules if not there & {plain(name) for name in names})]


@table("environment", ["python", "litellm"])
def test_tests_of_clients_need_nothing_that_their_environment_lacks(environment: str) -> None:
    missing = f"import sys; sys.modules.update(dict.fromkeys({lacking(environment)}))"
    command = [sys.executable, "-c", f"{missing}; import tests.conftest, tests.clients.conftest"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
