"""Plans the changes that lead to serving exactly the wanted models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.errors import InvalidRequest
from dragoman.host.hosted import Hosted, Wanted


@dataclass(frozen=True, slots=True)
class Plan:
    """`failures`: names that cannot be resolved; their models stay."""

    gone: Sequence[Hosted]
    changed: Sequence[tuple[Hosted, Wanted]]
    new: Sequence[Wanted]
    unchanged: tuple[str, ...]
    failures: Mapping[str, str]


def make_plan(wanted: Sequence[Wanted], failures: Mapping[str, str], served: Sequence[Hosted]) -> Plan:
    """The plan from the served to the wanted models. Raises: InvalidRequest if two wanted ones share a name."""
    by_name = {one.name: one for one in served}
    names = [name for one in wanted for name in one.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"models: each name may occur once; {', '.join(twice)} occurs twice")
    pinned = {one.name: "it is pinned, and stays" for one in served if one.is_pinned and one.name not in names}
    kept = {*names, *failures, *pinned}
    return Plan(
        gone=[one for one in served if one.name not in kept],
        changed=[(by_name[one.name], one) for one in wanted if _has_changed(by_name.get(one.name), one)],
        new=[one for one in wanted if one.name not in by_name],
        unchanged=tuple(one.name for one in wanted if one.name in by_name and not _has_changed(by_name[one.name], one)),
        failures={**failures, **pinned},
    )


def _has_changed(served: Hosted | None, wanted: Wanted) -> bool:
    return served is not None and served.wanted.identity != wanted.identity
