"""What the builder's arguments and the environment become; needs no Ray."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from dragoman.config.resolve import ConfigError, demo_model_dir
from dragoman.ray.arguments import Application, engine_settings, notes, read_application, server_settings


def settings(arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    application = read_application(arguments, {})
    config = application.config()
    return engine_settings(application.scale, config), server_settings(application.scale, config)


def problems(arguments: dict[str, Any], environ: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as failure:
        read_application(arguments, environ or {}).config()
    return failure.value.problems


def test_without_arguments_one_replica_serves_the_demo_model() -> None:
    engine, server = settings({})
    assert engine["name"] == "Engine"
    assert engine["num_replicas"] == 1
    assert engine["max_ongoing_requests"] == 2 * read_application({}, {}).config().engine.max_num_seqs
    assert engine["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 0.0}
    assert server["num_replicas"] == 1
    assert server["max_ongoing_requests"] > 1000
    assert read_application({}, {}).config().model_dir == demo_model_dir()


def test_texts_of_a_command_line_and_values_of_a_file_mean_the_same() -> None:
    as_text = read_application({"num_replicas": "2", "num_cpus": "4", "dtype": "f32", "hooks": "true"}, {})
    as_values = read_application({"num_replicas": 2, "num_cpus": 4, "dtype": "f32", "hooks": True}, {})
    assert as_text == as_values


def test_options_come_from_arguments_then_the_models_file_then_the_environment(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text(
        f"option.model_id={demo_model_dir()}\noption.max_rolling_batch_size=5\noption.dtype=f32\n"
    )
    environ = {"OPTION_DTYPE": "int8", "OPTION_MAX_ROLLING_BATCH_SIZE": "7", "SERVING_JOB_QUEUE_SIZE": "9"}
    config = read_application({"model": str(tmp_path), "dtype": "bf16"}, environ).config()
    assert config.model.dtype == "bf16"
    assert config.engine.max_num_seqs == 5
    assert config.server.job_queue_size == 9


def test_an_application_is_data_and_carries_options_only() -> None:
    application = read_application({"dtype": "f32"}, {"OPTION_DTYPE": "int8", "SECRET_OF_MINE": "x", "PATH": "/bin"})
    assert application.variables == {"OPTION_DTYPE": "int8"}
    assert pickle.loads(pickle.dumps(application)) == application


def test_the_number_of_replicas_follows_the_load_between_its_bounds() -> None:
    engine, _ = settings({"max_replicas": 8, "min_replicas": 0, "max_num_seqs": 16})
    assert "num_replicas" not in engine
    assert engine["autoscaling_config"] == {
        "min_replicas": 0,
        "max_replicas": 8,
        "target_ongoing_requests": 16.0,  # running and waiting: more than that are waiting
    }
    engine, _ = settings({"max_replicas": 8, "target_ongoing_requests": 2.5})
    assert engine["autoscaling_config"]["target_ongoing_requests"] == 2.5


def test_a_replica_computes_on_the_cores_that_it_asked_for() -> None:
    assert read_application({"num_cpus": 2.5}, {}).config().model.threads == 3
    assert read_application({"num_cpus": 4, "threads": 2}, {}).config().model.threads == 2
    assert read_application({}, {}).config().model.threads is None
    engine, server = settings({"num_cpus": 4, "num_gpus": 1, "server_num_cpus": 1, "num_servers": 3})
    assert engine["ray_actor_options"] == {"num_cpus": 4.0, "num_gpus": 1.0}
    assert server["ray_actor_options"] == {"num_cpus": 1.0}
    assert server["num_replicas"] == 3


def test_draining_lasts_as_long_as_everywhere() -> None:
    for one in settings({"drain_timeout": 70}):
        assert one["graceful_shutdown_timeout_s"] == 75.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"num_replicas": 0}, "num_replicas=0: must be a whole number of at least 1"),
        ({"num_replicas": "two"}, "num_replicas=two: must be a whole number of at least 1"),
        ({"num_cpus": "nan"}, "num_cpus=nan: must be a number of at least 0"),
        ({"min_replicas": 1}, "min_replicas=1: needs max_replicas"),
        ({"num_replicas": 1, "max_replicas": 2}, "num_replicas=1: contradicts max_replicas; give one of them"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas=3: must be at most max_replicas (2)"),
        ({"prefix_tokens": 8}, "prefix_tokens=8: must be a whole number of at least 32"),
        ({"dtype": {"a": 1}}, "dtype={'a': 1}: must be a text, a number, true, false, or a list of them"),
    ],
)
def test_arguments_that_are_not_allowed_are_named(arguments: dict[str, Any], problem: str) -> None:
    assert problem in problems(arguments)


def test_unknown_options_are_told_as_everywhere() -> None:
    assert "--max-num-seqs" in problems({"max_num_seq": 3})[0]
    assert "OPTION_DTYP" in problems({}, {"OPTION_DTYP": "f32"})[0]


def test_several_models_are_refused_by_name(tmp_path: Path) -> None:
    found = problems({"model_store": str(tmp_path.parent), "load_models": "NONE"})
    assert any("run one application per model" in one for one in found)


def test_downloads_for_clients_are_refused_by_name() -> None:
    found = problems({"allow_pull": True})
    assert found == ("--allow-pull=true (command line): only `dragoman serve` downloads models for its clients",)


def test_a_handler_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return None\n")
    assert problems({"model": str(tmp_path)}) == (
        f"{tmp_path}: has no weights; only `dragoman serve` can serve a handler alone",
    )


def test_addresses_have_no_effect_and_it_is_told() -> None:
    config = read_application({"port": 9000}, {}).config()
    assert any(note.startswith("--port=9000 (command line): no effect on Ray Serve") for note in notes(config))
    assert notes(Application().config()) == []


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("drain_delay", 5, "sends no more calls"),
        ("on_engine_failure", "exit", "replaces a replica"),
        ("max_engine_restarts", 7, "replaces a replica"),
        ("engine_restart_window", 60, "replaces a replica"),
    ],
)
def test_what_serve_does_itself_has_no_effect_and_it_is_told(name: str, value: object, why: str) -> None:
    (note,) = notes(read_application({name: value}, {}).config())
    assert note.startswith(f"--{name.replace('_', '-')}={value}")
    assert "(command line): no effect on Ray Serve" in note
    assert why in note


def test_files_for_tls_have_no_effect_and_it_is_told(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.pem" for name in ("tls_cert", "tls_key", "tls_client_ca")}
    for file in files.values():
        file.touch()
    told = notes(read_application({name: str(file) for name, file in files.items()}, {}).config())
    assert [note.partition("=")[0] for note in told] == ["--tls-cert", "--tls-key", "--tls-client-ca"]
    assert all("no effect on Ray Serve" in note for note in told)


def test_where_the_environment_sets_what_has_no_effect_it_is_told_too() -> None:
    (note,) = notes(read_application({}, {"SERVING_DRAIN_DELAY": "5"}).config())
    assert "SERVING_DRAIN_DELAY" in note
