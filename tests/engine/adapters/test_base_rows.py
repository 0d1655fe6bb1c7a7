"""In the arithmetic that a server has by default: what else is in a batch changes no answer, with an adapter or without.

Tokens and log-probabilities, bit for bit, through the engine's core on real kernels. With weights of f32 they are those of a
graph that knows no adapters, too; with others a graph without adapters has fewer operations, which round otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.config.bundled import BUNDLED
from dragoman.engine.rolling.adapters import AdapterBank
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AdapterUse, AddRequest
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import AdapterOptions
from dragoman.types import EngineRequest
from tests.engine.naive import Collector, Generated, make_request
from tests.support.adapters import matrices_of, write_adapter
from tests.support.cpu import EXACT_PACKED, HAS_BF16
from tests.support.tiers import width

pytestmark = pytest.mark.varies("which kernels keep every bit depends on the processor")
OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EVERY = (*OF_ATTENTION, "gate_proj", "up_proj", "down_proj")
RANKS = (4, 1, 2)
NUM_ADAPTERS, NUM_REQUESTS = len(RANKS), 12
SLOTS = [number % (NUM_ADAPTERS + 1) - 1 for number in range(NUM_REQUESTS)]  # -1 = no adapter
BASE = [key for key, slot in enumerate(SLOTS) if slot < 0]


def requests() -> list[EngineRequest]:
    """Prompts of many lengths; greedy and drawn."""
    stream = np.random.RandomState(8)
    kinds: tuple[dict[str, float], ...] = ({}, {"temperature": 0.8}, {})
    return [
        make_request(
            stream.randint(3, 1000, 2 + 9 * key).tolist(),
            16,
            seed=key,
            name=f"r{key}",
            ignore_eos=True,
            logprobs=4,
            **kinds[key // (NUM_ADAPTERS + 1)],
        )
        for key in range(NUM_REQUESTS)
    ]


REQUESTS = requests()


def adapters_of(root: Path, endings: tuple[str, ...]) -> AdapterOptions:
    """Adapters that change these matrices of the demo model."""
    modules = matrices_of(BUNDLED["demo"], endings)
    paths = {
        f"a{slot}": write_adapter(root / f"a{slot}", modules, rank=rank, seed=slot) for slot, rank in enumerate(RANKS)
    }
    return AdapterOptions(tuple(paths.items()))


@pytest.fixture(scope="module", params=width(["auto", "int4", "bf16", "f32"], ["auto", "f32"]))
def options(request: pytest.FixtureRequest) -> ModelOptions:
    """As a server has it by default, and with other weights."""
    if request.param == "bf16" and not HAS_BF16:
        pytest.skip("this CPU has no bf16")
    return ModelOptions() if request.param == "auto" else ModelOptions(request.param)


@pytest.fixture(scope="module")
def served(options: ModelOptions, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The demo model with adapters that change every matrix."""
    return load_model(BUNDLED["demo"], replace(options, adapters=adapters_of(tmp_path_factory.mktemp("every"), EVERY)))


def answers(loaded: LoadedModel, keys: Collection[int], adapted: Collection[int]) -> dict[int, Generated]:
    """What these requests get, computed together; `adapted`: those that are computed with their adapters."""
    bank = None
    if loaded.adapters is not None:
        bank = AdapterBank(loaded.adapters, NUM_ADAPTERS, max(RANKS))
        for slot, adapter in enumerate(loaded.adapters.first.values()):
            bank.fill(slot, loaded.adapters.changes(adapter))
    runner = OpenVinoRunner(loaded, 128, bank)
    core = EngineCore(runner, Sampler(runner.vocab_size), RollingConfig(max_num_seqs=16, prefix_cache="off"))
    collector = Collector(core)
    for key in keys:
        slot = SLOTS[key]
        use = AdapterUse(f"a{slot}", slot, f"a{slot} 0") if key in adapted and slot >= 0 else None
        core.inbox.put(AddRequest(key, REQUESTS[key], adapter=use))
    collector.run()
    runner.close()
    assert not collector.errors
    return {key: collector.sequence(key) for key in keys}


def test_adapters_of_others_change_no_bit_of_an_answer_without_one(served: LoadedModel) -> None:
    everyone = range(NUM_REQUESTS)
    mixed, plain = answers(served, everyone, everyone), answers(served, everyone, ())
    for key in everyone:
        assert (mixed[key] == plain[key]) == (key in BASE), key


def test_an_answer_is_in_a_batch_of_adapters_what_it_is_alone(served: LoadedModel) -> None:
    if served.options.weight_type != "f32" and not EXACT_PACKED:
        pytest.skip("on this processor the kernels of packed weights round by how many tokens a step has")
    everyone = range(NUM_REQUESTS)
    mixed = answers(served, everyone, everyone)
    for key in everyone:
        assert mixed[key] == answers(served, [key], [key])[key], key
        assert len(mixed[key].top_logprobs) == len(mixed[key].token_ids) == 16


def test_in_f32_they_are_those_of_a_graph_that_knows_no_adapters(tmp_path: Path) -> None:
    everyone, exact = range(NUM_REQUESTS), ModelOptions("f32")
    plain = answers(load_model(BUNDLED["demo"], exact), everyone, ())
    adapters = adapters_of(tmp_path, OF_ATTENTION)
    found = answers(load_model(BUNDLED["demo"], replace(exact, adapters=adapters)), everyone, everyone)
    for key in everyone:
        assert (found[key] == plain[key]) == (key in BASE), key
