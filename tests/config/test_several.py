"""The models of one process, each with its own options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.config.entries import ModelList, parse_entry
from dragoman.config.resolve import Config
from tests.config.resolving import problems_of, resolved
from tests.support.tables import table


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with two models, `one` and `two`."""
    for name in ("one", "two"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "demo").mkdir()
    return tmp_path / "models"


def write(directory: Path, text: str) -> None:
    (directory / "serving.properties").write_text(text, encoding="utf-8")


def given(models: Path, **sources: Any) -> tuple[Config, ...]:
    return resolved(models, **sources).models


def problems(models: Path, **sources: Any) -> list[str]:
    return problems_of(models, lambda: resolved(models, **sources))


def names(configs: tuple[Config, ...]) -> list[tuple[str, ...]]:
    return [config.model.name for config in configs]


# --- which models -----------------------------------------------------------------------------------------------------


def test_each_directory_of_a_store_is_a_model_in_alphabetical_order(models: Path) -> None:
    assert names(given(models, env={"SERVING_MODEL_STORE": "{}"})) == [("one",), ("two",)]
    assert names(given(models, line="--model-store {} --load-models ALL")) == [("one",), ("two",)]


def test_a_store_with_files_is_the_model(models: Path) -> None:
    (models / "config.json").write_text("{}", encoding="utf-8")
    [config] = given(models, env={"SERVING_MODEL_STORE": "{}"})
    assert (config.name, config.model_dir) == ("models", models)


def test_hidden_entries_of_a_store_are_ignored(models: Path) -> None:
    (models / ".cache").mkdir()
    (models / ".lock").touch()
    assert names(given(models, env={"SERVING_MODEL_STORE": "{}"})) == [("one",), ("two",)]


def test_listed_models_have_the_names_and_the_order_of_the_list(models: Path) -> None:
    configs = given(models, env={"SERVING_LOAD_MODELS": "b::Python={}/two, a:7={}/one,{}/two/../two"}, line="")
    assert names(configs) == [("b",), ("a",), ("two",)]
    assert [config.version for config in configs] == ["", "7", ""]
    assert configs[0].model_dir == models / "two"


def test_the_flags_of_lmis_command_line_say_the_same(models: Path) -> None:
    assert names(given(models, line="-s {}")) == [("one",), ("two",)]
    assert names(given(models, line="-m b::Python={}/two a={}/one -s {}")) == [("b",), ("a",)]
    assert names(given(models, line="--models [b:1:Python:*]={}/two")) == [("b",)]
    [notice] = given(models, line="-s {} -w {}/workflow.json")[0].notices
    assert notice.endswith("(command line): no effect here; workflows of several models are not run")


def test_a_store_next_to_other_models_serves_later_loads(models: Path) -> None:
    for line, name in (("-m b={}/two -s {}", "b"), ("{}/two -s {}", "two")):
        found = resolved(models, line=line)
        assert names(found.models) == [(name,)]
        assert found.models[0].notices == ()
        assert found.process is found.models[0]
        assert found.store == models


@table("word", ["NONE", "none"])
def test_a_server_can_start_without_a_model(models: Path, word: str) -> None:
    found = resolved(models, line=f"--load-models {word} --model-store {{}} --port 9")
    assert found.models == ()
    assert found.store == models
    assert found.process.server.port == 9
    assert "needs model_store" in problems(models, line=f"--load-models {word}")[0]


def test_the_default_store_serves_no_later_loads(models: Path) -> None:
    assert resolved(models, default_store="models").store is None


def test_the_default_store_counts_without_named_models(models: Path) -> None:
    assert names(given(models, default_store="models")) == [("one",), ("two",)]
    assert names(given(models, default_store="models", line="{}/two")) == [("two",)]
    assert names(given(models, default_store="models", env={"SERVING_LOAD_MODELS": "x={}/one"})) == [("x",)]
    assert names(given(models, default_store="models", env={"SERVING_LOAD_MODELS": "ALL"})) == [("one",), ("two",)]


def test_without_stores_and_lists_one_model_is_served(models: Path) -> None:
    assert names(given(models)) == [("demo",)]
    assert names(given(models, env={"HF_MODEL_ID": "{}/two"})) == [("two",)]


def test_a_directory_on_the_command_line_precedes_the_environments_list(models: Path) -> None:
    [config] = given(models, line="{}/two", env={"SERVING_LOAD_MODELS": "{}/one", "SERVING_MODEL_STORE": "{}"})
    assert config.name == "two"
    assert [notice.partition("=")[0] for notice in config.notices] == ["SERVING_LOAD_MODELS"]


def test_the_environment_can_name_weights_of_a_model_in_the_store(models: Path) -> None:
    (models.parent / "mounted").mkdir()
    write(models.parent / "mounted", "option.max_model_len=64")
    [config] = given(models, default_store="mounted", env={"HF_MODEL_ID": "{}/two"})
    assert (config.name, config.model_dir, config.model.max_model_len) == ("two", models / "two", 64)
    assert config.notices == ()


def test_a_directory_with_weights_keeps_them_with_a_notice(models: Path) -> None:
    configs = given(models, env={"SERVING_MODEL_STORE": "{}", "HF_MODEL_ID": "{}/two"})
    assert [config.model_dir for config in configs] == [models / "one", models / "two"]
    assert "HF_MODEL_ID" in configs[0].notices[0]
    assert "holds its own weights" in configs[0].notices[0]
    assert configs[1].notices == (), "it is where the variable points"


# --- options ----------------------------------------------------------------------------------------------------------


def test_each_model_has_the_options_of_its_file(models: Path) -> None:
    write(models / "one", "option.tgi_compat=true\njob_queue_size=3\npredict_timeout=5")
    write(models / "two", "option.max_rolling_batch_size=2\noption.served_model_name=second,zwei")
    one, two = given(models, line="--dtype bf16", env={"SERVING_MODEL_STORE": "{}", "OPTION_MAX_MODEL_LEN": "32"})
    assert (one.clients.tgi_compat, one.server.job_queue_size, one.server.predict_timeout) == (True, 3, 5.0)
    assert (two.clients.tgi_compat, two.server.job_queue_size, two.engine.max_num_seqs) == (False, 1000, 2)
    assert {config.model.dtype for config in (one, two)} == {"bf16"}, "the command line is for all"
    assert {config.model.max_model_len for config in (one, two)} == {32}, "so is the environment"
    assert two.model.name == ("two", "second", "zwei")


def test_the_default_models_file_can_set_process_wide_options(models: Path) -> None:
    write(models / "one", "port=9000")
    assert given(models, env={"SERVING_MODEL_STORE": "{}"})[0].server.port == 9000


def test_another_models_file_must_not_differ_in_process_wide_options(models: Path) -> None:
    write(models / "two", "port=9000\nmax_request_size=5")
    assert problems(models, env={"SERVING_MODEL_STORE": "{}", "SERVING_MAX_REQUEST_SIZE": "5"}) == [
        "port=9000 (two/serving.properties line 1): is one value for all models, and one has 8080; "
        "give it on the command line or in the environment"
    ]


def test_a_list_of_models_in_a_models_own_file_is_noted(models: Path) -> None:
    write(models / "two", "load_models=x")
    [config] = given(models, line="{}/two")
    assert config.notices[0].startswith("load_models=x (")


def test_requirements_that_are_not_installed_are_noted(models: Path) -> None:
    (models / "two" / "requirements.txt").touch()
    one, two = given(models, line="-s {}")
    assert one.notices == ()
    assert two.notices[0].startswith(f"{models}/two/requirements.txt: no effect here; nothing is installed")


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_the_problems_of_all_models_are_reported_at_once(models: Path) -> None:
    write(models / "one", "option.dtype=bad")
    write(models / "two", "option.max_model_len=none")
    found = problems(models, env={"SERVING_MODEL_STORE": "{}", "OPTION_MAX_BEST_OF": "0"})
    assert {problem.partition(" ")[0] for problem in found} == {
        "OPTION_MAX_BEST_OF=0", "option.dtype=bad", "option.max_model_len=none",
    }  # fmt: skip
    assert len(found) == 3, "what all models share is told once"


def test_two_models_cannot_have_one_name(models: Path) -> None:
    found = problems(models, env={"SERVING_LOAD_MODELS": "same={}/one,same={}/two"})
    assert found == ["two: the name same is taken by one"]
    [found_one] = problems(models, line="--name x --load-models {}/one,{}/two")
    assert found_one.endswith("--name (command line) names one model only")


def test_the_command_line_cannot_name_a_directory_and_a_list(models: Path) -> None:
    [found] = problems(models, line="{}/two --load-models {}/one")
    assert found.endswith("contradicts MODEL_DIR; give one of them")


@table("text", ["NONE,a", "s3://bucket/model", "=dir", "a=", "a:b:c:d:e=dir", "a,a", "ALL,b", ","])
def test_malformed_lists_are_refused_with_the_allowed_form(models: Path, text: str) -> None:
    [found] = problems(models, env={"SERVING_LOAD_MODELS": text})
    assert found == f"SERVING_LOAD_MODELS={text} (environment): must be {ModelList().allowed}"


def test_a_missing_directory_is_named_with_its_source(models: Path) -> None:
    [found] = problems(models, env={"SERVING_LOAD_MODELS": "a={}/three,b={}/two"})
    assert found.startswith("directory=three (environment: SERVING_LOAD_MODELS): must be a directory")


def test_a_store_without_models_is_refused(models: Path) -> None:
    (models / "empty").mkdir()
    for where, why in (("empty", "it is empty"), ("missing", "there is no directory of that name")):
        [found] = problems(models, line="--model-store {}/" + where)
        assert (
            found == f"{where} (command line: --model-store): must be a directory that holds at least one model; {why}"
        )


def test_all_without_a_store_is_refused(models: Path) -> None:
    assert "needs model_store" in problems(models, env={"SERVING_LOAD_MODELS": "ALL"})[0]


def test_other_engines_and_devices_of_a_list_are_noted() -> None:
    assert parse_entry("a:1:Python:cpu=/m", "here").notices == ()
    engine, device = parse_entry("a::OnnxRuntime:gpu0=file:///m", "here").notices
    assert "engine OnnxRuntime" in engine
    assert "device gpu0" in device
    assert parse_entry("a::OnnxRuntime:gpu0=file:///m", "here").directory == Path("/m")
