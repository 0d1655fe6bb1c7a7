"""config.properties: its place, its precedence, and its mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.config.combinations import Origin
from dragoman.config.resolve import Config
from tests.config.resolving import problems_of, resolved
from tests.support.tables import table


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A MODEL_SERVER_HOME with two models in `models` and a directory `conf`; the working directory is another one."""
    for name in ("home/models/one", "home/models/two", "home/conf", "elsewhere", "demo"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "home"


def given(home: Path, **sources: Any) -> tuple[Config, ...]:
    return resolved(home, **sources).models


def problems(home: Path, **sources: Any) -> list[str]:
    return problems_of(home, lambda: resolved(home, **sources))


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


HOME = {"MODEL_SERVER_HOME": "{}"}


# --- where it is ------------------------------------------------------------------------------------------------------


@table(
    ("line", "env"),
    [
        ("-f {}/my.properties", {}),
        ("--config-file {}/my.properties", {}),
        ("--config-file=file://{}/my.properties", {}),
        ("-f={}/my.properties", {}),
        ("", {"SERVING_CONFIG_FILE": "{}/my.properties"}),
    ],
)
def test_the_operator_names_the_file(line: str, env: Mapping[str, str], home: Path) -> None:
    write(home / "my.properties", "\njob_queue_size=7\n")
    [config] = given(home, line=line, env=env)
    assert config.server.job_queue_size == 7
    assert config.origins["job_queue_size"] == Origin(f"{home}/my.properties line 2", "job_queue_size")
    assert config.server.config_file == home / "my.properties"


def test_the_file_is_found_in_the_home_first_in_conf(home: Path) -> None:
    write(home / "config.properties", "port=1")
    [config] = given(home, env=HOME)
    assert config.server.port == 1
    assert config.server.config_file == home / "config.properties"
    assert config.origins["config_file"] == Origin("environment", "MODEL_SERVER_HOME")
    write(home / "conf" / "config.properties", "port=2")
    assert given(home, env=HOME)[0].server.port == 2
    write(home / "my.properties", "port=3")
    assert given(home, env=HOME, line="-f {}/my.properties")[0].server.port == 3


def test_a_home_without_the_file_and_a_working_directory_with_one_give_nothing(home: Path) -> None:
    write(Path("config.properties"), "port=1")
    [config] = given(home, env=HOME)
    assert (config.server.port, config.server.config_file) == (8080, None)


# --- how far it counts ------------------------------------------------------------------------------------------------


def test_every_other_source_precedes_the_file(home: Path) -> None:
    write(home / "conf" / "config.properties", "job_queue_size=1\npredict_timeout=2\nmax_request_size=3\nport=4\n")
    write(home / "models" / "one" / "serving.properties", "job_queue_size=10\n")
    env = {**HOME, "SERVING_PREDICT_TIMEOUT": "20", "SAGEMAKER_MAX_REQUEST_SIZE": "30"}
    [config] = given(home, env=env, line="{}/models/one")
    server = config.server
    assert (server.job_queue_size, server.predict_timeout, server.max_request_size, server.port) == (10, 20.0, 30, 4)


def test_options_in_the_servers_file_act(home: Path) -> None:
    write(
        home / "my.properties",
        "inference_address=http://0.0.0.0:9000\nmanagement_address=http://0.0.0.0:9000\nmodel_store={}/models\n"
        "load_models=ALL\njob_queue_size=5\npredict_timeout=60\nmax_request_size=1000\nbatch_size=2\n"
        "cors_allowed_origin=*\ncors_allowed_methods=POST\ncors_allowed_headers=x\n".replace("{}", str(home)),
    )
    one, two = given(home, line="-f {}/my.properties")
    assert (one.name, two.name) == ("one", "two")
    for config in (one, two):
        server = config.server
        assert (server.host, server.port, server.job_queue_size, server.predict_timeout) == ("0.0.0.0", 9000, 5, 60.0)
        assert (server.max_request_size, config.clients.rolling_batch) == (1000, "disable")
        assert (server.cors_allowed_origin, server.cors_allowed_methods, server.cors_allowed_headers) == (
            "*",
            "POST",
            "x",
        )
        assert config.notices == ()


def test_options_of_models_in_the_file_are_defaults_for_all(home: Path) -> None:
    write(home / "my.properties", "option.dtype=bf16")
    write(home / "models" / "two" / "serving.properties", "option.dtype=f32")
    one, two = given(home, line="-f {}/my.properties -s {}/models")
    assert (one.model.dtype, two.model.dtype) == ("bf16", "f32")


def test_relative_paths_count_from_the_home_else_from_the_working_directory(home: Path) -> None:
    (home.parent / "elsewhere" / "models" / "three").mkdir(parents=True)
    file = home / "conf" / "config.properties"
    write(file, "model_store=models")
    assert [config.name for config in given(home, env=HOME)] == ["one", "two"]
    assert [config.name for config in given(home, line=f"-f {file}")] == ["three"]
    write(file, "load_models=a::Python=models/two,models/one")
    assert [config.directory for config in given(home, env=HOME)] == [home / "models" / "two", home / "models" / "one"]
    write(file, "option.model_id=models/one")
    assert [config.model_dir for config in given(home, env=HOME)] == [home / "models" / "one"]


def test_a_file_inside_a_models_directory_is_the_servers(home: Path) -> None:
    """Its values are not the model's own, so no notice says that they are in the wrong place."""
    write(home / "models" / "two" / "config.properties", "port=9\nmodel_store={}/models".replace("{}", str(home)))
    one, two = given(home, line="-f {}/models/two/config.properties")
    assert (one.server.port, two.server.port) == (9, 9)
    assert one.notices == two.notices == ()


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_bad_unknown_and_foreign_keys_name_file_and_line(home: Path) -> None:
    write(home / "my.properties", "port=x\njob_que_size=3\nnumber_of_netty_threads=4\n")
    assert problems(home, line="-f {}/my.properties") == [
        "job_que_size=3 (my.properties line 2): unknown option; the nearest known one is job_queue_size",
        "port=x (my.properties line 1): must be an integer from 0 to 65535",
    ]
    write(home / "my.properties", "number_of_netty_threads=4\nkeystore_pass=hush-hush\nconfig_file=other\n")
    [config] = given(home, line="-f {}/my.properties")
    said = [notice.replace(f"{home}/", "").partition(":")[0] for notice in config.notices]
    assert sorted(said) == [
        "config_file=other (my.properties line 3)",
        "keystore_pass=(hidden) (my.properties line 2)",
        "number_of_netty_threads=4 (my.properties line 1)",
    ]


def test_an_https_address_is_refused_and_not_ignored(home: Path) -> None:
    write(home / "my.properties", "inference_address=https://0.0.0.0:8443")
    assert problems(home, line="-f {}/my.properties") == [
        "inference_address=https://0.0.0.0:8443 (my.properties line 1): must be http://HOST:PORT"
    ]


def test_a_file_that_cannot_be_read_stops_the_start(home: Path) -> None:
    [found] = problems(home, line="-f {}/none.properties")
    assert found.startswith("-f=none.properties (command line): must be a readable UTF-8 file: ")
    (home / "conf" / "config.properties").write_bytes(b"port=\xff")
    [found] = problems(home, env=HOME)
    assert found.startswith("conf/config.properties (environment: MODEL_SERVER_HOME): must be a readable UTF-8 file: ")


def test_a_missing_home_stops_the_start(home: Path) -> None:
    assert problems(home, env={"MODEL_SERVER_HOME": "/nowhere"}) == [
        "MODEL_SERVER_HOME=/nowhere (environment): must be a directory on this machine"
    ]


def test_a_models_own_file_cannot_name_the_servers_file(home: Path) -> None:
    write(home / "models" / "one" / "serving.properties", "config_file=x")
    [config] = given(home, line="{}/models/one")
    assert config.notices[0].startswith("config_file=x (")
    assert "for the whole server" in config.notices[0]


def test_options_of_model_py_follow_the_precedence_of_sources(home: Path) -> None:
    write(home / "conf/config.properties", "option.voice=low\noption.pitch=1\noption.speed=slow\n")
    write(home / "models/one/model.py", "")
    write(home / "models/one/serving.properties", "option.voice=high\n")
    (config,) = given(
        home, env={**HOME, "SERVING_LOAD_MODELS": "{}/models/one", "OPTION_PITCH": "2", "OPTION_VOICE": "mid"}
    )
    assert config.own_options == {"voice": "high", "pitch": "2", "speed": "slow"}
