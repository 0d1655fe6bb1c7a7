"""The tier that runs: `make test` (the usual one) or `make test-all` (everything at full width).

A test that only the second runs is marked `@pytest.mark.full("its reason")`. A test that the first runs at less width asks
`examples`, `width` or `everything` when it is imported. tests/conftest.py chooses before any test is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

_Case = TypeVar("_Case")


@dataclass
class _Chosen:
    everything: bool = False


_chosen = _Chosen()


def choose(*, everything: bool) -> None:
    """Set the tier for this process, and how many examples properties have that do not say it.

    `make test` draws the same examples each time: a change fails by what it does, not by chance. New ones are for the other
    tier. No example has a deadline: a busy machine takes as long as it takes.
    """
    _chosen.everything = everything
    with suppress(ImportError):  # environments for clients of other projects have no Hypothesis
        from hypothesis import settings

        usual = settings.get_profile("default")
        count = examples(usual.max_examples)
        settings.register_profile("tier", usual, max_examples=count, deadline=None, derandomize=not everything)
        settings.load_profile("tier")


def everything() -> bool:
    """True if everything runs at full width."""
    return _chosen.everything


def examples(count: int) -> int:
    """Examples of a property: `count` at full width, else a quarter of them."""
    return count if everything() else max(count // 4, 1)


def width(cases: Sequence[_Case], few: Sequence[_Case]) -> Sequence[_Case]:
    """`cases` at full width, else the `few` of them that differ in kind."""
    return cases if everything() else few
