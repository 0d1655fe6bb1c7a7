"""The oracle with adapters on real kernels: in one batch, each request has the tokens that its adapter merged would give it.

Adapters and none are mixed with prefixes in common, pieces of prompts, preemption, forks, beams and drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.engine.rolling.adapters import AdapterBank
from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AdapterUse, AddRequest
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import AdapterOptions
from dragoman.types import EngineRequest
from tests.engine.naive import Collector, make_request
from tests.support.adapters import matrices_of, write_adapter, write_merged
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.tiers import width

EXACT = ModelOptions("f32", num_threads=1)
NUM_ADAPTERS, NUM_REQUESTS, NUM_IDS = 4, 32, 300
STREAM = np.random.RandomState(5)
PREFIX = STREAM.randint(1, NUM_IDS, 64).tolist()


def requests() -> list[EngineRequest]:
    """Half of them with a prefix in common; greedy, drawn, several, searched."""
    kinds: Sequence[dict[str, float | int]] = (
        {},
        {"temperature": 0.9},
        {"temperature": 1.0, "n": 2},
        {"num_beams": 2, "n": 2, "best_of": 2},
    )
    found = []
    for number in range(NUM_REQUESTS):
        tokens = STREAM.randint(1, NUM_IDS, 3 + number).tolist()
        prompt = [*PREFIX, *tokens] if number % 2 else tokens
        kind = kinds[number // 2 % 4]
        found.append(make_request(prompt, 40, seed=number, name=f"r{number}", ignore_eos=True, **kind))
    return found


REQUESTS = requests()
SLOTS = [number % (NUM_ADAPTERS + 1) - 1 for number in range(NUM_REQUESTS)]  # -1 = no adapter


def answers(
    loaded: LoadedModel, keys: Sequence[int], config: RollingConfig, num_blocks: int, *, drafts: bool = False
) -> tuple[dict[int, list[list[int]]], EngineCore]:
    """The tokens of every sequence of these requests, computed together."""
    bank = None
    if loaded.adapters is not None:
        bank = AdapterBank(loaded.adapters, NUM_ADAPTERS, 4)
        for slot, adapter in enumerate(loaded.adapters.first.values()):
            bank.fill(slot, loaded.adapters.changes(adapter))
    runner = OpenVinoRunner(loaded, num_blocks, bank)
    proposers = [OwnTextProposer()] if drafts else []
    limits = SpeculationConfig(3, 2, 64)
    core = EngineCore(runner, Sampler(runner.vocab_size), replace(config, speculation=limits), proposers)
    collector = Collector(core)
    for key in keys:
        slot = SLOTS[key]
        use = None if bank is None or slot < 0 else AdapterUse(f"a{slot}", slot, f"a{slot} 0")
        core.inbox.put(AddRequest(key, REQUESTS[key], adapter=use))
    collector.run()
    assert not collector.errors
    runner.close()
    found = {key: [list(collector.sequence(key, i).token_ids) for i in range(REQUESTS[key].sampling.n)] for key in keys}
    return found, core


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A checkpoint and adapters for it."""
    root = tmp_path_factory.mktemp("adapters")
    base = write_family_checkpoint("qwen3", root / "base")
    modules = matrices_of(base, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
    return base, [write_adapter(root / f"a{seed}", modules, seed=seed) for seed in range(NUM_ADAPTERS)]


@pytest.fixture(scope="module")
def apart(checkpoint: tuple[Path, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[int]]]:
    """What a server of its own for each adapter, merged into its weights, answers."""
    base, adapters = checkpoint
    config = RollingConfig(max_batch_tokens=1024, prefix_cache="off")
    found: dict[int, list[list[int]]] = {}
    for slot in range(-1, NUM_ADAPTERS):
        merged = tmp_path_factory.mktemp("merged") / "m"
        loaded = load_model(base if slot < 0 else write_merged(base, adapters[slot], merged), EXACT)
        keys = [key for key in range(NUM_REQUESTS) if SLOTS[key] == slot]
        found |= answers(loaded, keys, config, 256)[0]
    return found


COMPANIES = [(1024, 256, "prompt", False), (60, 24, "all", False), (1024, 256, "prompt", True)]


@pytest.mark.parametrize(
    ("max_batch_tokens", "num_blocks", "prefix_cache", "drafts"), width(COMPANIES, [(60, 24, "all", False)])
)
def test_adapters_mixed_in_a_batch_answer_as_merged_servers_do(
    checkpoint: tuple[Path, list[Path]],
    apart: dict[int, list[list[int]]],
    max_batch_tokens: int,
    num_blocks: int,
    prefix_cache: str,
    drafts: bool,
) -> None:
    base, adapters = checkpoint
    named = tuple((f"a{slot}", path) for slot, path in enumerate(adapters))
    loaded = load_model(base, replace(EXACT, adapters=AdapterOptions(named)))
    config = RollingConfig(max_batch_tokens, max_num_seqs=32, prefix_cache=prefix_cache, assumed_output_tokens=1)  # type: ignore[arg-type]
    together, core = answers(loaded, range(NUM_REQUESTS), config, num_blocks, drafts=drafts)
    assert together == apart
    assert core.stats.num_preemptions or prefix_cache != "all"
    assert len({tuple(tokens) for answer in apart.values() for tokens in answer}) > NUM_REQUESTS
