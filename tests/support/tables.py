"""One test for a table: rows that need no isolation run in one test, which tells every row that fails.

`@table` takes the place of `@pytest.mark.parametrize`; `Rows` is for loops. With `@table` each row has a `tmp_path`, a
`monkeypatch` and a `caplog` of its own; all rows share the other fixtures, so its rows must leave nothing behind in those.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

_Test = Callable[..., None]
_SHOWN = 80  # characters of a value in the name of a row


class RowsFailed(AssertionError):
    """Rows of a table fail; `failures` are their errors, those of tables within it too."""

    def __init__(self, message: str, failures: Iterable[BaseException]) -> None:
        super().__init__(message)
        self.failures: tuple[BaseException, ...] = tuple(
            leaf
            for failure in failures
            for leaf in (failure.failures if isinstance(failure, RowsFailed) else (failure,))
        )


class Rows:
    """Failures of the rows of a table, told together when the block ends."""

    def __init__(self) -> None:
        self._count = 0
        self._failures: list[tuple[str, BaseException]] = []

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._failures and error is None:
            told = "\n".join(f"- {name}: {_words(failure)}" for name, failure in self._failures)
            message = f"{len(self._failures)} of {self._count} rows fail:\n{told}"
            raise RowsFailed(message, (failure for _, failure in self._failures)) from self._failures[0][1]

    @contextmanager
    def row(self, *values: object) -> Iterator[None]:
        """A row named by `values`: whatever it raises is kept, and the loop goes on."""
        self._count += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self._failures.append((", ".join(_shown(value) for value in values), error))


def table(
    names: str | Sequence[str], rows: Iterable[Any], *, ids: Callable[[Any], Any] | Iterable[str] | None = None
) -> Callable[[_Test], _Test]:
    """A decorator as `pytest.mark.parametrize` is, but with one test for all rows."""
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [(row,) if isinstance(names, str) and len(columns) == 1 else tuple(row) for row in rows]
    named = _named(cases, ids)
    assert cases, "a table needs rows"
    assert all(len(values) == len(columns) for values in cases), f"every row must have {len(columns)} values"

    def decorate(test: _Test) -> _Test:
        parameters = inspect.signature(test).parameters

        @functools.wraps(test)
        def whole(*instance: Any, **fixtures: Any) -> None:
            with Rows() as told:
                for index, (name, values) in enumerate(zip(named, cases, strict=True)):
                    with told.row(*name), ExitStack() as stack:
                        test(*instance, **_isolated(fixtures, index, stack), **dict(zip(columns, values, strict=True)))

        left = [parameter for name, parameter in parameters.items() if name not in columns]
        assert len(left) == len(parameters) - len(columns), f"the test must take {', '.join(columns)}"
        whole.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        return whole

    return decorate


def _named(cases: Sequence[Sequence[Any]], ids: Callable[[Any], Any] | Iterable[str] | None) -> Sequence[Sequence[Any]]:
    if ids is None:
        return cases
    return [[ids(value) for value in values] for values in cases] if callable(ids) else [[name] for name in ids]


def _isolated(fixtures: dict[str, Any], index: int, stack: ExitStack) -> dict[str, Any]:
    isolated = dict(fixtures)
    if isinstance(directory := fixtures.get("tmp_path"), Path):
        isolated["tmp_path"] = directory / str(index)
        isolated["tmp_path"].mkdir()
    if isinstance(log := fixtures.get("caplog"), pytest.LogCaptureFixture):
        log.clear()
    if "monkeypatch" in fixtures:
        isolated["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
    return isolated


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _words(error: BaseException) -> str:
    """The place in the tests where a row fails, and what the error says."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name.startswith("test_")
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    return f"{place}{type(error).__name__}: {error}".replace("\n", "\n    ")
