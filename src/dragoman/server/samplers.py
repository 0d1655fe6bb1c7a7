"""Samplers in no API's document, for all APIs that take further fields: DRY, top-n sigma, XTC.

Does: hold their fields as bodies have them; make neutral values of them; tell which parameters of any sampler change
nothing, and why. Does not: read bodies, or declare ranges and meanings (`parameters` does).
Used by the dialects, on the event loop, and by what describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import msgspec

from dragoman.errors import InvalidParameter
from dragoman.server.bounds import Bounds
from dragoman.server.json_body import shown_json
from dragoman.server.parameters import (
    MAX_BREAKER_CHARS,
    MAX_BREAKERS,
    NEUTRAL_SAMPLING,
    PARAMETERS,
    Need,
    Parameter,
    bounds_of,
)
from dragoman.types import FurtherSampling, SamplingParams

FIELDS: Mapping[str, Parameter] = {one.name: PARAMETERS[one.name] for one in msgspec.structs.fields(FurtherSampling)}

SAMPLER_EFFECTS: Mapping[str, str] = {
    name: field.effect if name == own else f"another name of `{own}`"
    for own, field in FIELDS.items()
    for name in (own, *field.aliases)
}

SAMPLER_BOUNDS: Mapping[str, Bounds] = bounds_of(*SAMPLER_EFFECTS)


BREAKERS_SCHEMA: Mapping[str, Any] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": MAX_BREAKER_CHARS},
    "maxItems": MAX_BREAKERS,
}


class SamplerFields(msgspec.Struct, kw_only=True):
    """The fields of bodies; None = not given."""

    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    top_n_sigma: float | None = None
    nsigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None


class SamplingFields(SamplerFields, kw_only=True):
    """The fields that have the same names in several APIs' documents; None = not given."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


_DRAWING = tuple(name for name, one in PARAMETERS.items() if one.needs is Need.SAMPLING and name != "temperature")
_OF_DRY = tuple(name for name, one in PARAMETERS.items() if one.needs is Need.DRY)
_READ_OWN = attrgetter(*FIELDS)
_NEUTRAL = _READ_OWN(NEUTRAL_SAMPLING)
_READ_FIELDS, _NOTHING = attrgetter(*SAMPLER_EFFECTS), (None,) * len(SAMPLER_EFFECTS)
IDLE_REASONS: Mapping[str, str] = {
    **dict.fromkeys(_DRAWING, "the most likely token is taken, none is drawn"),
    **dict.fromkeys(_OF_DRY, "nothing is penalised unless dry_multiplier is above 0 and dry_penalty_last_n is not 0"),
    "nsigma": "the most likely token is taken, none is drawn",
    "xtc_threshold": "nothing is left out unless tokens are drawn and xtc_probability is above 0",
}
"""Reasons for which a sampler's parameter has no effect."""


def further_sampling(asked: object, place: str = "", *, is_drawn: bool = True) -> dict[str, Any]:
    """The fields of a body, for SamplingParams; those of a sampler that is off are left out.

    `asked`: has the fields as attributes. `place`: goes before their names in errors. `is_drawn`: tokens are drawn, which
    all but DRY is about. Raises: InvalidParameter.
    """
    if _says_nothing(asked):  # as nearly always
        return {}
    names = FIELDS if is_drawn else _OF_DRY
    found = {own: value for own in names if (value := _given(asked, own)[1]) is not None}
    if "dry_sequence_breakers" in found:
        found["dry_sequence_breakers"] = _breakers(found["dry_sequence_breakers"], f"{place}dry_sequence_breakers")
    if not SamplingParams(**found).has_dry:
        found = {name: value for name, value in found.items() if name not in _OF_DRY}
    if not found.get("xtc_probability"):
        found.pop("xtc_threshold", None)
    if "top_n_sigma" in found:
        found["top_n_sigma"] = max(0.0, found["top_n_sigma"])
    return found


def idle_samplers(sampling: SamplingParams, asked: object) -> set[str]:
    """The samplers' parameters that are set but have no effect, by the client's names.

    `asked`: the body that `sampling` was made of.
    """
    is_drawn = sampling.temperature > 0.0 and sampling.num_beams == 1
    idle: set[str] = set()
    if not is_drawn:
        idle = {name for name in _DRAWING if getattr(sampling, name) != getattr(NEUTRAL_SAMPLING, name)}
    if not _says_nothing(asked):
        off = () if sampling.has_dry else _OF_DRY
        if not (is_drawn and sampling.xtc_probability):
            off = (*off, "xtc_threshold")
        idle.update(name for name in off if _says_something(name, _given(asked, name)[1]))
    return {_given(asked, name)[0] for name in idle}


def _says_nothing(asked: object) -> bool:
    """True if a body has none of the fields, or neutral values. Reads all at once, since most bodies have none."""
    if isinstance(asked, FurtherSampling):
        return _READ_OWN(asked) == _NEUTRAL
    return isinstance(asked, SamplerFields) and _READ_FIELDS(asked) == _NOTHING


def _given(asked: object, own: str) -> tuple[str, Any]:
    """The name under which a field was given, and its value; its own name and None if it was not."""
    for name in (own, *(FIELDS[own].aliases if own in FIELDS else ())):
        if (value := getattr(asked, name, None)) is not None:
            return name, value
    return own, None


def _says_something(name: str, value: Any) -> bool:
    return value is not None and (tuple(value) if isinstance(value, list) else value) != getattr(NEUTRAL_SAMPLING, name)


def _breakers(texts: list[str] | tuple[str, ...], name: str) -> tuple[str, ...]:
    problem = ""
    if len(texts) > MAX_BREAKERS:
        problem = f"{name} must hold at most {MAX_BREAKERS} texts, got {len(texts)}"
    elif "" in texts:
        problem = f"{name} must hold texts that are not empty, got {shown_json(list(texts), 60)}"
    elif (longest := max(map(len, texts), default=0)) > MAX_BREAKER_CHARS:
        problem = f"{name} must hold texts of at most {MAX_BREAKER_CHARS} characters, got one of {longest}"
    if problem:
        raise InvalidParameter(problem, param=name)
    return tuple(texts)
