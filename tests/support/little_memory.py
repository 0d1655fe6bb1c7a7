"""Bounds what reading the files of a model may allocate, whatever they say of themselves: twice what they take.

Does: count what Python and numpy allocate meanwhile (`little_memory`); read what is told of weights in a process of its own
whose address space is limited, so that what libraries of other languages allocate counts as well, whether they touch it or
not (`Confined`). Does not: bound what compiling a model takes. Used by the tests of mutated files; Linux alone.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from dragoman.errors import ModelError
from dragoman.files.model_texts import is_gguf
from dragoman.models.stored.opening import stored_weights

SPARE_BYTES = 1 << 18
"""What may be allocated besides: objects that stand for a small model and its graph take half of it, whatever it weighs."""

# A file is mapped by the library that checks its header, as an array, and while its header is read: addresses, not memory.
_MAPPINGS = 3
# The interpreter's own heap grows by a MiB at a time, that of C by what is freed late; an absurd count is far above.
_SPARE_ADDRESSES = 4 << 20
_STACK_BYTES = 1 << 18  # of the thread that asks the system to read ahead


@contextmanager
def little_memory(model: Path) -> Iterator[None]:
    """Fails if more is allocated within than twice what the model's files take, and `SPARE_BYTES`."""
    most = 2 * _size_of(model) + SPARE_BYTES
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < most, f"{peak} bytes were allocated, allowed: {most}"


class Confined:
    """A process that reads what files tell of weights, with no more memory than that may take. A context manager."""

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", __name__]
        environment = os.environ | {
            "MALLOC_ARENA_MAX": "1"
        }  # else each thread reserves addresses for a heap of its own
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()

    def refusal(self, model: Path) -> str | None:
        """What the weights of a model are refused with when all is read that is told of them, None if they are not.

        Fails if that took more memory than it may.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(str(model)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"reading {model} takes more memory than twice its files, or kills the process"
        message: str | None = json.loads(answer)
        assert "allocate memory" not in (message or ""), message  # as the system says it of a mapping
        return message


def read_all(model: Path) -> str | None:
    """What the weights of a model are refused with when all is read that is told of them, None if they are not."""
    try:
        described = stored_weights(model)
        described.shapes()
        described.packed_bytes()
        with described.open() as source:
            list(source)
    except ModelError as error:
        return str(error)
    return None


def _size_of(model: Path) -> int:
    files = [model] if is_gguf(model) else model.iterdir()
    return sum(path.stat().st_size for path in files)


def _read_confined(model: Path) -> str | None:
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 + _MAPPINGS) * _size_of(model) + _SPARE_ADDRESSES, most))
    try:
        return read_all(model)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


def _main() -> None:
    threading.stack_size(_STACK_BYTES)
    for line in sys.stdin:
        print(json.dumps(_read_confined(Path(json.loads(line)))), flush=True)


if __name__ == "__main__":
    _main()
