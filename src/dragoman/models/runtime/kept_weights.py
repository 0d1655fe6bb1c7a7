"""Keeps packed weights in a file, so that they are packed once and not at every start.

Does: have a graph built over the file of an earlier start, or over a new one, which is then put in its place. Does not:
pack, or name files (the loader does). Called by the loader, once per start, on any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dragoman.models.runtime.kept_bound import note_use, put_kept, warn_not_kept
from dragoman.models.storage.weight_memory import KeptWeights, WeightMemory, WrittenWeights
from dragoman.scratch import scratch_directory

logger = logging.getLogger(__name__)

T = TypeVar("T")
Build = Callable[[WeightMemory], T]


def built(kept: Path | None, build: Build[T], checked: Callable[[float], None]) -> tuple[T, bool]:
    """What `build` makes over memory for weights, and whether these are an earlier start's.

    `kept`: the file that holds them, or will; None = they are not kept. `checked`: is told which fraction has been checked.
    A file that is damaged or does not fit is made anew; that none can be made is only a warning. Raises: what `build` does.
    """
    if kept is None:
        return build(WeightMemory()), False
    if kept.exists():
        try:
            with KeptWeights(kept) as memory:
                made = build(memory)
                memory.finish_check(checked)
            note_use(kept)
            return made, True
        except (OSError, ValueError) as error:
            logger.warning("the kept weights %s cannot be used and are made anew: %s", kept, error)
    try:
        with scratch_directory(kept.parent) as unfinished, WrittenWeights(unfinished / "weights") as written:
            made = build(written)
            _put(written, unfinished / "weights", kept)
            return made, False
    except OSError as error:
        warn_not_kept(kept, error)
    return build(WeightMemory()), False


def _put(written: WrittenWeights, path: Path, kept: Path) -> None:
    try:
        if written.finish():
            put_kept(path, kept)
    except OSError as error:
        warn_not_kept(kept, error)
