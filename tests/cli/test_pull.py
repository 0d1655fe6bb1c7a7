"""`dragoman pull` and `dragoman models`, on a fake hub, in this process."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dragoman.cli.commands import COMMANDS
from dragoman.cli.subcommand import Console, command_at, run_command
from dragoman.config.resolve import ConfigError, resolve
from dragoman.config.sources import Given
from dragoman.hub import download
from tests.support.fake_hub import FakeHub, fake_hub

FILES = {
    "config.json": b'{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(5000),
}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "RETRY_S", 0.0)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.add("org/name", FILES)
        yield running


@pytest.fixture
def environ(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "home")}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(name: str, environ: Mapping[str, str], words: tuple[str, ...]) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    command = command_at(COMMANDS[name])
    assert command is not None
    return run_command(command, words, Console(environ, out, errors)), out.getvalue(), errors.getvalue()


def run_pull(environ: Mapping[str, str], *words: str) -> tuple[int, str, str]:
    return run("pull", environ, words)


def run_models(environ: Mapping[str, str], *words: str, stdin: io.StringIO | None = None) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdin", stdin or io.StringIO())
        return run("models", environ, words)


def listed(environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
    _, out, _ = run_models(environ, "--json")
    return {one["name"]: one for one in json.loads(out) if one["kind"] != "bundled"}


def test_pull_prints_the_directory_and_one_line_of_progress(environ: dict[str, str], tmp_path: Path) -> None:
    code, out, errors = run_pull(environ, "org/name")
    assert code == 0
    assert Path(out.strip()).parents[1] == tmp_path / "hf" / "hub" / "models--org--name"
    assert errors.startswith("  downloading org/name (3 files, 5.1 kB): ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "pull: needs one model"),
        (("org/a", "org/b"), "got org/a org/b"),
        (("./model",), "./model (command line): must be a name on the hub"),
        (("org/name", "--colour"), "--colour (command line): unknown option"),
        (("org/name", "--gguf"), "--gguf (command line): must be followed by a value"),
    ],
)
def test_malformed_words_of_pull_are_named(words: tuple[str, ...], told: str, environ: dict[str, str]) -> None:
    code, out, errors = run_pull(environ, *words)
    assert (code, out) == (2, "")
    assert errors.startswith("dragoman: ")
    assert told in errors


def test_a_failed_pull_gives_one_line(environ: dict[str, str]) -> None:
    code, out, errors = run_pull(environ, "org/name", "--gguf", "Q4_0")
    assert (code, out) == (1, "")
    assert (
        errors == "dragoman: org/name: no GGUF file of type Q4_0; it holds no GGUF file that names its quantisation\n"
    )


def test_models_lists_the_models_of_this_machine(hub: FakeHub, environ: dict[str, str], tmp_path: Path) -> None:
    hub.add("org/other", {**FILES, "model.safetensors": bytes(9000)})
    hub.breaks["model.safetensors"] = [0] * 90
    run_pull(environ, "org/other")
    hub.breaks.clear()
    _, path, _ = run_pull(environ, "org/name")
    kept = tmp_path / "home" / "dragoman"
    kept.mkdir(parents=True)
    commit = Path(path.strip()).name
    (kept / f"{commit}-0123-4567.blob").write_bytes(bytes(300))  # as versions before named them
    (kept / f"{commit}-int8.tower-89ab-4567.blob").write_bytes(bytes(400))
    for graph in kept.iterdir():
        os.utime(graph, (1e9, 1e9))
    _, out, _ = run_models(environ)
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert "org/name hub llama safetensors, awq 5.1 kB" in rows
    assert "org/other hub llama 73 B incomplete: *.safetensors is missing" in rows
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(1e9))
    assert f"org/name kept graph #0123 300 B used {used}" in rows
    assert f"org/name kept graph int8, tower #89ab 400 B used {used}" in rows
    assert any(row.startswith("demo bundled llama safetensors") for row in rows)


def test_json_has_the_same_models(environ: dict[str, str]) -> None:
    run_pull(environ, "org/name")
    found = listed(environ)["org/name"]
    assert (found["family"], found["format"], found["missing"]) == ("llama", "safetensors, awq", "")
    assert isinstance(found["size"], int)
    assert found["size"] > 5000


def test_rm_removes_a_model_with_its_kept_graphs(environ: dict[str, str], tmp_path: Path) -> None:
    _, path, _ = run_pull(environ, "org/name")
    kept = tmp_path / "home" / "dragoman" / f"{Path(path.strip()).name}-0123-4567.blob"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(300))
    assert run_models(environ, "rm", "org/name", "--yes")[0] == 0
    assert listed(environ) == {}
    assert not kept.exists()
    assert not Path(path.strip()).exists()


@pytest.mark.parametrize(("answer", "is_left"), [("y\n", False), ("\n", True), ("n\n", True)])
def test_rm_asks_on_a_terminal(answer: str, is_left: bool, environ: dict[str, str]) -> None:
    run_pull(environ, "org/name")
    _, _, errors = run_models(environ, "rm", "org/name", stdin=Terminal(answer))
    assert errors.startswith("Remove org/name (")
    assert ("org/name" in listed(environ)) is is_left


def test_rm_without_a_terminal_needs_yes(environ: dict[str, str]) -> None:
    run_pull(environ, "org/name")
    code, _, errors = run_models(environ, "rm", "org/name")
    assert (code, "org/name" in listed(environ)) == (1, True)
    assert errors.endswith("--yes says so\n")


def test_rm_of_a_missing_model_is_refused(environ: dict[str, str]) -> None:
    code, _, errors = run_models(environ, "rm", "org/none", "--yes")
    assert code == 1
    assert errors.startswith("dragoman: org/none: not in the hub's cache")


def test_rm_of_a_broken_download_leaves_nothing(hub: FakeHub, environ: dict[str, str], tmp_path: Path) -> None:
    hub.breaks["config.json"] = [1] * 50
    assert run_pull(environ, "org/name")[0] == 1
    assert listed(environ)["org/name"]["missing"]
    assert run_models(environ, "rm", "org/name", "--yes")[0] == 0
    assert not (tmp_path / "hf" / "hub" / "models--org--name").exists()


def test_rm_kept_removes_graphs_and_archives(environ: dict[str, str], tmp_path: Path) -> None:
    kept = tmp_path / "home" / "dragoman"
    (kept / "archives" / "a-0123").mkdir(parents=True)
    (kept / "a-0123-4567.blob").write_bytes(bytes(300))
    assert sorted(
        str(one["kind"]) for one in json.loads(run_models(environ, "--json")[1]) if one["kind"] != "bundled"
    ) == [
        "kept graph",
        "unpacked archive",
    ]
    assert run_models(environ, "rm", "kept", "--yes")[0] == 0
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("words", [("remove",), ("rm",), ("rm", "a", "b"), ("--yes",), ("rm", "a", "--json")])
def test_malformed_words_of_models_are_named(words: tuple[str, ...], environ: dict[str, str]) -> None:
    assert run_models(environ, *words)[0] == 2


# --- the configuration ---


def config_of(environ: Mapping[str, str], model: str, tmp_path: Path, **more: str) -> object:
    givens = [Given("MODEL_DIR", "option.model_id", model, "command line")]
    givens += [Given(name, f"option.{name}", text, "command line") for name, text in more.items()]
    return resolve(givens, environ, tmp_path)


def test_a_model_of_the_hub_has_both_names(environ: dict[str, str], tmp_path: Path) -> None:
    _, path, _ = run_pull(environ, "org/name")
    config = resolve([Given("MODEL_DIR", "option.model_id", "org/name", "command line")], environ, tmp_path)
    assert (str(config.model_dir), config.model.name) == (path.strip(), ("name", "org/name"))
    assert resolve([], {**environ, "HF_MODEL_ID": "org/name"}, tmp_path).model_dir == config.model_dir


def test_a_directory_precedes_the_hub(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pull(environ, "org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config = resolve([Given("MODEL_DIR", "option.model_id", "org/name", "command line")], environ, tmp_path)
    assert config.model_dir == Path("org/name")


def test_a_properties_file_may_name_a_model_of_the_hub(environ: dict[str, str], tmp_path: Path) -> None:
    _, path, _ = run_pull(environ, "org/name")
    commit = Path(path.strip()).name
    directory = tmp_path / "served"
    directory.mkdir()
    for lines in ("option.model_id=org/name", f"option.model_id=org/name\noption.revision={commit}"):
        (directory / "serving.properties").write_text(lines, encoding="utf-8")
        config = resolve([Given("MODEL_DIR", "option.model_id", str(directory), "command line")], environ, tmp_path)
        assert (config.directory, str(config.model_dir)) == (directory, path.strip())


def test_a_missing_model_is_refused_with_the_pull_command(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MODEL_DIR=org/none \(command line\): .*`dragoman pull org/none` brings it"):
        config_of(environ, "org/none", tmp_path)


def test_a_revision_for_a_directory_is_noted(environ: dict[str, str], tmp_path: Path) -> None:
    config = resolve([Given("revision", "option.revision", "v1", "command line")], environ, tmp_path)
    assert config.notices == (f"revision=v1 (command line): no effect; {tmp_path} is no model of the hub",)
