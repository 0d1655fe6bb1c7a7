"""The oracle on real kernels: whatever the batch looks like, a request's tokens are those that it gets alone.

One small model of each kind whose layers are not all alike: windows, sinks, experts, convolutions; each in f32 and in
default types. Requests share prefixes, are cut into pieces, preempted, forked and searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import computes_alike
from dragoman.types import EngineRequest
from tests.engine.naive import Collector, make_request
from tests.support.cpu import EXACT_PACKED
from tests.support.exported_model import write_exported
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.tiers import width

MODELS = {
    "windows": (write_family_checkpoint, "gemma3_text"),
    "sinks": (write_family_checkpoint, "gpt_oss"),
    "experts": (write_family_checkpoint, "qwen3_moe"),
    "convolutions": (write_family_checkpoint, "lfm2"),
    "exported windows": (write_exported, "gemma3_text"),
    "exported states": (write_exported, "lfm2"),
}
NUM_IDS = 300  # of every vocabulary
STREAM = np.random.RandomState(8)
PREFIX = STREAM.randint(1, NUM_IDS, 100).tolist()


def requests() -> list[EngineRequest]:
    """Prompts within a window and past it, half of them with a prefix in common; greedy, drawn, several, searched."""
    kinds: Sequence[dict[str, float | int]] = (
        {},
        {"temperature": 0.9, "top_p": 0.95},
        {"temperature": 1.0, "n": 3},
        {"num_beams": 3, "n": 2, "best_of": 3},
    )
    found = []
    for number, length in enumerate((5, 40, 150, 33, 70, 12, 90, 64)):
        tokens = STREAM.randint(1, NUM_IDS, length).tolist()
        prompt = [*PREFIX, *tokens] if number % 2 else tokens
        found.append(make_request(prompt, 60, seed=number, name=f"r{number}", ignore_eos=True, **kinds[number % 4]))
    return found


REQUESTS = requests()


KINDS = [*product(MODELS, ["f32"]), *((name, "int8") for name in MODELS if not name.startswith("exported"))]
FEW_KINDS = [("windows", "int8"), ("sinks", "int8"), ("convolutions", "int8"), ("exported states", "f32")]


@pytest.fixture(scope="module", params=width(KINDS, FEW_KINDS), ids="-".join)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    name, weight_type = request.param
    if weight_type != "f32" and not EXACT_PACKED:
        pytest.skip("on this processor the kernels of packed weights round by how many tokens a step has")
    write, case = MODELS[name]
    return load_model(write(case, tmp_path_factory.mktemp("model")), ModelOptions(weight_type))


def answers(
    loaded: LoadedModel, keys: Sequence[int], config: RollingConfig, num_blocks: int
) -> tuple[dict[int, list[list[int]]], int]:
    """The tokens of every sequence of these requests, computed together, and how often one was preempted."""
    runner = OpenVinoRunner(loaded, num_blocks)
    config = replace(
        config, has_states=bool(loaded.facts.state_layers) and not computes_alike(loaded.facts, loaded.profile)
    )
    core = EngineCore(runner, Sampler(runner.vocab_size), config)
    collector = Collector(core)
    for key in keys:
        collector.add(key, REQUESTS[key])
    collector.run()
    assert not collector.errors
    runner.close()
    found = {key: [list(collector.sequence(key, i).token_ids) for i in range(REQUESTS[key].sampling.n)] for key in keys}
    return found, core.stats.num_preemptions


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> dict[int, list[list[int]]]:
    config = RollingConfig(max_batch_tokens=1024, prefix_cache="off")
    return {key: answers(loaded, [key], config, 64)[0][key] for key in range(len(REQUESTS))}


COMPANIES = [(1024, 128, "prompt"), (50, 24, "all"), (96, 24, "off")]


@pytest.mark.varies("sums are of other kernels on other processors")
@pytest.mark.parametrize(("max_batch_tokens", "num_blocks", "prefix_cache"), width(COMPANIES, [(50, 24, "all")]))
def test_together_every_request_gets_the_tokens_that_it_gets_alone(
    loaded: LoadedModel,
    alone: dict[int, list[list[int]]],
    max_batch_tokens: int,
    num_blocks: int,
    prefix_cache: str,
) -> None:
    config = RollingConfig(max_batch_tokens, max_num_seqs=8, prefix_cache=prefix_cache, assumed_output_tokens=1)  # type: ignore[arg-type]
    together, num_preemptions = answers(loaded, range(len(REQUESTS)), config, num_blocks)
    assert together == alone
    assert num_preemptions or prefix_cache != "all"
    assert len({tuple(tokens) for answer in alone.values() for tokens in answer}) > len(REQUESTS), "prompts decide"
