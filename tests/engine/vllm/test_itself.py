"""What only vLLM itself can answer: its arguments, a start that fails, its death, its end."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import pytest
from msgspec import structs

from dragoman.config.resolve import demo_model_dir
from dragoman.engine.base import Engine
from dragoman.engine.factory import EngineOptionError, EngineSetup
from dragoman.engine.rolling.factory import factory as rolling_factory
from dragoman.engine.vllm.factory import factory
from dragoman.errors import EngineDead
from dragoman.models import ModelError
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import EngineRequest, SamplingParams
from tests.support import vllm_on_demo
from tests.support.threads import children, is_running

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed: make test-vllm"),
]

REQUEST = EngineRequest("r", (419, 295, 1453, 1367, 42), SamplingParams(temperature=0.0, ignore_eos=True), 200, 7)


@pytest.fixture(autouse=True)
def _vllms_warnings() -> Iterator[None]:
    """They are vLLM's and torch's own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("block_size", "many", "invalid"),
        ("enforce_eager", "perhaps", "must be true or false"),
        ("load_format_", "auto", "vLLM's nearest argument is option.load_format"),
        ("tensor_parallel_degree", "two", "invalid"),
        ("gpu_memory_utilization", "half", "half"),
    ],
)
def test_arguments_are_checked_by_vllm_and_told_on_one_line(name: str, text: str, says: str) -> None:
    with pytest.raises(EngineOptionError, match=says) as caught:
        factory.load(EngineSetup(demo_model_dir(), {}, extra={name: text}))
    assert caught.value.option == name
    assert "\n" not in str(caught.value)


def test_values_become_what_vllm_wants() -> None:
    extra = {
        "block_size": "32",
        "gpu_memory_utilization": "0.5",
        "enforce_eager": "true",
        "tensor_parallel_degree": "max",
    }
    extra |= {"compilation_config": '{"mode": 0}', "distributed_executor_backend": "ray"}
    arguments = factory.load(EngineSetup(demo_model_dir(), {}, extra=extra)).arguments
    assert arguments["block_size"] == 32
    assert arguments["gpu_memory_utilization"] == 0.5
    assert arguments["enforce_eager"] is True
    assert arguments["tensor_parallel_size"] >= 1
    assert int(arguments["compilation_config"].mode) == 0
    assert arguments["distributed_executor_backend"] == "ray"


def test_what_vllm_says_of_a_model_is_told_on_one_line() -> None:
    with pytest.raises(ModelError, match=r"vLLM does not start with this model: .*99999") as caught:
        factory.load(EngineSetup(demo_model_dir(), {"max_model_len": 99_999})).build(vllm_on_demo.tools(), 2**30)
    assert "\n" not in str(caught.value)


def test_when_its_processes_die_every_request_fails_and_health_says_why() -> None:
    others = multiprocessing.active_children()  # engines that other tests keep
    engine: Engine = factory.load(vllm_on_demo.setup_of(4, 256)).build(vllm_on_demo.tools(), 2**30).engine
    (core,) = (one for one in multiprocessing.active_children() if "EngineCore" in one.name and one not in others)

    async def test() -> None:
        await engine.start()
        outputs = engine.generate(REQUEST)
        assert (await anext(aiter(outputs))).token_ids
        core.kill()
        with pytest.raises(EngineDead):
            async for _ in outputs:
                pass
        assert not engine.health().is_alive
        assert "died" in engine.health().reason
        with pytest.raises(EngineDead):
            await anext(aiter(engine.generate(REQUEST)))
        await engine.shutdown(0.0)
        assert not engine.health().is_alive

    asyncio.run(asyncio.wait_for(test(), 60))
    core.join(60)  # on a busy machine vLLM kills it and does not wait
    assert not core.is_alive()


def test_a_shutdown_ends_its_processes() -> None:
    others = multiprocessing.active_children()  # engines that other tests keep
    engine: Engine = factory.load(vllm_on_demo.setup_of(4, 256)).build(vllm_on_demo.tools(), 2**30).engine
    (core,) = (one for one in multiprocessing.active_children() if "EngineCore" in one.name and one not in others)
    assert core.is_alive()
    asyncio.run(asyncio.wait_for(engine.shutdown(0.0), 60))
    core.join(60)  # on a busy machine vLLM kills it and does not wait
    assert not core.is_alive()


def test_reasoning_ends_at_its_budget_where_vllm_was_told_how_it_begins_and_ends() -> None:
    tools, tokenizer = vllm_on_demo.tools(), load_tokenizer(demo_model_dir())
    begin, end = tokenizer.decode(REQUEST.prompt_ids[-1:], skip_special_tokens=False), " So the answer is"
    told = json.dumps({"reasoning_start_str": begin, "reasoning_end_str": end})
    setup = vllm_on_demo.setup_of(4, 256)
    setup = replace(setup, extra={**setup.extra, "reasoning_config": told})
    engine: Engine = factory.load(setup).build(tools, 2**30).engine
    assert engine.capabilities.has_budgets
    bounded = structs.replace(
        REQUEST, sampling=structs.replace(REQUEST.sampling, thinking_token_budget=3), max_tokens=12
    )

    async def test() -> list[int]:
        await engine.start()
        made = [token for output in [one async for one in engine.generate(bounded)] for token in output.token_ids]
        await engine.shutdown(0.0)
        return made

    made = asyncio.run(asyncio.wait_for(test(), 120))
    closing = tokenizer.encode_continuation(end)
    assert made[3 : 3 + len(closing)] == list(closing)


@pytest.mark.parametrize(
    "extra",
    [
        {"tensor_parallel_degree": "2", "enforce_eager": "true"},
        {"pipeline_parallel_degree": "2"},  # vLLM's pipeline on a processor needs its compiler
    ],
    ids=["tensor", "pipeline"],
)
def test_a_model_on_two_devices_answers_as_the_built_in_engine_and_ends_with_all_its_processes(
    extra: dict[str, str],
) -> None:
    """On a processor each device is a process, and cores are divided among them where the machine has one memory node."""
    others = multiprocessing.active_children()  # engines that other tests keep
    apart = replace(vllm_on_demo.setup_of(4, 256), extra=extra)
    built = factory.load(apart).build(vllm_on_demo.tools(), 2**30)
    engine = built.engine
    (core,) = (one for one in multiprocessing.active_children() if "EngineCore" in one.name and one not in others)
    assert core.pid is not None
    processes = (core.pid, *children(core.pid))
    assert {"2 x 1 devices", "1 x 2 devices"} & set(built.facts)
    assert len(processes) > 2  # a worker for each device
    request = structs.replace(REQUEST, max_tokens=32)
    rolling = rolling_factory.load(replace(apart, extra={})).build(vllm_on_demo.tools(), 2**30).engine

    async def test() -> None:
        assert await tokens_of(engine, request) == await tokens_of(rolling, request)
        leaving = engine.generate(REQUEST)
        await anext(aiter(leaving))
        await leaving.aclose()
        assert engine.health().num_running == 0
        await rolling.shutdown(0.0)
        await engine.shutdown(0.0)

    asyncio.run(asyncio.wait_for(test(), 120))
    end = time.monotonic() + 60  # on a busy machine vLLM kills them and does not wait
    while left := [process for process in processes if is_running(process)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


async def tokens_of(engine: Engine, request: EngineRequest) -> list[int]:
    """All tokens of its answer."""
    await engine.start()
    return [token async for output in engine.generate(request) for token in output.token_ids]
