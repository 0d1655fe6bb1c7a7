"""The engines that the contract is asked of. A new engine adds one entry to ENGINES, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dragoman.compose import engine_tools
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.base import Engine
from dragoman.engine.factory import EngineSetup
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.factory import LoadedRolling, factory
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.prompt_lookup import PromptLookupProposer
from dragoman.engine.rolling.speculate.proposer import Proposer, SpeculationConfig
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.types import Picture
from tests.engine.fake_runner import FakeRunner
from tests.support.letters import VOCAB_SIZE, letter_tools, text_of
from tests.support.near_replicas import OnNearReplica
from tests.support.toy_engine import ToyEngine

MAX_MODEL_LEN = 256


def _three_tokens(picture: Picture) -> tuple[int, ...]:
    """Whatever the picture."""
    return (1, 1, 1)


@dataclass(frozen=True)
class EngineUnderTest:
    """How to make one kind of engine, for sequences of at most MAX_MODEL_LEN tokens.

    `stands_for`: the tokens that stand for a picture in a prompt.

    `make`: a new engine, not started, that runs so many sequences at once (at least; an engine that runs fewer is free to).
    `prompt`: after it, greedy decoding that ignores end-of-sequence goes on for 150 tokens. `text_of`: what tokens write.
    """

    name: str
    make: Callable[[int], Engine]
    prompt: tuple[int, ...]
    text_of: Callable[[Sequence[int]], str]
    eos_token_ids: frozenset[int] = frozenset({0})
    stands_for: Callable[[Picture], tuple[int, ...]] = _three_tokens


def _rolling_on_fake_runner(max_num_seqs: int, proposer: Proposer | None = None) -> Engine:
    runner = FakeRunner(num_blocks=400, vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
    return RollingEngine(
        runner, Sampler(VOCAB_SIZE), RollingConfig(max_num_seqs=max_num_seqs), proposer, letter_tools()
    )


def _rolling_with_drafts(max_num_seqs: int) -> Engine:
    return _rolling_on_fake_runner(max_num_seqs, PromptLookupProposer(SpeculationConfig(max_ngram_size=1)))


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


LETTERS_PROMPT = (1, 2, 3, 1, 2)

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
        "on a replica",
        lambda max_num_seqs: OnNearReplica(_rolling_on_fake_runner(max_num_seqs)),
        LETTERS_PROMPT,
        text_of,
    ),
    EngineUnderTest("toy", lambda max_num_seqs: ToyEngine(letter_tools(), MAX_MODEL_LEN), LETTERS_PROMPT, text_of),
]
