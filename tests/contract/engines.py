"""The engines that the contract is asked of. A new engine adds one entry to ENGINES, and nothing else."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dragoman.compose import engine_tools
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.base import Engine
from dragoman.engine.factory import EngineSetup
from dragoman.engine.remote.factory import LoadedRemote
from dragoman.engine.remote.factory import factory as remote_factory
from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.factory import LoadedRolling, factory
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.types import Picture
from tests.engine.fake_runner import FakeRunner
from tests.support import vllm_on_demo
from tests.support.letters import VOCAB_SIZE, letter_tools, text_of
from tests.support.near_nodes import OnNearNodes
from tests.support.near_replicas import OnNearReplica
from tests.support.other_servers import LLAMA_CPP, OURS_GENERATED, VLLM, OtherServer, sample_of
from tests.support.server_process import serve
from tests.support.toy_engine import ToyEngine

MAX_MODEL_LEN = 256


def _three_tokens(picture: Picture) -> tuple[int, ...]:
    """Whatever the picture."""
    return (1, 1, 1)


def _num_generated(engine: Engine) -> float:
    """As the engine itself counts."""
    return engine.stats().num_generated_tokens or 0


@dataclass(frozen=True)
class EngineUnderTest:
    """How to make one kind of engine, for sequences of at most MAX_MODEL_LEN tokens.

    `stands_for`: the tokens that stand for a picture in a prompt.

    `make`: a new engine, not started, that runs so many sequences at once (at least; an engine that runs fewer is free to).
    `prompt`: after it, greedy decoding that ignores end-of-sequence goes on for 150 tokens. `text_of`: what tokens write.
    `hottest`: a temperature at which no two sequences are drawn alike. `run`: runs a test, on an event loop of its own
    unless the engine shares something that stays on one. `package`: what has to be installed for it; `other`: the
    server that has to be named. `is_exact`: numbers do not depend on what else is computed, or is cached.
    `num_generated`: the tokens that whoever computes them has generated so far, also those that nobody took.
    `prepare`: does what takes long and is shared, before the first test.
    """

    name: str
    make: Callable[[int], Engine]
    prompt: tuple[int, ...]
    text_of: Callable[[Sequence[int]], str]
    eos_token_ids: frozenset[int] = frozenset({0})
    stands_for: Callable[[Picture], tuple[int, ...]] = _three_tokens
    hottest: float = 4.0
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    package: str = ""
    other: OtherServer | None = None
    is_exact: bool = True
    prepare: Callable[[], None] = lambda: None
    num_generated: Callable[[Any], float] = _num_generated


def _rolling_on_fake_runner(max_num_seqs: int, *, drafts: bool = False) -> Engine:
    runner = FakeRunner(num_blocks=400, vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
    return RollingEngine(
        runner,
        Sampler(VOCAB_SIZE),
        RollingConfig(max_num_seqs=max_num_seqs, speculation=SpeculationConfig(5, max_ngram_size=1)),
        [OwnTextProposer()] if drafts else [],
        letter_tools(),
    )


def _rolling_with_drafts(max_num_seqs: int) -> Engine:
    return _rolling_on_fake_runner(max_num_seqs, drafts=True)


@cache
def _demo() -> tuple[LoadedRolling, HfTokenizer]:
    """The bundled model, loaded once for all tests of this process: what is built on it are engines of their own."""
    options = {"dtype": "f32", "max_model_len": MAX_MODEL_LEN}
    return factory.load(EngineSetup(demo_model_dir(), options)), load_tokenizer(demo_model_dir())


def _rolling_on_demo_model(max_num_seqs: int) -> Engine:
    loaded, tokenizer = _demo()
    options = replace(loaded.options, max_num_seqs=max_num_seqs, kv_cache_gb=0.125)
    return replace(loaded, options=options).build(engine_tools(tokenizer), 0).engine


def _demo_text(token_ids: Sequence[int]) -> str:
    return _demo()[1].decode(token_ids, skip_special_tokens=True)


@cache
def _url(other: OtherServer | None) -> str:
    """The address of a second server with the bundled model, in a process that ends with this one."""
    stack = ExitStack()
    atexit.register(stack.close)
    if other is None:
        options = ("--max-model-len", str(MAX_MODEL_LEN), "--min-priority", "-10")
        ours = serve("--name", "demo", "--dtype", "f32", *options)
        return stack.enter_context(ours).base_url
    return stack.enter_context(other.running(MAX_MODEL_LEN))


@cache
def _upstream(other: OtherServer | None = None) -> LoadedRemote:
    """Such a server, asked once what it can do."""
    setup = EngineSetup(demo_model_dir(), {"upstream": (_url(other),)})
    with ThreadPoolExecutor(1) as thread:  # models are loaded on threads of their own
        return thread.submit(remote_factory.load, setup).result()


def _remote(max_num_seqs: int, other: OtherServer | None = None) -> Engine:
    loaded = _upstream(other)
    loaded = replace(loaded, options=replace(loaded.options, max_running=max_num_seqs))
    return loaded.build(engine_tools(loaded.tokenizer), 0).engine


def _num_generated_behind(other: OtherServer | None = None) -> float:
    """As the server behind the remote engine counts."""
    return sample_of(_url(other), OURS_GENERATED if other is None else other.generated)


LETTERS_PROMPT = (1, 2, 3, 1, 2)


def _prepare(other: OtherServer) -> None:
    _upstream(other)


def _in_front_of(other: OtherServer) -> EngineUnderTest:
    """The remote engine over a server of another project."""
    return EngineUnderTest(
        f"remote in front of {other.name}",
        lambda max_num_seqs: _remote(max_num_seqs, other),
        (419, 295, 1453, 1367, 42),
        _demo_text,
        frozenset({0, 2}),
        hottest=2.0,
        other=other,
        is_exact=False,
        prepare=lambda: _prepare(other),
        num_generated=lambda engine: _num_generated_behind(other),
    )


ENGINES = [
    EngineUnderTest("rolling", _rolling_on_fake_runner, LETTERS_PROMPT, text_of),
    EngineUnderTest("rolling with drafts", _rolling_with_drafts, LETTERS_PROMPT, text_of),
    EngineUnderTest(
        "rolling on the demo model",
        _rolling_on_demo_model,
        (419, 295, 1453, 1367, 42),
        _demo_text,
        frozenset({0, 2}),
    ),
    EngineUnderTest(
        "remote in front of a second dragoman",
        _remote,
        (419, 295, 1453, 1367, 42),
        _demo_text,
        frozenset({0, 2}),
        hottest=2.0,  # /v1 takes no more
        num_generated=lambda engine: _num_generated_behind(),
    ),
    _in_front_of(LLAMA_CPP),
    _in_front_of(VLLM),
    EngineUnderTest(
        "vllm",
        lambda max_num_seqs: vllm_on_demo.engine(max_num_seqs, MAX_MODEL_LEN),
        (419, 295, 1453, 1367, 42),
        _demo_text,
        frozenset({0, 2}),
        hottest=2.0,  # vLLM takes no more
        run=vllm_on_demo.run,
        package="vllm",
        prepare=lambda: vllm_on_demo.prepare(MAX_MODEL_LEN),
        num_generated=lambda engine: vllm_on_demo.num_generated(),
    ),
    EngineUnderTest(
        "on a replica",
        lambda max_num_seqs: OnNearReplica(_rolling_on_fake_runner(max_num_seqs)),
        LETTERS_PROMPT,
        text_of,
        num_generated=lambda engine: _num_generated(engine.engine),
    ),
    EngineUnderTest(
        "on a memory node",
        lambda max_num_seqs: OnNearNodes(_rolling_on_fake_runner(max_num_seqs)),
        LETTERS_PROMPT,
        text_of,
        num_generated=lambda engine: _num_generated(engine.near[0].engine),
    ),
    EngineUnderTest("toy", lambda max_num_seqs: ToyEngine(letter_tools(), MAX_MODEL_LEN), LETTERS_PROMPT, text_of),
]
