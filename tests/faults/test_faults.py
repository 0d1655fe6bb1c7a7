"""Faults below a call, put in through the parts that a server is made of: whose fault it is answers, nobody else notices.

Victims are calls of every API; neighbours run beside them in the same steps, and their tokens are compared with those of a
server that does nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dragoman.engine.base import EngineTools
from dragoman.engine.rolling import core
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampled, Sampler
from dragoman.engine.rolling.sample.sampler_state import FloatArray, SamplerState
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import AnswerWatch, EngineRequest, Grammar, TokenMasker
from tests.engine.forward_gate import ForwardGate
from tests.faults.neighbours import (
    MARK,
    asking,
    check_told,
    neighbours,
    told,
    undisturbed,
    victims,
    with_grammars,
    with_mark,
)
from tests.support.byte_tokenizer import VOCAB_SIZE, ByteTokenizer
from tests.support.every_api import Calling, kind_of, name_of_dialect
from tests.support.maskers import ByForks
from tests.support.small_server import (
    CALLS,
    TEMPLATE,
    LetterRunner,
    Parts,
    byte_tools,
    run,
    small_server,
)

CHATS = [calling for calling in CALLS if name_of_dialect(calling).endswith("chat")]


# --- texts -------------------------------------------------------------------------------------------------------------


class FailingTokenizer(ByteTokenizer):
    """Fails for texts with the mark."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if chr(MARK) in text:
            raise RuntimeError("no such merge")
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_a_tokenizer_that_fails() -> None:
    told(Parts(tokenizer=FailingTokenizer()), "Internal server error", with_mark())


def test_a_template_that_fails() -> None:
    failing = ChatTemplate("{{ raise_exception('no roles') }}" + TEMPLATE, special_tokens={})
    told(Parts(template=failing), "no roles", CHATS)


class FailingPieces(ByteTokenizer):
    """Knows no bytes of the letter q."""

    def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
        if token_id == ord("q"):
            raise RuntimeError("no such piece")
        return super().token_bytes(token_id, at_start=at_start)


def test_tokens_that_cannot_be_written() -> None:
    async def test() -> None:
        async with small_server(Parts(tokenizer=FailingPieces(), tools=byte_tools())) as server:
            num_failed = 0
            for calling, call in zip(CALLS, await victims(server, CALLS), strict=True):
                if b"Internal server error" in call.body or call.is_cut:
                    check_told(calling, call, "Internal server error")
                    num_failed += 1
                else:
                    assert call.status < 300, "its answer had no such letter"
            assert num_failed > len(CALLS) // 2

    run(test)


# --- steps -------------------------------------------------------------------------------------------------------------


class FailingSampler(Sampler):
    """Fails for rows of requests with the mark."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self._bad: set[int] = set()

    def new_state(
        self,
        request: EngineRequest,
        sequence_index: int,
        masker: TokenMasker | None = None,
        watch: AnswerWatch | None = None,
    ) -> SamplerState:
        state = super().new_state(request, sequence_index, masker, watch)
        if MARK in request.prompt_ids:
            self._bad.add(id(state))
        return state

    def sample(self, logits: FloatArray, states: Sequence[SamplerState]) -> Sampled:
        if any(id(state) in self._bad for state in states):
            raise FloatingPointError("no number")
        return super().sample(logits, states)


def test_a_sampler_that_fails_for_some_requests() -> None:
    sampler = FailingSampler(VOCAB_SIZE)
    told(Parts(LetterRunner(num_blocks=2000), sampler), "generation failed: FloatingPointError: no number", with_mark())


class FailingRunner(LetterRunner):
    """Fails in every forward with the mark in it."""

    def forward(self, batch: ForwardBatch) -> Any:
        if MARK in batch.input_ids.tolist():
            raise MemoryError("no room")
        return super().forward(batch)


@pytest.mark.parametrize("max_num_seqs", [64, 5])
def test_a_forward_that_fails_for_some_requests(max_num_seqs: int) -> None:
    parts = Parts(FailingRunner(num_blocks=2000), config=RollingConfig(max_num_seqs=max_num_seqs))
    told(parts, "generation failed: MemoryError: no room", with_mark())


class FailingCopies(LetterRunner):
    """Fails in every copy of a block with the mark in it."""

    def __init__(self) -> None:
        super().__init__(num_blocks=2000)
        self._bad: set[int] = set()

    def forward(self, batch: ForwardBatch) -> Any:
        for row, (first, last) in enumerate(pairwise(batch.subsequence_begins)):
            table = batch.block_indices[slice(*batch.block_indices_begins[row : row + 2])]
            for token_id, position in zip(batch.input_ids[first:last], batch.position_ids[first:last], strict=True):
                block, offset = int(table[position // self.block_size]), position % self.block_size
                if token_id == MARK:
                    self._bad.add(block)
                elif not offset:
                    self._bad.discard(block)  # another sequence has it now
        return super().forward(batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        if not self._bad.isdisjoint(source for source, _ in pairs):
            raise MemoryError("no room")
        super().copy_blocks(pairs, kind)


def copying() -> list[Calling]:
    """Calls whose sequences part in the block that has the last token of their prompts."""
    several: dict[str, list[dict[str, Any]]] = {
        "lmi": [{"n": 2, "do_sample": True}, {"num_beams": 2}],
        "tgi": [{"best_of": 2, "do_sample": True}],
        "chat": [{"n": 2, "temperature": 1.0}],
        "completions": [{"n": 2, "temperature": 1.0}, {"best_of": 2, "use_beam_search": True}],
    }
    kinds = ((calling, kind_of(calling)) for calling in CALLS)
    return [
        asking(calling, **parameters)
        for calling, kind in kinds
        if b'"stream": false' in calling.http.body
        for parameters in several.get(kind, ())
    ]


def test_copies_of_blocks_that_fail_for_some_requests() -> None:
    runner = FailingCopies()
    told(Parts(runner), "generation failed: MemoryError: no room", copying())
    assert runner.num_copies, "the neighbours made copies"


@pytest.mark.parametrize("what", ["forward", "copy_blocks", "logits"])
def test_what_fails_once_in_a_while_fails_nobody(what: str) -> None:
    class Flaky(LetterRunner):
        def __init__(self) -> None:
            super().__init__(num_blocks=2000)
            self.num_calls = self.num_failures = 0

        def fails(self, name: str) -> bool:
            self.num_calls += name == what
            fails = name == what and self.num_calls % 400 == 3
            self.num_failures += fails
            return fails

        def forward(self, batch: ForwardBatch) -> Any:
            if self.fails("forward"):
                raise RuntimeError("for once")
            logits = super().forward(batch)
            return logits[:, :7] if self.fails("logits") else logits

        def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
            if self.fails("copy_blocks"):
                raise RuntimeError("for once")
            super().copy_blocks(pairs, kind)

    async def test() -> None:
        runner = Flaky()
        async with small_server(Parts(runner)) as server:
            for call in await victims(server, CALLS):
                assert call.status < 300
        assert runner.num_failures

    run(test)


def test_a_cache_that_is_too_small_for_all_makes_them_wait_and_fails_nobody() -> None:
    async def test() -> None:
        runner = LetterRunner(num_blocks=24)
        async with small_server(Parts(runner)) as server:
            for call in await victims(server, CALLS):
                assert call.status < 300
            assert server.engine.stats().num_preemptions

    run(test)


# --- grammars ----------------------------------------------------------------------------------------------------------


class FailingMasker(ByForks):
    """A grammar's state that is lost after its first mask."""

    is_finished = False

    def __init__(self) -> None:
        self._num_masks = 0

    def fork(self) -> TokenMasker:
        return FailingMasker()

    def fill_mask(self, bitmask_row: Any) -> None:
        self._num_masks += 1
        if self._num_masks > 1:
            raise RuntimeError("the grammar's state is lost")
        bitmask_row[:] = np.uint32(0xFFFFFFFF)

    def advance(self, token_id: int) -> bool:
        return True

    def validate(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)


def failing_compile(grammar: Grammar) -> TokenMasker:
    raise RecursionError("too deep")


@pytest.mark.parametrize(
    ("compile_grammar", "words"),
    [
        (failing_compile, "Internal server error"),
        (lambda grammar: FailingMasker(), "the grammar's state is lost"),
        (byte_tools(max_mask_s=1e-6).compile_grammar, "took more than 1e-06 s of a processor (option.max_grammar_s)"),
    ],
    ids=["compile", "mask", "time"],
)
def test_a_grammar_that_fails(compile_grammar: Callable[[Grammar], TokenMasker], words: str) -> None:
    tools = EngineTools(compile_grammar, byte_tools().watch_stops)
    told(Parts(LetterRunner(num_blocks=2000), tools=tools), words, with_grammars())


# --- clocks and the loop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_ends_no_request_and_keeps_none(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines are durations: what the clock on the wall says while a request waits or runs does not matter."""
    now = time.time

    async def test() -> None:
        gate = ForwardGate()
        async with small_server(Parts(LetterRunner(before_forward=gate, num_blocks=200))) as server:
            calls = [server.call(calling, None, ("x-request-timeout-ms", "60000")) for calling in CALLS]
            while server.engine.num_open < len(CALLS):  # noqa: ASYNC110
                await asyncio.sleep(0)
            gate.pass_some(3)  # from here on: a short answer might end while later calls come in
            await gate.reached()
            monkeypatch.setattr(time, "time", lambda: now() + jump_s)
            monkeypatch.setattr(core, "time", lambda: now() + jump_s)
            gate.open()
            for call in calls:
                assert (await call.ended()).status < 300
            late = server.call("/v1/completions", ENDLESS, ("x-request-timeout-ms", "50"))
            assert b"0.05 s that the client allows" in (await late.ended()).body
            await server.settle()

    run(test)


ENDLESS = {"model": "fake", "prompt": "abc", "max_tokens": 400, "ignore_eos": True}


def test_a_loop_that_is_held_loses_nothing() -> None:
    async def test() -> None:
        expected = await undisturbed()
        async with small_server(Parts(LetterRunner(num_blocks=2000))) as server:
            beside = [asyncio.create_task(server.collect(request)) for request in neighbours()]
            calls = [server.call(calling) for calling in CALLS]
            left, gone = server.call(CALLS[0]), server.call(CALLS[1])
            for _ in range(5):
                await asyncio.sleep(0)
            gone.leave()
            time.sleep(0.5)  # noqa: ASYNC251 - that is the fault
            left.leave()
            for call in calls:
                assert (await call.ended()).status < 300
            for call in (left, gone):
                await call.ended()
            assert [await one for one in beside] == expected
            await server.settle()

    run(test)
