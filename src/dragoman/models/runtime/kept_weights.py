"""Keeps packed weights in a file, so that they are packed once and not at every start.

A graph asks for the same memory in the same order at every start, so sizes tell that a file fits. It is mapped:
servers of one machine share it. Called by the loader, once per start, on any thread.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from dragoman.files.ownership import open_own
from dragoman.files.unfinished import scratch_directory
from dragoman.kernels.memory import Memory, of_file
from dragoman.models.runtime.kept_bound import note_use, put_kept, warn_not_kept
from dragoman.models.runtime.seal import SealedBytes
from dragoman.models.storage.weight_memory import WeightMemory

logger = logging.getLogger(__name__)

_COUNT_BYTES = 8

T = TypeVar("T")
Build = Callable[[WeightMemory], T]


class WrittenWeights(WeightMemory):
    """Memory of a new file, which `finish` makes whole; of this process where the disk has no room."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._places: list[tuple[int, int]] | None = []
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def _new(self, num_bytes: int) -> Memory:
        if self._places is None:
            return super()._new(num_bytes)
        begin = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            # Asked for now: memory of a file that has no room on the disk ends the process when it is written.
            os.posix_fallocate(self._descriptor, begin, num_bytes)
            memory = of_file(self._descriptor, begin, num_bytes, is_written=True)
        except OSError as error:
            logger.warning("the packed weights cannot be kept in %s: %s", self._path.parent.parent, error.strerror)
            self._places = None
            return super()._new(num_bytes)
        self._places.append((begin, num_bytes))
        self._end = begin + num_bytes
        return memory

    def finish(self) -> bool:
        """Write the index behind the weights; False if some of them are not in the file. Raises: OSError."""
        if self._places is None:
            return False
        index = json.dumps(self._places).encode()
        os.pwrite(self._descriptor, index + len(index).to_bytes(_COUNT_BYTES, "little"), self._end)
        return True


class KeptWeights(WeightMemory):
    """Memory that an earlier start has written into a sealed file, checked on threads meanwhile. A context manager."""

    is_filled = True

    def __init__(self, path: Path) -> None:
        """Raises: OSError, also if another user can have written the file; ValueError if it is not a file of weights."""
        super().__init__()
        with open_own(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ValueError("it is empty")
            self._whole = of_file(file.fileno(), 0, size, is_written=False)
        self._sealed = SealedBytes(self._whole.data)
        contents = self._sealed.contents
        size = int.from_bytes(contents[-_COUNT_BYTES:].tobytes(), "little")
        index: Any = json.loads(contents[-size - _COUNT_BYTES : -_COUNT_BYTES].tobytes())
        self._places = iter(index)

    def __enter__(self) -> Self:
        self._sealed.__enter__()
        self._sealed.begin_check()
        return self

    def __exit__(self, *error: object) -> None:
        self._sealed.__exit__(*error)

    def _new(self, num_bytes: int) -> Memory:
        begin, size = next(self._places, (0, -1))
        if size != num_bytes:
            raise ValueError("it holds other matrices")
        return self._whole.part(begin, size, is_filled=True)

    def finish_check(self, progress: Callable[[float], None]) -> None:
        self._sealed.finish_check(progress)


def built(kept: Path | None, build: Build[T], checked: Callable[[float], None]) -> tuple[T, bool]:
    """The result of `build` over memory for weights; True if the weights are an earlier start's.

    `kept`: the file that holds them, or will. `checked`: gets the fraction that has been checked. A file that is
    damaged or does not fit is made again; if none can be made, a warning says so. Raises: what `build` does.
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
            logger.warning(
                "the kept weights %s cannot be used and are made anew: %s", kept, str(error)
            )  # not the error, which holds on to what was built
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
