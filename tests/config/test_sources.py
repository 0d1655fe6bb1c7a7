"""serving.properties and the environment, as texts."""

from __future__ import annotations

from pathlib import Path

from dragoman.config.sources import Given, cache_home, read_environment, read_properties_file
from tests.support.tables import table

PROPERTIES = r"""
# a comment
! another one
option.dtype=bf16
option.model_id = models/a b
option.max_model_len: 512
batch_size   4
option.entryPoint=model.py
option.escaped=a\=b\:c\\d\u0041\tend
option.continued=one,\
    two,\
    three
key\ with\ blanks=yes
option.empty=
option.last=no newline \
"""


def read(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "serving.properties"
    path.write_text(text, encoding="utf-8")
    return {given.key: given.text for given in read_properties_file(path)}


def test_a_properties_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    assert read(tmp_path, PROPERTIES) == {
        "option.dtype": "bf16",
        "option.model_id": "models/a b",
        "option.max_model_len": "512",
        "batch_size": "4",
        "option.entryPoint": "model.py",
        "option.escaped": "a=b:c\\dA\tend",
        "option.continued": "one,two,three",
        "key with blanks": "yes",
        "option.last": "no newline",
    }


def test_an_odd_number_of_backslashes_joins_lines(tmp_path: Path) -> None:
    text = "option.a=one\\\\\noption.b=two\\\\\\\n  three\n"
    assert read(tmp_path, text) == {"option.a": "one\\", "option.b": "two\\three"}


def test_a_value_has_its_file_and_first_line(tmp_path: Path) -> None:
    path = tmp_path / "serving.properties"
    path.write_text("\n# c\noption.a=1,\\\n  2\noption.b=3\n", encoding="utf-8")
    sources = [given.source for given in read_properties_file(path)]
    assert sources == [f"{path} line 3", f"{path} line 5"]


@table(
    ("name", "key"),
    [
        ("OPTION_MODEL_ID", "option.model_id"),
        ("OPTION_entryPoint", "option.entryPoint"),
        ("OPTION_ENTRYPOINT", "option.entrypoint"),
        ("OPTION_LOAD_IN_8BIT", "option.load_in_8bit"),
        ("SERVING_JOB_QUEUE_SIZE", "job_queue_size"),
        ("SERVING_minWorkers", "minWorkers"),
        ("HF_MODEL_ID", "HF_MODEL_ID"),
        ("OPTION_", "OPTION_"),
        ("OPTIONAL", "OPTIONAL"),
    ],
)
def test_variables_become_keys_by_the_naming_rules(name: str, key: str) -> None:
    assert read_environment({name: "x"}) == [Given(name, key, "x", "environment")]


def test_empty_variables_are_not_given() -> None:
    assert read_environment({"OPTION_DTYPE": "", "OPTION_TASK": "  "}) == []


@table("environ", [{}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}])
def test_the_cache_directory_is_the_users_unless_an_absolute_one_is_set(environ: dict[str, str]) -> None:
    assert cache_home(environ) == Path.home() / ".cache"
    assert cache_home({"XDG_CACHE_HOME": "/var/cache/me"}) == Path("/var/cache/me")
