"""The options that say how tokens are chosen where requests do not say it, a part of the table in `options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dragoman.config.kinds import Integer, Number
from dragoman.config.option import option

_PREFIX = "default_"
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling where requests do not say it"""

    default_temperature: float | None = option(
        None,
        Number(0, inclusive=True),
        "Temperature of requests that give none, for the APIs that --generation-config names; 0 is greedy. Like the "
        "options below, it goes before the model's generation_config.json.",
        unset="as that file, or the API's document, says",
        flags=("--temp", "--temperature"),
        open_to="load",
    )
    default_top_k: int | None = option(
        None,
        Integer(0),
        "The same for top_k: only so many of the most likely tokens, 0 = all.",
        unit="tokens",
        unset="likewise",
        flags=("--top-k",),
        open_to="load",
    )
    default_top_p: float | None = option(
        None,
        Number(0, maximum=1),
        "The same for top_p: only the most likely tokens whose probabilities add up to it.",
        unset="likewise",
        flags=("--top-p",),
        open_to="load",
    )
    default_min_p: float | None = option(
        None,
        Number(0, inclusive=True, maximum=1),
        "The same for min_p: only tokens at least this likely relative to the most likely one.",
        unset="likewise",
        flags=("--min-p",),
        open_to="load",
    )
    default_typical_p: float | None = option(
        None,
        Number(0, maximum=1),
        "The same for typical_p: locally typical sampling with this probability mass.",
        unset="likewise",
        flags=("--typical", "--typical-p"),
        open_to="load",
    )
    default_repetition_penalty: float | None = option(
        None,
        Number(0),
        "The same for repetition_penalty, which divides the logits of tokens seen in prompt and answer.",
        unset="likewise",
        flags=("--repeat-penalty",),
        open_to="load",
    )
    default_presence_penalty: float | None = option(
        None,
        Number(-2, inclusive=True, maximum=2),
        "The same for presence_penalty, which is subtracted from the logits of tokens already generated.",
        unset="likewise",
        flags=("--presence-penalty",),
        open_to="load",
    )
    default_frequency_penalty: float | None = option(
        None,
        Number(-2, inclusive=True, maximum=2),
        "The same for frequency_penalty, which is subtracted from a token's logit once for each time it was generated.",
        unset="likewise",
        flags=("--frequency-penalty",),
        open_to="load",
    )
    default_seed: int | None = option(
        None,
        Integer(-1, _MAX_SEED),
        "The same for seed: requests that give none repeat their answers; -1 = drawn at random.",
        unset="drawn at random",
        flags=("--seed",),
        open_to="load",
    )


def operator_sampling(settings: SamplingSettings) -> Mapping[str, Any]:
    """The values that the operator gave, by the names of `SamplingParams`; `do_sample` if they ask for sampling."""
    given = {one.name.removeprefix(_PREFIX): getattr(settings, one.name) for one in fields(settings)}
    found = {name: value for name, value in given.items() if value is not None and (name, value) != ("seed", -1)}
    return {**found, "do_sample": True} if "temperature" in found else found


def option_of(name: str) -> str:
    """The option that gives the value of that name."""
    return _PREFIX + name
