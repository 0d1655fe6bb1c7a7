"""The sampling in a model's generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.config.generation import default_sampling, generation_defaults
from dragoman.config.request_options import SamplingSettings, operator_sampling
from dragoman.config.resolve import ConfigError
from dragoman.types import SamplingParams
from tests.support.tables import table

GREEDY = SamplingParams(temperature=0.0)


def sampling(tmp_path: Path, content: object) -> SamplingParams:
    (tmp_path / "generation_config.json").write_text(json.dumps(content), encoding="utf-8")
    return default_sampling(tmp_path, {})


def test_without_the_file_a_model_is_greedy(tmp_path: Path) -> None:
    assert default_sampling(tmp_path, {}) == GREEDY


@table("content", [{}, {"do_sample": False, "temperature": 0.7}, {"temperature": 0.7}])
def test_without_do_sample_a_model_is_greedy(content: object, tmp_path: Path) -> None:
    assert sampling(tmp_path, content) == GREEDY


def test_every_sampling_value_of_the_file_counts(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repetition_penalty": 1.1,
    }
    assert sampling(tmp_path, {"do_sample": True, "eos_token_id": 2, **values}) == SamplingParams(**values)


def test_the_operators_values_precede_the_files(tmp_path: Path) -> None:
    options = operator_sampling(SamplingSettings(default_temperature=0.2, default_seed=3))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}', encoding="utf-8")
    assert default_sampling(tmp_path, options) == SamplingParams(temperature=0.2, seed=3)
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6, "top_k": 20}', "utf-8")
    assert default_sampling(tmp_path, options) == SamplingParams(temperature=0.2, seed=3, top_k=20)
    assert operator_sampling(SamplingSettings(default_seed=-1)) == {}


def test_null_means_not_given(tmp_path: Path) -> None:
    assert sampling(tmp_path, {"do_sample": True, "top_k": None}) == SamplingParams()


@table(
    ("key", "value", "allowed"),
    [
        ("temperature", -1, "a number >= 0"),
        ("top_k", 1.5, "an integer >= 0"),
        ("top_p", 0, "a number > 0 and <= 1"),
        ("top_p", 1.5, "a number > 0 and <= 1"),
        ("min_p", 2, "a number >= 0 and <= 1"),
        ("repetition_penalty", "high", "a number > 0"),
    ],
)
def test_an_unusable_value_is_reported_with_file_and_key(key: str, value: object, allowed: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        sampling(tmp_path, {"do_sample": True, key: value})
    assert caught.value.problems == (f"{key}={value} ({tmp_path}/generation_config.json): must be {allowed}",)


@table(("text", "problem"), [("{", "cannot be read as JSON"), ("[1]", "must hold a JSON object, but holds a list")])
def test_a_file_without_an_object_is_reported(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        default_sampling(tmp_path, {})


# --- for parameters that clients leave out ----------------------------------------------------------------------------


@table(
    ("content", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "max_new_tokens": 9}, {}),
        ({"do_sample": True}, {"do_sample": True}),
        ({"do_sample": True, "temperature": 0.6, "top_k": None}, {"temperature": 0.6, "do_sample": True}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9, "do_sample": True}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_the_file_sets_values_that_clients_leave_out(content: object, expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert generation_defaults(tmp_path) == expected
