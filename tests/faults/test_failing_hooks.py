"""An operator's formatter or handler that raises: its calls fail, in LMI's words, and nobody else notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.server.api import Dialects
from dragoman.server.apis.lmi.hooks.threads import HookPool
from dragoman.server.apis.lmi.operator.handlers import with_handler
from tests.faults.neighbours import check_told, victims
from tests.hooks.handling import runtime_of
from tests.hooks.hooked import hooked_dialects, loaded
from tests.support.every_api import name_of_dialect
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects
from tests.support.small_server import CALLS, LetterRunner, Parts, id_of, run, small_server

READS = """
@input_formatter
def read(item, **kwargs):
    raise ValueError("cannot read this")
"""
WRITES = """
@output_formatter
def write(output: RequestOutput):
    token, first, last = output.sequences[0].get_next_token()
    if {condition}:
        raise ValueError("cannot write this")
    return token.text
"""
HANDLES = """
def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    raise ValueError("cannot answer this")
"""
STREAMS = """
def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    return Output().add_stream_content(words())


def words():
    yield "one"
    raise ValueError("cannot answer this")
"""


LMI = frozenset({"lmi", "lmi.chat", "lmi.completions"})
"""The dialects of LMI's routes: all bodies there are an input formatter's, or a handler's, to read."""

WRITTEN = frozenset({"lmi"})
"""Those whose answers are an output formatter's to write."""


def told_on_lmis_routes(dialects: Dialects, words: str, failing: frozenset[str] = LMI) -> None:
    """Assert that the calls of the `failing` dialects fail with these words, and that all others are answered."""
    of_lmi = {name: dialect for name, dialect in dialects.items() if name in LMI}

    async def test() -> None:
        async with small_server(Parts(LetterRunner(num_blocks=2000), dialects=of_lmi)) as server:
            for calling, call in zip(CALLS, await victims(server, CALLS), strict=True):
                if name_of_dialect(calling) in failing:
                    check_told(calling, call, words)
                else:
                    assert (call.status < 300, call.is_complete) == (True, True), id_of(calling)

    run(test)


@pytest.mark.parametrize(
    ("source", "words", "failing"),
    [
        (READS, "cannot read this", LMI),
        (WRITES.format(condition="first"), "cannot write this", WRITTEN),
        (WRITES.format(condition="last"), "cannot write this", WRITTEN),
    ],
    ids=["input", "first token", "last token"],
)
def test_a_formatter_that_raises(source: str, words: str, failing: frozenset[str], tmp_path: Path) -> None:
    told_on_lmis_routes(hooked_dialects(loaded(tmp_path, source), HookPool(PATIENCE_S).run), words, failing)


@pytest.mark.parametrize("source", [HANDLES, STREAMS], ids=["at first", "in its answer"])
def test_a_handler_that_raises(source: str, tmp_path: Path) -> None:
    runtime, _ = runtime_of(tmp_path, source)
    of_lmi = {name: dialect for name, dialect in real_dialects().items() if name in LMI}
    told_on_lmis_routes(with_handler(of_lmi, runtime), "cannot answer this")
