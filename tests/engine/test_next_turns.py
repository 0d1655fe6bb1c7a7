"""On real kernels: the next turn of a chat computes what is new, and gets every bit that it gets when all is computed.

The blocks that it begins with were computed token by token, as an answer, also from guesses, and its reference computes them
as a prompt. One small model of each kind of layer and cache, in f32 and with packed weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dragoman.engine.rolling.config import SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.needs import limits_of, prefix_cache_mode
from dragoman.engine.rolling.options import RollingOptions
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.kernels import presence
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.ir.read import read_ir
from dragoman.models.profile import Processor, computes_alike, kernel_profile, this_processor
from dragoman.types import EngineRequest
from tests.engine.naive import Collector, make_request
from tests.support.exported_model import write_exported
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.hybrid_checkpoint import write_hybrid, write_scanning, write_stateful
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tiers import width

NUM_IDS = 300  # of every vocabulary
SHAPE = RandomShape("kernels", seed=6, hidden_size=256, head_size=64, intermediate_size=512, head_std=0.3)


def _family(name: str) -> Callable[[Path], Path]:
    return lambda directory: write_family_checkpoint(name, directory)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "plain": lambda directory: write_checkpoint(SHAPE, directory),
    "windows": _family("gemma3_text"),
    "sinks": _family("gpt_oss"),
    "slopes": _family("bloom"),
    "caps": _family("gemma2"),
    "latent": _family("deepseek_v2"),
    "shared": _family("gemma4"),
    "experts": _family("qwen3_moe"),
    "convolutions": write_hybrid,
    "states": write_stateful,
    "scans": write_scanning,
    "exported": lambda directory: write_exported("gemma3_text", directory),
}
F32, INT8, U8 = ModelOptions("f32"), ModelOptions("int8"), ModelOptions("int8", "u8")
KINDS = [
    *((name, options) for name in WRITERS for options in (F32, INT8, U8)),
    *(("plain", options) for options in (ModelOptions("f32", "f16"), ModelOptions("int4"), ModelOptions("bf16"))),
    ("states", ModelOptions("int8", "f16")),
    ("convolutions", ModelOptions("f32", takes_back=True)),
]
FEW_KINDS = [
    *(
        ("plain", ModelOptions("f32", "f16")),
        ("windows", INT8),
        ("sinks", U8),
        ("states", ModelOptions("int8", "f16")),
        ("scans", F32),
    ),
    ("exported", F32),
]


def _name(value: object) -> str:
    return f"{value.weight_type}-{value.kv_type}" if isinstance(value, ModelOptions) else str(value)


@pytest.fixture(scope="module", params=width(KINDS, FEW_KINDS), ids=lambda param: "-".join(map(_name, param)))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    name, options = request.param
    if options.kv_type == "f16" and this_processor().is_arm:
        pytest.skip("there is no such cache on Arm")
    loaded = load_model(WRITERS[name](tmp_path_factory.mktemp("model")), options)
    if not computes_alike(loaded.facts, loaded.profile):
        pytest.skip("here the kernels of decoding round otherwise than those of prompts")
    return loaded


needs_library = pytest.mark.skipif(bool(presence.why_not()), reason="there is no library of kernels")


class Answer(NamedTuple):
    """What a client could see of a request, and how much of its prompt was found."""

    token_ids: list[list[int]]
    logprobs: list[list[float]]
    num_cached: int


class Engine:
    """An engine with the limits that its factory gives it."""

    def __init__(self, loaded: LoadedModel, max_batch_tokens: int = 512, prefix_cache: str = "auto") -> None:
        options = RollingOptions(max_batch_tokens=max_batch_tokens, max_num_seqs=8, prefix_cache=prefix_cache)
        limits = limits_of(options, loaded.facts, loaded.profile, 1024)
        self._runner = OpenVinoRunner(loaded, 160)
        guesses = loaded.options.takes_back or not loaded.facts.convolution_layers
        limits = replace(limits, speculation=SpeculationConfig(num_assistant_tokens=4, max_ngram_size=1, max_batch=8))
        self.core = EngineCore(
            self._runner, Sampler(self._runner.vocab_size), limits, [OwnTextProposer()] if guesses else []
        )

    def answers(self, requests: Sequence[EngineRequest]) -> list[Answer]:
        """Of requests that come together."""
        collector = Collector(self.core)
        for key, request in enumerate(requests):
            collector.add(key, request)
        collector.run()
        assert not collector.errors
        found = []
        for key, request in enumerate(requests):
            sequences = [collector.sequence(key, index) for index in range(request.sampling.n)]
            ids, logprobs = [one.token_ids for one in sequences], [one.logprobs for one in sequences]
            found.append(Answer(ids, logprobs, collector.outputs[key][0].num_cached_tokens))
        return found


def turn(texts: Sequence[list[int]], number: int) -> list[EngineRequest]:
    """What each of the chats asks: one of few tokens, which are easy to guess; greedy, drawn, two answers, and beams."""
    kinds: Sequence[dict[str, object]] = (
        {"allowed_token_ids": tuple(range(40, 44))},
        {"temperature": 0.9},
        {"temperature": 1.0, "n": 2},
        {"num_beams": 2},
    )
    return [
        make_request(text, 34, seed=number, name=f"{number}.{index}", ignore_eos=True, logprobs=0, **kinds[index])
        for index, text in enumerate(texts)
    ]


@pytest.mark.varies("sums are of other kernels on other processors")
def test_the_next_turn_computes_what_is_new_and_every_bit_is_as_computed_afresh(loaded: LoadedModel) -> None:
    stream = np.random.RandomState(3)
    chat, fresh = Engine(loaded, 70), Engine(loaded, prefix_cache="off")
    texts = [stream.randint(1, NUM_IDS, size).tolist() for size in (20, 45, 64, 81)]
    num_known = [0] * len(texts)
    found: set[tuple[int, ...]] = set()
    for number in range(2):
        requests = turn(texts, number)
        answers = chat.answers(requests)
        assert [answer.num_cached for answer in answers] == num_known
        assert [answer._replace(num_cached=0) for answer in answers] == fresh.answers(requests)
        found.update(tuple(tokens) for answer in answers for tokens in answer.token_ids)
        texts = [[*text, *answer.token_ids[0]] for text, answer in zip(texts, answers, strict=True)]
        num_known = [(len(text) - 1) // 32 * 32 for text in texts]  # the last token was not computed
        texts = [[*text, *stream.randint(1, NUM_IDS, 9).tolist()] for text in texts]
    assert len(found) > 2 * len(texts), "texts decide"


@needs_library
def test_where_decoding_rounds_otherwise_answers_are_not_found_again_unless_asked_for(tmp_path: Path) -> None:
    facts = read_ir(write_exported("gemma3_text", tmp_path / "plain"), F32).facts
    x86 = Processor("", ("BF16",))
    cases = {
        kernel_profile(INT8, x86): "all",
        kernel_profile(F32, x86): "all",
        kernel_profile(replace(INT8, kernels="openvino"), x86): "prompt",
        kernel_profile(INT8, replace(x86, has_tiles=True)): "prompt",
        kernel_profile(replace(INT8, kernels="own"), replace(x86, has_tiles=True)): "prompt",
        kernel_profile(INT8, replace(x86, is_arm=True)): "prompt",
        kernel_profile(INT8, x86, is_exported=True): "prompt",
        kernel_profile(F32, x86, is_exported=True): "all",
    }
    found = {profile: prefix_cache_mode(RollingOptions(), facts, profile) for profile in cases}
    assert found == cases
    states = read_ir(write_exported("lfm2", tmp_path / "states"), F32)
    assert prefix_cache_mode(RollingOptions(), states.facts, states.profile) == "prompt"
    for mode in ("all", "prompt", "off"):
        assert {prefix_cache_mode(RollingOptions(prefix_cache=mode), facts, profile) for profile in cases} == {mode}
