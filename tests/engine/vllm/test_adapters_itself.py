"""Adapters on vLLM itself: in f32 the same greedy tokens as the built-in engine with the same adapters."""

from __future__ import annotations

import asyncio
import multiprocessing
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dragoman.config.bundled import BUNDLED
from dragoman.engine.base import AdapterLoading, Engine
from dragoman.engine.factory import BuiltEngine
from dragoman.engine.rolling.factory import factory as rolling_factory
from dragoman.engine.vllm.factory import factory
from dragoman.errors import InvalidRequest, NoMemory, UnsupportedFeature
from dragoman.models import ModelError
from dragoman.types import EngineRequest, SamplingParams
from tests.support import vllm_on_demo
from tests.support.adapters import matrices_of, write_adapter

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed: make test-vllm"),
]

PROMPTS = ((419, 295, 1453, 1367, 42), (5, 77, 300, 12, 9, 1000, 43))
EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WANTED = [(name, prompt) for name in (None, "one", "two") for prompt in PROMPTS]
Answers = dict[tuple[str | None, tuple[int, ...]], tuple[int, ...]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`one` changes some of the matrices that vLLM joins, `two` all, with ranks and scales of their own."""
    root, demo = tmp_path_factory.mktemp("adapters"), BUNDLED["demo"]
    write_adapter(root / "one", matrices_of(demo, ("q_proj", "v_proj", "up_proj")), rank=4, seed=1)
    patterns = {"rank_pattern": {"o_proj": 6}, "alpha_pattern": {"o_proj": 3}, "use_rslora": True}
    write_adapter(root / "two", matrices_of(demo, ("o_proj",)), rank=6, seed=2, config={**patterns, "r": 3})
    write_adapter(root / "three", matrices_of(demo, EVERY), rank=5, seed=3)
    write_adapter(root / "foreign", {"model.layers.99.self_attn.q_proj": (64, 64)})
    return root


def options_of(store: Path) -> dict[str, Any]:
    lora = tuple(f"{name}={store / name}" for name in ("one", "two"))
    return {"lora": lora, "enable_lora": True, "max_loras": 3, "max_lora_rank": 6}


async def answer(engine: Engine, name: str | None, prompt: Sequence[int], **sampling: Any) -> tuple[int, ...]:
    """The tokens of the first sequence."""
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **sampling})
    request = EngineRequest(f"{name}-{prompt[0]}", tuple(prompt), params, 12, 7, adapter=name)
    outputs = [output async for output in engine.generate(request)]
    return tuple(token for output in outputs if not output.index for token in output.token_ids)


async def answers(engine: Engine) -> Answers:
    """All that are wanted, at the same time."""
    told = await asyncio.gather(*(answer(engine, name, prompt) for name, prompt in WANTED))
    return dict(zip(WANTED, told, strict=True))


async def come_and_go(built: BuiltEngine, store: Path) -> list[tuple[int, ...]]:
    """What adapters answer that are loaded, replaced and unloaded while the engine runs."""
    engine, loading = built.engine, built.adapters
    assert loading is not None
    found = []
    await loading.load_adapter("more", store / "three")
    assert engine.capabilities.adapters == ("one", "two", "more")
    found.append(await answer(engine, "more", PROMPTS[0]))
    with pytest.raises(NoMemory):
        await loading.load_adapter("most", store / "three")
    await loading.unload_adapter("two")
    await loading.load_adapter("more", store / "one", is_replacing=True)
    found.append(await answer(engine, "more", PROMPTS[0]))
    with pytest.raises(UnsupportedFeature, match="two"):
        await answer(engine, "two", PROMPTS[0])
    await refuse_foreign(loading, store)
    found.append(await answer(engine, "one", PROMPTS[0], num_beams=3))
    found.append(await answer(engine, "one", PROMPTS[1], temperature=0.0, n=2))
    return found


async def refuse_foreign(loading: AdapterLoading, store: Path) -> None:
    with pytest.raises(InvalidRequest, match="allowed: "):
        await loading.load_adapter("foreign", store / "foreign", is_replacing=True)


async def ask(built: BuiltEngine, store: Path) -> tuple[Answers, list[tuple[int, ...]]]:
    await built.engine.start()
    try:
        assert built.engine.capabilities.adapters == ("one", "two")
        return await answers(built.engine), await come_and_go(built, store)
    finally:
        await built.engine.shutdown(0.0)


def test_adapters_answer_as_on_the_built_in_engine_and_come_and_go(store: Path) -> None:
    setup = vllm_on_demo.setup_of(8, 256)
    setup = replace(setup, options={**setup.options, **options_of(store)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = asyncio.run(ask(factory.load(setup).build(vllm_on_demo.tools(), 2**30), store))
    rolling = rolling_factory.load(replace(setup, extra={})).build(vllm_on_demo.tools(), 2**30)
    ours = asyncio.run(ask(rolling, store))
    assert theirs == ours
    assert len(set(ours[0].values())) == len(WANTED), "adapters change answers"
    assert ours[1][1] == ours[0]["one", PROMPTS[0]], "nothing is left of the adapter that had the name before"


def test_a_start_with_an_adapter_that_vllm_would_only_compute_a_part_of_fails(store: Path) -> None:
    setup = vllm_on_demo.setup_of(8, 256)
    setup = replace(
        setup, options={**setup.options, **options_of(store)}, extra={**setup.extra, "lora_target_modules": "o_proj"}
    )
    others = multiprocessing.active_children()  # engines that other tests keep
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = factory.load(setup).build(vllm_on_demo.tools(), 2**30)
        (core,) = (one for one in multiprocessing.active_children() if "EngineCore" in one.name and one not in others)
        with pytest.raises(ModelError, match=r"one: vLLM does not load this adapter: it has no place for .*q"):
            asyncio.run(built.engine.start())
    core.join(60)  # on a busy machine vLLM kills it and does not wait
    assert not core.is_alive()
