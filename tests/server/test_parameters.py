"""The one table of generation parameters: every neutral field is declared, with a range that holds its neutral value."""

from __future__ import annotations

import msgspec

from dragoman.parameters import ALIASES, PARAMETERS, Bounds, neutral_value
from dragoman.server.apis.llamacpp.request import WORDS
from dragoman.server.apis.lmi_wire.parameters import TABLE
from dragoman.server.apis.ollama.request import OPTIONS
from dragoman.server.apis.openai_wire.fields import BOUNDS
from dragoman.types import GenerationRequest, Limits, SamplingParams

NO_PARAMETERS = {"grammar", "repetition_detection", "infill", "post_sampling_probs"}
"""Fields that no number or list of the table sets: APIs have objects or switches of their own for them."""


def names_of(kind: type[msgspec.Struct]) -> set[str]:
    return {one.name for one in msgspec.structs.fields(kind)}


def test_every_field_of_sampling_is_declared_and_nothing_that_is_no_field() -> None:
    assert names_of(SamplingParams) - NO_PARAMETERS <= set(PARAMETERS)
    assert set(PARAMETERS) <= names_of(SamplingParams) | names_of(GenerationRequest)
    assert set(ALIASES).isdisjoint(PARAMETERS)


def test_what_a_parameter_is_where_nobody_says_anything_is_in_its_range() -> None:
    for name, one in PARAMETERS.items():
        value = neutral_value(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        assert not is_number or one.bounds is not None, name
        assert value is None or one.bounds is None or one.bounds.problem(value) is None, name
        assert not one.limit or hasattr(Limits(), one.limit), name


def test_every_range_of_an_api_that_is_not_the_parameters_own_is_a_difference_that_its_document_makes() -> None:
    told: dict[str, dict[str, Bounds]] = {
        "OpenAI": dict(BOUNDS),
        "Ollama": {**BOUNDS, **OPTIONS.bounds},
        "llama.cpp": {**BOUNDS, **WORDS.bounds},
    }
    differing = {
        api: {name for name, bounds in ranges.items() if name in PARAMETERS and bounds != PARAMETERS[name].bounds}
        for api, ranges in told.items()
    }
    assert differing == {"OpenAI": {"temperature"}, "Ollama": set(), "llama.cpp": {"temperature", "max_tokens"}}
    lmi = {row.name for row in TABLE if row.bounds is not None}
    assert lmi == {"temperature", "top_p", "top_k", "seed"}
