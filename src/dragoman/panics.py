"""Turns panics of libraries written in Rust into exceptions, on any thread.

Python sees a panic as a BaseException, like the end of the process; it would pass everything that catches failures.
"""

from __future__ import annotations

from types import TracebackType


class Panicked(Exception):
    """A library stopped in the middle; only its present work is lost."""


class CatchPanics:
    """A cheap context manager that raises `Panicked` in place of a panic."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and kind.__module__ == "pyo3_runtime":  # each library has its own type of panics
            raise Panicked(" ".join(str(error).split())) from error


CATCH_PANICS = CatchPanics()


def failure_of(error: BaseException) -> Exception:
    """The failure of a request: `error`, or `Panicked` for a panic. Raises: `error` if it ends a task or the process."""
    try:
        with CATCH_PANICS:
            raise error
    except Exception as failure:
        return failure
