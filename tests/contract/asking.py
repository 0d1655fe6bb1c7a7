"""Requests to an engine, and what came back, for the contract's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from dragoman.engine.base import Engine
from dragoman.errors import UnsupportedFeature
from dragoman.types import EngineOutput, EngineRequest, FinishReason, Logprob, PromptLogprob, SamplingParams
from tests.contract.engines import EngineUnderTest
from tests.support.patience import PATIENCE_S, until

_SAMPLING = {one.name for one in msgspec.structs.fields(SamplingParams)}


def asking(under_test: EngineUnderTest, max_tokens: int = 8, **values: Any) -> EngineRequest:
    """A greedy request that ignores end-of-sequence, unless `values` (of request or sampling) say otherwise."""
    sampling = {name: values.pop(name) for name in list(values) if name in _SAMPLING - {"seed"}}
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **sampling})
    request = EngineRequest(
        "r", under_test.prompt, params, max_tokens, values.pop("seed", 7), eos_token_ids=under_test.eos_token_ids
    )
    return msgspec.structs.replace(request, **values)


@dataclass
class Sequence:
    """One sequence of an answer, folded from its outputs."""

    token_ids: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[Logprob]] = field(default_factory=list)
    cumulative_logprob: float | None = None


@dataclass
class Answer:
    """What an engine made of a request."""

    sequences: list[Sequence]
    outputs: list[EngineOutput] = field(default_factory=list, repr=False, compare=False)

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each sequence."""
        return [sequence.token_ids for sequence in self.sequences]

    @property
    def reasons(self) -> list[FinishReason | None]:
        """Why each sequence ended."""
        return [sequence.reason for sequence in self.sequences]

    @property
    def prompt_logprobs(self) -> list[PromptLogprob | None] | None:
        """Those of the first output; no other may have any."""
        assert all(output.prompt_logprobs is None for output in self.outputs[1:])
        return self.outputs[0].prompt_logprobs


async def collect(engine: Engine, request: EngineRequest) -> Answer:
    """The whole answer; every output has its place in it."""
    answer = Answer([Sequence() for _ in range(request.sampling.n)])
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            answer.outputs.append(output)
            assert output.request_id == request.request_id
            sequence = answer.sequences[output.index]
            assert sequence.reason is None, "an output after the finishing one"
            sequence.token_ids += output.token_ids
            sequence.logprobs += output.logprobs or []
            sequence.tops += output.top_logprobs or []
            sequence.reason = output.finish_reason
            sequence.cumulative_logprob = output.cumulative_logprob
    assert all(sequence.reason is not None for sequence in answer.sequences), "a sequence without an end"
    return answer


def is_able(engine: Engine, request: EngineRequest) -> bool:
    """Whether the engine says that it can do what the request asks."""
    try:
        engine.capabilities.check(request)
    except UnsupportedFeature:
        return False
    return True


def assert_same(answer: Answer, expected: Answer, under_test: EngineUnderTest) -> None:
    """Two answers are the same, as exactly as the engine computes."""
    if under_test.is_exact:
        assert answer == expected
        return
    assert (answer.tokens, answer.reasons) == (expected.tokens, expected.reasons)
    for one, other in zip(answer.sequences, expected.sequences, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


async def collect_if(is_able: bool, engine: Engine, request: EngineRequest) -> Answer | None:
    """The answer of an engine that says it is able, None once the request was refused by one that is not."""
    if is_able:
        return await collect(engine, request)
    with pytest.raises(UnsupportedFeature):
        await collect(engine, request)
    return None


@asynccontextmanager
async def running(under_test: EngineUnderTest, max_num_seqs: int = 8) -> AsyncIterator[Engine]:
    """A started engine, shut down afterwards; nothing of it may be left busy."""
    engine = under_test.make(max_num_seqs)
    await engine.start()
    try:
        yield engine
        await until_idle(engine)
    finally:
        await engine.shutdown(0.0)


async def until_idle(engine: Engine) -> None:
    """Return once nothing runs, waits or holds blocks."""

    def is_idle() -> bool:
        health = engine.health()
        return not (health.num_running or health.num_waiting or health.num_used_blocks)

    await until(is_idle)


_RUN: list[Callable[[Coroutine[Any, Any, None]], None]] = [asyncio.run]


def run_on(how: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """From now on run tests so: as the engine that is asked wants it."""
    _RUN[0] = how


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, which fails if it takes too long."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test

    _RUN[0](bounded())


def first_output(outputs: object) -> asyncio.Task[EngineOutput]:
    """The first output, asked for: the request is on its way once the event loop has turned."""
    return asyncio.ensure_future(anext(cast(AsyncIterator[EngineOutput], outputs)))
