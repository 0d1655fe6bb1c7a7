"""The options for sampling parameters that requests leave out, a part of the table in `options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dragoman.config.kinds import Integer, Kind, Number, parameter_kind
from dragoman.config.option import option
from dragoman.parameters import PARAMETERS

_PREFIX = "default_"


def _default(name: str, *flags: str, kind: Kind | None = None, effect: str = "", unset: str = "likewise") -> Any:
    text = f"The same for {name}: {effect or PARAMETERS[name].effect}."
    return option(None, kind or parameter_kind(name), text, unset=unset, flags=flags, open_to="load")


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling where requests do not say it"""

    default_temperature: float | None = option(
        None,
        parameter_kind("temperature"),
        "Temperature of requests that give none, in the APIs that --generation-config names; 0 is greedy. This option "
        "and the ones below take precedence over the model's generation_config.json.",
        unset="the value of that file, or of the API's document",
        flags=("--temp", "--temperature"),
        open_to="load",
    )
    default_top_k: int | None = _default(
        "top_k", "--top-k", kind=Integer(0), effect="keep this many of the most likely tokens, 0 = all"
    )
    default_top_p: float | None = _default("top_p", "--top-p", kind=Number(0, maximum=1))
    default_min_p: float | None = _default("min_p", "--min-p")
    default_typical_p: float | None = _default("typical_p", "--typical", "--typical-p")
    default_repetition_penalty: float | None = _default("repetition_penalty", "--repeat-penalty")
    default_presence_penalty: float | None = _default("presence_penalty", "--presence-penalty")
    default_frequency_penalty: float | None = _default("frequency_penalty", "--frequency-penalty")
    default_seed: int | None = _default(
        "seed",
        "--seed",
        kind=Integer(-1, 2**64 - 1),
        effect="requests without a seed then repeat their answers; -1 = random",
        unset="random",
    )


def operator_sampling(settings: SamplingSettings) -> Mapping[str, Any]:
    """The operator's values, by the names of `SamplingParams`; `do_sample` if they turn sampling on."""
    given = {one.name.removeprefix(_PREFIX): getattr(settings, one.name) for one in fields(settings)}
    found = {name: value for name, value in given.items() if value is not None and (name, value) != ("seed", -1)}
    return {**found, "do_sample": True} if "temperature" in found else found


def option_of(name: str) -> str:
    return _PREFIX + name
