"""On real kernels and a real store: behind blocks from disk, from memory or computed, every bit of an answer is the same.

One small model of each kind of cache: plain, with windows, latent, with rows of convolutions, with states, exported; in f32,
and with packed weights in the types of cache that go with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dragoman.engine.rolling.config import PrefixCacheMode, RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.stored_prefixes.store import Storage, StoredModel
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import computes_alike
from dragoman.prefix_store import BlockStore
from dragoman.types import EngineRequest
from tests.engine.naive import Collector, make_request
from tests.support.cpu import EXACT_PACKED
from tests.support.exported_model import write_exported
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.hybrid_checkpoint import write_hybrid, write_stateful
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tiers import width

NUM_IDS = 300  # of every vocabulary
SHAPE = RandomShape("kernels", seed=6, hidden_size=256, head_size=64, intermediate_size=512, head_std=0.3)
WRITERS: dict[str, Callable[[Path], Path]] = {
    "plain": lambda directory: write_checkpoint(SHAPE, directory),
    "windows": lambda directory: write_family_checkpoint("gemma3_text", directory),
    "latent": lambda directory: write_family_checkpoint("deepseek_v2", directory),
    "convolutions": write_hybrid,
    "states": write_stateful,
    "exported windows": lambda directory: write_exported("gemma3_text", directory),
    "exported states": lambda directory: write_exported("lfm2", directory),
}
F32, INT8, U8 = ModelOptions("f32"), ModelOptions("int8"), ModelOptions("int8", "u8")
KINDS = [
    *((name, options) for name in WRITERS if not name.startswith("exported") for options in (F32, INT8, U8)),
    ("exported windows", F32),
    ("exported states", F32),
    ("plain", ModelOptions("bf16")),
    ("convolutions", ModelOptions("f32", takes_back=True)),
]
FEW_KINDS = [("plain", U8), ("windows", INT8), ("latent", F32), ("states", F32), ("convolutions", INT8)]


class Answer(NamedTuple):
    """What a client could see of a request, and where its prompt came from."""

    token_ids: list[list[int]]
    logprobs: list[list[float]]
    num_cached: int
    num_stored: int


def _name(value: object) -> str:
    return f"{value.weight_type}-{value.kv_type}" if isinstance(value, ModelOptions) else str(value)


@pytest.fixture(scope="module", params=width(KINDS, FEW_KINDS), ids=lambda param: "-".join(map(_name, param)))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    name, options = request.param
    if options.weight_type not in ("f32", "bf16") and not EXACT_PACKED:
        pytest.skip("on this processor the kernels of packed weights round by how many tokens a step has")
    return load_model(WRITERS[name](tmp_path_factory.mktemp("model")), options)


def conversation() -> list[EngineRequest]:
    """Turns that go on behind the one before, of several sequences and drawn ones; and a prompt beside them."""
    stream = np.random.RandomState(3)
    tokens: list[int] = []
    turns = []
    kinds: Sequence[dict[str, float | int]] = ({}, {"temperature": 0.9}, {"temperature": 1.0, "n": 2}, {"num_beams": 2})
    for number, length in enumerate((150, 40, 70, 33)):
        tokens += stream.randint(1, NUM_IDS, length).tolist()
        kind = {"logprobs": 0, **kinds[number]}
        turns.append(make_request(tokens, 12, seed=number, name=f"r{number}", ignore_eos=True, **kind))
    other = stream.randint(1, NUM_IDS, 45).tolist()
    return [*turns, make_request(other, 12, name="other", ignore_eos=True, logprobs=0)]


REQUESTS = conversation()


class Engine:
    """An engine over a store, or none, from its start to its end."""

    def __init__(
        self,
        loaded: LoadedModel,
        directory: Path | None,
        num_blocks: int = 64,
        max_batch_tokens: int = 512,
        mode: PrefixCacheMode = "prompt",
    ) -> None:
        self._runner = OpenVinoRunner(loaded, num_blocks)
        storage = None
        if directory is not None:
            storage = Storage(BlockStore.open(directory, 1 << 28), self._runner, StoredModel("model"))
        config = RollingConfig(
            max_batch_tokens,
            max_num_seqs=8,
            assumed_output_tokens=1,
            prefix_cache="off" if directory is None else mode,
            has_states=bool(loaded.facts.state_layers) and not computes_alike(loaded.facts, loaded.profile),
            repeats_steps=False,
        )
        self.core = EngineCore(self._runner, Sampler(self._runner.vocab_size), config, storage=storage)

    def answers(self, requests: Sequence[EngineRequest]) -> list[Answer]:
        """Of requests that come together."""
        collector = Collector(self.core)
        for key, request in enumerate(requests):
            collector.add(key, request)
        collector.step()
        while self.core.has_work() or self.core.is_reading:
            self.core.inbox.wait(self.core.has_work)
            collector.step()
        assert not collector.errors
        found = []
        for key, request in enumerate(requests):
            sequences = [collector.sequence(key, index) for index in range(request.sampling.n)]
            first = collector.outputs[key][0]
            ids, logprobs = [one.token_ids for one in sequences], [one.logprobs for one in sequences]
            found.append(Answer(ids, logprobs, first.num_cached_tokens, first.num_stored_tokens))
        return found

    def close(self) -> None:
        """Write what is left, and end."""
        self.core.close()
        self._runner.close()


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> list[Answer]:
    """Computed, each by itself."""
    engine = Engine(loaded, None)
    found = [engine.answers([request])[0] for request in REQUESTS]
    engine.close()
    return found


def told(answers: Sequence[Answer]) -> list[tuple[list[list[int]], list[list[float]]]]:
    """What clients see of them."""
    return [(answer.token_ids, answer.logprobs) for answer in answers]


@pytest.mark.varies("sums are of other kernels on other processors")
def test_behind_blocks_from_disk_every_bit_is_as_computed(
    loaded: LoadedModel, alone: list[Answer], tmp_path: Path
) -> None:
    first = Engine(loaded, tmp_path / "store")
    assert told(first.answers(REQUESTS[:1])) == told(alone[:1])
    first.close()

    second = Engine(loaded, tmp_path / "store")
    again = [second.answers([request])[0] for request in REQUESTS]
    assert told(again) == told(alone)
    assert again[0].num_stored == again[0].num_cached == 128
    assert again[1].num_stored == 0, "it was in memory"
    assert again[1].num_cached == 128
    second.close()

    third = Engine(loaded, tmp_path / "store", max_batch_tokens=64)
    together = third.answers(REQUESTS)
    assert told(together) == told(alone)
    assert [answer.num_stored for answer in together] == [128, 160, 256, 288, 32]
    assert third.core.stats.totals().num_stored_hits == 128 + 160 + 256 + 288 + 32
    third.close()


@pytest.mark.varies("sums are of other kernels on other processors")
def test_the_next_turn_goes_on_behind_an_answer_from_disk(
    loaded: LoadedModel, alone: list[Answer], tmp_path: Path
) -> None:
    if not computes_alike(loaded.facts, loaded.profile):
        pytest.skip("here answers are not reused")
    first = Engine(loaded, tmp_path / "store", mode="all")
    [answer] = first.answers(REQUESTS[:1])
    first.close()
    known = [*REQUESTS[0].prompt_ids, *answer.token_ids[0]]  # 150 and 12: the last block has both
    request = make_request([*known, 7, 8, 9], 12, ignore_eos=True, logprobs=0)
    second, fresh = Engine(loaded, tmp_path / "store", mode="all"), Engine(loaded, None)
    [found], [expected] = second.answers([request]), fresh.answers([request])
    assert told([found]) == told([expected])
    assert found.num_stored == (len(known) - 1) // 32 * 32 == 160
    second.close()
    fresh.close()


@pytest.mark.varies("sums are of other kernels on other processors")
def test_with_blocks_that_are_damaged_and_with_few_blocks_of_memory(
    loaded: LoadedModel, alone: list[Answer], tmp_path: Path
) -> None:
    first = Engine(loaded, tmp_path / "store")
    first.answers(REQUESTS)
    first.close()
    for path in sorted((tmp_path / "store").glob("*.blocks")):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    few = Engine(loaded, tmp_path / "store", num_blocks=24)
    assert told(few.answers(REQUESTS)) == told(alone)
    few.close()


def test_the_model_is_decided_by_its_prompt(alone: list[Answer]) -> None:
    """Guards the tests above: if every answer were the same, they could not fail."""
    answers = {tuple(tokens) for answer in alone for tokens in answer.token_ids}
    assert len(answers) >= len(REQUESTS)


def test_all_that_a_block_holds_comes_back(loaded: LoadedModel, tmp_path: Path) -> None:
    """Whatever its kind: bytes that were never computed with, from one runner to another."""
    source, target = (OpenVinoRunner(loaded, 4) for _ in range(2))
    store = BlockStore.open(tmp_path / "store", 1 << 26)
    stream = np.random.RandomState(1)
    for kind, size in enumerate(source.block_bytes):
        key = bytes([kind]) * 16
        parts = source.block_parts(2, kind)
        for part in parts:
            part[:] = stream.randint(0, 256, len(part))
        assert sum(len(part) for part in parts) == size == loaded.block_bytes[kind]
        assert store.write(key, np.concatenate(parts))
        before = [part.copy() for part in target.block_parts(0, kind)]
        assert store.read([key], [target.block_parts(1, kind)]) == 1
        assert all(map(np.array_equal, target.block_parts(1, kind), parts))
        assert all(map(np.array_equal, target.block_parts(0, kind), before))
    store.close()
    source.close()
    target.close()
