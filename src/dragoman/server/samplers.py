"""Samplers in no API's document, for all APIs that take further fields: DRY, top-n sigma, XTC.

Does: hold their fields as bodies have them; make neutral values of them. Does not: read bodies, or declare ranges and
meanings (`parameters` does).
Used by the dialects, on the event loop, and by what describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import msgspec

from dragoman.errors import InvalidParameter
from dragoman.server.json_body import shown_json
from dragoman.server.parameters import (
    MAX_BREAKER_CHARS,
    MAX_BREAKERS,
    PARAMETERS,
    Need,
    Parameter,
)
from dragoman.types import FurtherSampling, SamplingParams

FIELDS: Mapping[str, Parameter] = {one.name: PARAMETERS[one.name] for one in msgspec.structs.fields(FurtherSampling)}

SAMPLER_EFFECTS: Mapping[str, str] = {
    name: field.effect if name == own else f"another name of `{own}`"
    for own, field in FIELDS.items()
    for name in (own, *field.aliases)
}

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


_OF_DRY = tuple(name for name, one in PARAMETERS.items() if one.needs is Need.DRY)
_READ_FIELDS, _NOTHING = attrgetter(*SAMPLER_EFFECTS), (None,) * len(SAMPLER_EFFECTS)


def further_sampling(asked: SamplerFields, place: str = "") -> dict[str, Any]:
    """The fields of a body, for SamplingParams; those of a sampler that is off are left out.

    `place`: goes before their names in errors. Raises: InvalidParameter.
    """
    if _READ_FIELDS(asked) == _NOTHING:  # as nearly always
        return {}
    given = {own: _given(asked, own) for own in FIELDS}
    found = {own: value for own, value in given.items() if value is not None}
    if "dry_sequence_breakers" in found:
        found["dry_sequence_breakers"] = _breakers(found["dry_sequence_breakers"], f"{place}dry_sequence_breakers")
    if not SamplingParams(**found).has_dry:
        found = {name: value for name, value in found.items() if name not in _OF_DRY}
    if not found.get("xtc_probability"):
        found.pop("xtc_threshold", None)
    if "top_n_sigma" in found:
        found["top_n_sigma"] = max(0.0, found["top_n_sigma"])
    return found


def _given(asked: SamplerFields, own: str) -> Any:
    """The value of a field, by whichever of its names it was given; None if it was not."""
    values = (getattr(asked, name) for name in (own, *FIELDS[own].aliases))
    return next((value for value in values if value is not None), None)


def _breakers(texts: list[str], name: str) -> tuple[str, ...]:
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
