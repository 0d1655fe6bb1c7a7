"""While the server runs, calls load only models of the operator's store, with options of the model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.engine_options import OPTIONS
from dragoman.config.kinds import Choice, ImageLimit, Integer, JsonObject, Number, Switch
from dragoman.config.request_options import Repetition
from dragoman.config.resolve import Config, ConfigError
from dragoman.config.run_time import ModelStore, NotStored
from dragoman.config.several import resolve_all
from tests.support.tables import table


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the models `one` and `two`, and a model outside it."""
    for directory in (tmp_path / "store" / "one", tmp_path / "store" / "two", tmp_path / "outside", tmp_path / "demo"):
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path / "store"


def opened(store: Path, line: str = "", env: Mapping[str, str] | None = None) -> ModelStore:
    """The store of a server with this command line, in which {} stands for the store."""
    words = f"--load-models NONE --model-store {store} --cache-dir {store.parent}/cache {line}".format(store)
    arguments = read_arguments(words.split())
    found = resolve_all(arguments.givens, env or {}, store.parent / "demo")
    return ModelStore(found.store, found.process, arguments.givens, env or {}, store.parent / "demo")


def configured(found: ModelStore, url: str, name: str = "", version: str = "", **options: str) -> Config:
    return found.config(found.entry(url, name, version), options)


def refusals(found: ModelStore, url: str = "one", name: str = "", **options: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configured(found, url, name, **options)
    assert all("\n" not in problem for problem in caught.value.problems)
    return list(caught.value.problems)


# --- where ------------------------------------------------------------------------------------------------------------


@table("form", ["one", "./one", "two/../one", "{}/one", "file://{}/one", "file://localhost{}/one/"])
def test_every_form_of_a_path_in_the_store_is_accepted(store: Path, form: str) -> None:
    config = configured(opened(store), form.format(store))
    assert config.model_dir == (store / "one").resolve()
    assert config.name == "one"


def test_a_file_url_is_unquoted(store: Path) -> None:
    (store / "one").rename(store / "one more")
    assert configured(opened(store), f"file://{store}/one%20more", "x").model_dir.name == "one more"


@table(
    "form",
    ["../outside", "{}/../outside", "file://{}/../outside", "/etc", "..", ".", "{}", "link", "one/../../outside"],
)
def test_paths_outside_the_store_are_refused(store: Path, form: str) -> None:
    if "link" in form:
        (store / "link").symlink_to(store.parent / "outside")
    [problem] = refusals(opened(store), form.format(store))
    assert problem == (
        f"url={form.format(store)} (this call): must be the path of a model in the model store; no other is loaded"
    )


def test_malformed_paths_are_refused(store: Path) -> None:
    (store / "circle").symlink_to(store / "circle")
    for form in ("a\0b", "circle/x"):
        assert len(refusals(opened(store), form)) == 1


@table("scheme", ["s3", "http", "HTTPS", "djl"])
def test_urls_of_other_places_are_refused_by_scheme(store: Path, scheme: str) -> None:
    [problem] = refusals(opened(store), f"{scheme}://bucket/one")
    assert f"{scheme}:// is not supported, as nothing is downloaded" in problem


def test_files_of_other_machines_and_empty_paths_are_refused(store: Path) -> None:
    assert "must be a path of this machine" in refusals(opened(store), f"file://elsewhere{store}/one")[0]
    assert "must not be empty" in refusals(opened(store), "")[0]


def test_a_link_within_the_store_is_followed(store: Path) -> None:
    (store / "latest").symlink_to(store / "two")
    assert configured(opened(store), "latest").model_dir == (store / "two").resolve()


@table("form", ["three", "one/config.json", "{}/three"])
def test_a_missing_model_is_not_found(store: Path, form: str) -> None:
    with pytest.raises(NotStored, match="holds no directory or archive there"):
        opened(store).entry(form.format(store))


def test_without_a_store_everything_is_refused_with_the_option_that_allows_it(store: Path) -> None:
    found = opened(store)
    none = ModelStore(None, found.process, found.command_line, {}, found.demo_dir)
    assert "--model-store" in refusals(none, str(store / "one"))[0]
    assert none.entries() == []


def test_a_store_that_is_itself_a_model_may_be_loaded(store: Path) -> None:
    (store / "config.json").write_text("{}", encoding="utf-8")
    assert configured(opened(store), ".", "own").model_dir == store.resolve()


def test_an_archive_is_unpacked_and_named_by_its_stem(store: Path) -> None:
    shutil.make_archive(str(store / "packed"), "gztar", store / "two")
    found = opened(store)
    config = configured(found, "packed.tar.gz")
    assert config.name == "packed"
    assert config.model_dir.is_relative_to(store.parent / "cache" / "archives")
    assert found.named("packed").directory == (store / "packed.tar.gz").resolve()


def test_models_are_found_by_their_name_in_the_store_alone(store: Path) -> None:
    found = opened(store)
    assert found.config(found.named("two"), {}).name == "two"
    for name in ("three", "../outside", "", ".", "one/", str(store / "one")):
        with pytest.raises(NotStored):
            found.named(name)


def test_a_link_out_of_the_store_is_refused(store: Path) -> None:
    (store / "link").symlink_to(store.parent / "outside")
    with pytest.raises(ConfigError, match="no other is loaded"):
        opened(store).named("link")


# --- with which options -----------------------------------------------------------------------------------------------


def test_options_of_the_call_precede_the_models_file(store: Path) -> None:
    (store / "one" / "serving.properties").write_text(
        "option.max_model_len=64\noption.kv_cache_dtype=u8\n", encoding="utf-8"
    )
    found = opened(store, env={"OPTION_MAX_NUM_SEQS": "3"})
    config = configured(found, "one", max_model_len="32", **{"option.job_queue_size": "7"})
    assert config.model.max_model_len == 32
    assert config.model.kv_dtype == "u8"
    assert config.engine.max_num_seqs == 3
    assert config.server.job_queue_size == 7


def test_the_call_sets_name_and_version(store: Path) -> None:
    config = configured(opened(store, "--name given --port 9"), "one", "x", "2")
    assert config.model.name == ("x",)
    assert config.version == "2"
    assert configured(opened(store, env={"OPTION_NAME": "given"}), "one").model.name == ("one",)


@table("name", ["a b", "a,b", "a\nb", "x" * 257])
def test_a_name_is_one_word(store: Path, name: str) -> None:
    assert "must be one word" in refusals(opened(store), "one", name)[0]


def test_a_call_cannot_set_the_operators_options(store: Path) -> None:
    """Every option that is not declared open, also new ones."""
    found = opened(store)
    for option in OPTIONS:
        bare = option.key.removeprefix("option.") if option.name != "engine" else ""  # LMI's own, which has no effect
        for name in filter(None, (option.key, option.key.upper(), bare)):
            told = f"{name} (this call): only the operator can set it, with "
            try:
                configured(found, "one", **{name: "?"})
                problems: tuple[str, ...] = ()
            except ConfigError as error:
                problems = error.problems
            assert any(one.startswith(told) for one in problems) is (option.row.open_to != "load"), (name, problems)


def test_the_error_says_how_the_operator_sets_it(store: Path) -> None:
    found = opened(store)
    assert refusals(found, upstream="http://evil.example") == [
        "upstream (this call): only the operator can set it, with --upstream or OPTION_UPSTREAM when the server starts, or "
        "with option.upstream in the model's own serving.properties"
    ]
    assert refusals(found, port="1") == [
        "port (this call): only the operator can set it, with --port or SERVING_PORT when the server starts"
    ]
    (store / "one" / "serving.properties").write_text("option.chat_template=x", encoding="utf-8")
    assert configured(found, "one").model.chat_template == "x"


def test_no_path_name_or_address_is_open_to_a_call() -> None:
    kinds = {type(one.row.kind) for one in OPTIONS if one.row.open_to == "load"}
    assert kinds == {Choice, Integer, Number, Switch, ImageLimit, JsonObject, Repetition}


def test_a_call_sets_no_options_of_the_operators_code(store: Path) -> None:
    (store / "one" / "model.py").write_text("", encoding="utf-8")
    (store / "one" / "serving.properties").write_text("option.mine=1", encoding="utf-8")
    assert configured(opened(store), "one").own_options == {"mine": "1"}
    for name in ("mine", "option.yours"):
        assert "unknown option" in refusals(opened(store), "one", **{name: "2"})[0]
    found = configured(opened(store), "one", **{"option.tensor_parallel_degree": "7"})
    assert found.own_options == {"mine": "1"}


def test_bad_and_unknown_options_name_the_allowed_values(store: Path) -> None:
    found = opened(store)
    assert refusals(found, dtype="int5")[0].startswith("dtype=int5 (this call): must be one of auto, int8")
    assert "unknown option; the nearest known one is" in refusals(found, max_model_length="3")[0]


def test_a_call_cannot_change_options_of_the_command_line(store: Path) -> None:
    found = opened(store, "--dtype f32")
    assert refusals(found, dtype="int8") == [
        "dtype=int8 (this call): cannot be changed; it is decided by --dtype (command line)"
    ]
    assert configured(found, "one").model.dtype == "f32"


def test_a_models_file_must_not_differ_in_process_wide_options(store: Path) -> None:
    (store / "one" / "serving.properties").write_text("port=7\n", encoding="utf-8")
    assert "is one value for all models" in refusals(opened(store), "one")[0]


def test_the_command_lines_weights_serve_only_its_model(store: Path) -> None:
    """A directory without weights is no model, even if MODEL_DIR has some."""
    (store / "one" / "config.json").unlink()
    arguments = read_arguments([str(store / "two"), "--model-store", str(store)])
    found = resolve_all(arguments.givens, {}, store.parent / "demo")
    opened_store = ModelStore(found.store, found.process, arguments.givens, {}, store.parent / "demo")
    assert configured(opened_store, "one").model_dir == (store / "one").resolve()
