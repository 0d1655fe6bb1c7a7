"""Files of a hub's model cannot run code, open the server or call others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.engine_options import OPTIONS
from dragoman.config.option import Option
from dragoman.config.resolve import Config, resolve
from dragoman.config.server_options import PER_MODEL, ServerSettings
from tests.support.tables import table

CODE = "raise SystemExit('it ran')"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A model in the hub's cache."""
    return cached(tmp_path)


def cached(directory: Path) -> Path:
    return model(directory / "cache" / "models--org--name" / "snapshots" / ("0" * 40))


def model(directory: Path, *lines: str) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({}), encoding="utf-8")
    (directory / "model.py").write_text(CODE, encoding="utf-8")
    write(directory, *lines)
    return directory


def write(directory: Path, *lines: str) -> None:
    (directory / "serving.properties").write_text("\n".join(lines), encoding="utf-8")


def configured(directory: Path, *words: str) -> Config:
    return resolve(read_arguments([str(directory), *words]).givens, {}, directory)


def test_code_in_a_model_of_the_hub_is_not_run(snapshot: Path) -> None:
    config = configured(snapshot)
    assert not config.clients.hooks
    assert f"{snapshot}/model.py: not run, since it came with a model of the hub" in "\n".join(config.notices)


def test_the_operator_can_allow_code_of_a_hubs_model(snapshot: Path) -> None:
    assert configured(snapshot, "--hooks").clients.hooks
    assert configured(snapshot, "--entry-point", "model.py").clients.hooks


def test_the_operators_directory_is_trusted(tmp_path: Path) -> None:
    config = configured(model(tmp_path / "mine", "option.engine=mine:factory", "port=9"))
    assert config.clients.hooks
    assert (config.engine.engine, config.server.port) == ("mine:factory", 9)


def test_the_operators_code_for_a_model_of_the_hub_runs(tmp_path: Path, snapshot: Path) -> None:
    directory = model(tmp_path / "mine", f"option.model_id={snapshot}")
    (directory / "config.json").unlink()
    config = configured(directory)
    assert config.model_dir == snapshot
    assert config.clients.hooks
    (directory / "model.py").unlink()
    assert not configured(directory).clients.hooks


@table(
    "line",
    [
        "option.engine=evil:factory", "option.entryPoint=model.py", "option.enable_hooks=true", "option.handler=run",
        "host=0.0.0.0", "inference_address=http://0.0.0.0:80", "cors_allowed_origin=*", "open_scopes=management",
        "api_key_file=keys", "log_prompts=true", "option.allow_image_hosts=*", "option.upstream=http://evil.example",
        "option.chat_template=/etc/passwd", "option.chat_template=../other", "option.draft_model=~/model",
        "option.lora=a=/elsewhere", "tls_cert=x.pem", "option.trust_remote_code=true", "option.worker_cls=evil.Worker",
    ],
)  # fmt: skip
def test_a_hubs_model_sets_only_options_about_itself(tmp_path: Path, line: str) -> None:
    snapshot = cached(tmp_path)
    plain = configured(snapshot)
    write(snapshot, line, "option.max_model_len=77")
    config = configured(snapshot)
    assert config.model.max_model_len == 77
    assert [one for one in config.notices if one not in plain.notices] == [
        f"{line.partition('=')[0]} ({snapshot}/serving.properties line 1): no effect in a model of the hub; only the "
        "operator can set it"
    ]
    for group in ("server", "engine", "clients", "upstream", "pictures", "speculation", "adapters"):
        assert getattr(config, group) == getattr(plain, group)


@table("option", [one for one in OPTIONS if one.group is ServerSettings and one.key], ids=lambda one: one.name)
def test_only_the_operator_sets_options_of_the_whole_server(snapshot: Path, option: Option) -> None:
    """Holds for every new option, too."""
    write(snapshot, f"{option.key}=1")
    told = f"{option.key} ({snapshot}/serving.properties line 1): no effect in a model of the hub"
    assert any(line.startswith(told) for line in configured(snapshot).notices) is (option.name not in PER_MODEL)
