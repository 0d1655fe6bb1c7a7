"""Narrows a schema's bounds on numbers to those that the compiler follows: of 64-bit integers and floats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_LOWERS, _UPPERS = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_LOWEST = -9_200_000_000_000_000_000  # of integers
_HIGHEST = 2**63 - 1
_OPEN = 10**17  # an integer beyond it needs a bound on its other side, too
_LARGEST = 10**18  # of other numbers
_VACUOUS = sys.float_info.max


def bounded(made: dict[str, Any]) -> Iterator[str]:
    """Change bounds to those that the compiler takes; returns the names of the rest. Mutates: `made`."""
    _modernise(made)
    if _is_integer(made):
        yield from _integers(made)
        return
    for name in (*_LOWERS, *_UPPERS):
        if abs(made.get(name, 0)) >= _VACUOUS:
            del made[name]
        elif abs(made.get(name, 0)) >= _LARGEST:
            yield name


def _modernise(made: dict[str, Any]) -> None:
    """Until draft 4 a bound was exclusive if a truth value said so."""
    for inclusive, exclusive in zip(("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), strict=True):
        if isinstance(is_exclusive := made.get(exclusive), bool):
            del made[exclusive]
            if is_exclusive and inclusive in made:
                made[exclusive] = made.pop(inclusive)


def _is_integer(made: dict[str, Any]) -> bool:
    kinds = made.get("type")
    return kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds and "number" not in kinds)


def _integers(made: dict[str, Any]) -> Iterator[str]:
    for names, other in ((_LOWERS, _UPPERS), (_UPPERS, _LOWERS)):
        sign = 1 if names is _LOWERS else -1
        for name in names:
            value = made.get(name, 0) * sign
            if value >= -_LOWEST:
                yield name
            elif value < _LOWEST and names is _LOWERS:  # the compiler itself lowers upper bounds
                made[name] = _LOWEST
            elif value >= _OPEN and not any(key in made for key in other):
                made[other[0]] = _HIGHEST if names is _LOWERS else _LOWEST
