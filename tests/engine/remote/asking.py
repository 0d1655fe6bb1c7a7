"""An engine over fake upstreams, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from dragoman.compose import engine_tools
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.base import Engine
from dragoman.engine.factory import EngineSetup
from dragoman.engine.remote.factory import LoadedRemote, factory
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.types import EngineOutput, EngineRequest, SamplingParams
from tests.support.fake_upstream import FakeUpstream, listening

TOKENIZER: HfTokenizer = load_tokenizer(demo_model_dir())
PROMPT = "What is deep learning?"


def setup(*urls: str, secrets: dict[str, str] | None = None, **options: Any) -> EngineSetup:
    """What the factory is told."""
    return EngineSetup(demo_model_dir(), {"upstream": urls, **options}, secrets or {})


async def load(*urls: str, secrets: dict[str, str] | None = None, **options: Any) -> LoadedRemote:
    """What the factory finds out, on a thread as when a model is loaded."""
    return await asyncio.to_thread(factory.load, setup(*urls, secrets=secrets, **options))


@asynccontextmanager
async def remote(*upstreams: FakeUpstream, **options: Any) -> AsyncIterator[Engine]:
    """A started engine over upstreams that listen, which have forgotten what it has asked them to get to know them."""
    async with listening(*upstreams):
        loaded = await load(*(upstream.url for upstream in upstreams), **options)
        engine = loaded.build(engine_tools(TOKENIZER), 0).engine
        await engine.start()
        for upstream in upstreams:
            upstream.forget()
        try:
            yield engine
        finally:
            await engine.shutdown(0.0)


def request(max_tokens: int = 8, text: str = PROMPT, **values: Any) -> EngineRequest:
    """A greedy request, unless `values` (of the request if it has such, else of the sampling) say otherwise."""
    own = {
        name: values.pop(name) for name in list(values) if name in EngineRequest.__struct_fields__ and name != "seed"
    }
    sampling = SamplingParams(**{"temperature": 0.0, **values})
    made = EngineRequest(
        "r", tuple(TOKENIZER.encode(text)), sampling, max_tokens, seed=5, eos_token_ids=frozenset({0, 2})
    )
    return msgspec.structs.replace(made, **own)


def beginning(number: int) -> str:
    """A text that is longer than a block of tokens, another one for each number."""
    return f"This is text {number}. " * 12


async def outputs(engine: Engine, asked: EngineRequest) -> list[EngineOutput]:
    """All outputs."""
    async with aclosing(engine.generate(asked)) as stream:
        return [output async for output in stream]


async def text(engine: Engine, asked: EngineRequest, index: int = 0) -> str:
    """What one sequence says."""
    ids = [token for output in await outputs(engine, asked) if output.index == index for token in output.token_ids]
    return b"".join(map(TOKENIZER.token_bytes, ids)).decode()
