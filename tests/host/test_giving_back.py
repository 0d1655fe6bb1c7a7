"""A model that was unloaded is gone: nothing of it can be reached any more, not even an operator's own code."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.compose import ComposedModel, Composer, model_profile
from dragoman.config.resolve import demo_model_dir
from dragoman.config.run_time import ModelStore
from dragoman.config.several import resolve_all
from dragoman.host.host import ModelHost
from dragoman.host.ledger import MemoryLedger
from dragoman.host.loading import ModelLoad
from dragoman.host.machine import available_memory_bytes
from dragoman.server.apis import set_up_all
from dragoman.server.hosting import ModelSource
from dragoman.server.registry import ModelRegistry
from dragoman.types import GenerationRequest, SamplingParams, TextPrompt
from tests.support.patience import PATIENCE_S

OPERATORS_FILE = """
import helper
from djl_python import Output
from djl_python.output_formatter import output_formatter

class OperatorsOwn:
    pass

kept = [OperatorsOwn() for _ in range(3)]

@output_formatter
def mine(request_output):
    return helper.shout("text")

def handle(inputs):
    return None
"""


def objects() -> Counter[str]:
    """The objects of this package and of an operator's file that the interpreter knows, by type."""
    gc.collect()
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        if str(kind.__module__).startswith(("dragoman", "openvino", "tokenizers")):
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return found


async def nothing_left(before: Counter[str]) -> None:
    """Return once there is nothing that was not there before: a thread that ends lets go a little later."""
    end_s = time.monotonic() + PATIENCE_S
    while left := objects() - before:
        assert time.monotonic() < end_s, f"still reachable: {left}"
        await asyncio.sleep(0)


def host_over(tmp_path: Path, begun: ModelLoad | None = None) -> ModelHost[ComposedModel]:
    line = f"--load-models NONE --model-store {tmp_path}/store --cache-dir {tmp_path}/cache --kv-cache-gb 0.01"
    givens = read_arguments(line.split()).givens
    found = resolve_all(givens, {}, demo_model_dir())
    registry = ModelRegistry(set_up_all(model_profile(found.process)), can_be_empty=True)
    ledger = MemoryLedger(available_memory_bytes(), available_memory_bytes)
    store = ModelStore(found.store, found.process, givens, {}, demo_model_dir())
    host = ModelHost(registry, Composer(begun), store, ledger, drain_s=10.0)
    registry.mark_ready()
    return host


async def use(host: ModelHost[ComposedModel], options: dict[str, str]) -> None:
    """Load, generate, unload."""
    await host.load(ModelSource("own", options=options))
    async with host.get_or_load("own") as model:
        request = GenerationRequest("r", TextPrompt("Once"), SamplingParams(), max_tokens=3)
        assert (await model.service.generate(request)).sequences[0].text
    del model
    await host.unload("own")


@pytest.mark.varies("what an interpreter holds on to depends on the Python")
def test_no_object_of_an_unloaded_model_stays(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "own"
    shutil.copytree(demo_model_dir(), directory)
    (directory / "model.py").write_text(OPERATORS_FILE, encoding="utf-8")
    (directory / "helper.py").write_text("def shout(text):\n    return text.upper()\n", encoding="utf-8")

    async def scenario() -> None:
        host = host_over(tmp_path)
        await use(host, {})  # what is made once stays: modules, caches of the library
        modules, finders, before = set(sys.modules), list(sys.meta_path), objects()
        for options in ({}, {"speculation": "off"}):
            await use(host, options)
            await nothing_left(before)
            assert set(sys.modules) == modules
            assert sys.meta_path == finders
        assert not [name for name in objects() if name.endswith("OperatorsOwn")]
        await host.close()

    asyncio.run(scenario())


def test_the_first_model_is_freed_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    line = f"{demo_model_dir()} --cache-dir {tmp_path}/cache --kv-cache-gb 0.01"
    [config] = resolve_all(read_arguments(line.split()).givens, {}, demo_model_dir()).models

    async def scenario() -> None:
        before = objects()["dragoman.models.loader.LoadedModel"]
        begun = ModelLoad(config, lambda stage, part: None)  # the command line holds on to it
        host = host_over(tmp_path, begun)
        del (await host.start([config]))[:]
        assert objects()["dragoman.models.loader.LoadedModel"] == before + 1
        await host.unload(config.name)
        assert objects()["dragoman.models.loader.LoadedModel"] == before, "with its runtime's memory"
        begun.wait()
        await host.close()

    asyncio.run(scenario())
