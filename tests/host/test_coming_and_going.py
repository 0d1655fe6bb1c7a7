"""150 loads, replacements and unloads at random, under traffic: nobody else notices, and the memory comes back.

Two thirds of the models are fakes that cost nothing, the others copies of the bundled model, with the real engine. One
real model stays and is asked all the time: every answer must have exactly the tokens that it has alone (f32). The
models that come and go are asked as well: whoever gets hold of one gets its whole answer.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.compose import ComposedModel, Composer, model_profile
from dragoman.config.resolve import Config, demo_model_dir
from dragoman.config.run_time import ModelStore
from dragoman.config.several import resolve_all
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import Progress
from dragoman.errors import Conflict, NoMemory, NotFound, Unavailable
from dragoman.host.host import ModelHost
from dragoman.host.ledger import MemoryLedger
from dragoman.host.machine import available_memory_bytes
from dragoman.models.memory import give_back
from dragoman.server.apis import set_up_all
from dragoman.server.hosting import ModelSource
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.types import GenerationRequest, SamplingParams, TextPrompt
from tests.support.fake_models import MIB, FakeBuilder, FakeBuilt, answer, write_models

NUM_OPERATIONS = 90
NUM_OF_SOME = 12
NUM_WARM_UP = 60  # operations after which memory has reached what it needs: buffers, kernels, thread pools
NUM_WORKERS = 3  # who load and unload side by side
TOLERANCE_BYTES = 48 * MIB  # a real model takes 25 MiB, and dozens of them come and go after the warm-up
TOLERANCE_THREADS = 8
STEADY = "steady"
REAL = ("real0", "real1", "real2")
LIGHT = tuple(f"light{number}" for number in range(6))

KINDS = ("load", "unload", "replace", "demand")
REFUSALS = (Conflict, NotFound, NoMemory, Unavailable)

PROMPTS = ("Once upon a time", "What is deep learning?", "The sea", "A", "In the beginning there was nothing but")
SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_p=0.9, seed=7),
    SamplingParams(temperature=0.8, top_k=20, seed=3, n=2),
)
QUESTIONS = tuple((prompt, sampling) for prompt in PROMPTS for sampling in SAMPLINGS)

Answer = tuple[tuple[int, ...], ...]


class MixedBuilder:
    """Real models for real names, fakes for all others."""

    def __init__(self) -> None:
        self._real, self._light = Composer(), FakeBuilder()
        self.num_real = 0

    def needs(self, config: Config) -> MemoryNeeds:
        """What the model takes."""
        return self._light.needs(config) if config.name in LIGHT else self._real.needs(config)

    async def build(self, config: Config, progress: Progress, memory_bytes: int | None) -> ComposedModel | FakeBuilt:
        """The model."""
        if config.name in LIGHT:
            return await self._light.build(config, progress, memory_bytes)
        self.num_real += 1
        return await self._real.build(config, progress, memory_bytes)


@dataclass
class World:
    """A host and those who use it. `expected`: each question's tokens, as the model gives them alone."""

    host: ModelHost[ComposedModel | FakeBuilt]
    registry: ModelRegistry
    ledger: MemoryLedger
    builder: MixedBuilder
    dice: random.Random
    expected: dict[int, Answer] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    is_over: bool = False


def world(tmp_path: Path) -> World:
    store = tmp_path / "store"
    write_models(store, *LIGHT)
    for name in (STEADY, *REAL):
        shutil.copytree(demo_model_dir(), store / name)
    line = f"--load-models NONE --model-store {store} --cache-dir {tmp_path}/cache --dtype f32 --kv-cache-gb 0.01"
    givens = read_arguments(line.split()).givens
    found = resolve_all(givens, {}, demo_model_dir())
    registry = ModelRegistry(set_up_all(model_profile(found.process)), can_be_empty=True)
    ledger = MemoryLedger(230 * MIB, available_memory_bytes)  # too little for all of them
    model_store = ModelStore(found.store, found.process, givens, {}, demo_model_dir())
    builder = MixedBuilder()
    host = ModelHost(registry, builder, model_store, ledger, drain_s=60.0)
    registry.mark_ready()
    return World(host, registry, ledger, builder, random.Random(20))


async def tokens_of(model: ServedModel, number: int) -> Answer:
    """What the model answers to one question; the call is made as the responder makes it."""
    prompt, sampling = QUESTIONS[number]
    request = GenerationRequest(f"{number}", TextPrompt(prompt), sampling, max_tokens=12)
    with model.admission.visit(), model.admission.permit():
        result = await model.service.generate(request)
    return tuple(tuple(token.id for token in sequence.tokens) for sequence in result.sequences)


async def ask_steadily(here: World, first: int) -> None:
    """One client of the model that stays: each answer is compared, and none may fail."""
    number = first
    while not here.is_over:
        number = (number + 1) % len(QUESTIONS)
        assert await tokens_of(here.registry.find(STEADY), number) == here.expected[number]
        here.outcomes["steady"] += 1


async def ask_around(here: World, dice: random.Random) -> None:
    """One client of the models that come and go: it is refused at once, or answered in full."""
    while not here.is_over:
        await asyncio.sleep(0.003)  # not to be all that the loop does; nothing is waited for
        name = dice.choice((*LIGHT, *REAL))
        try:
            model = here.registry.find(name)
        except REFUSALS:
            continue
        await ask_one(here, model, dice.randrange(len(QUESTIONS)))


async def ask_one(here: World, model: ServedModel, number: int) -> None:
    if model.name in LIGHT:
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(0.001, done.set)
        assert await answer(model, done) == model.name
    else:
        assert await tokens_of(model, number) == here.expected[number]
    here.outcomes["around"] += 1


async def operate(here: World, num_operations: int) -> None:
    """One worker: goes on until so many operations were carried out by all; refused ones do not count."""
    while sum(here.outcomes[kind] for kind in KINDS) < num_operations:
        name = here.dice.choice(here.dice.choice((REAL, LIGHT)))
        kind = here.dice.choice((*KINDS, "pin"))
        try:
            await carry_out(here, kind, name)
        except REFUSALS as error:
            kind = f"{kind}: {type(error).__name__}"
        here.outcomes[kind] += 1
        assert here.ledger.held_bytes <= here.ledger.limit_bytes


async def carry_out(here: World, kind: str, name: str) -> None:
    match kind:
        case "load":
            await here.host.load(ModelSource(name, options={"max_num_seqs": str(here.dice.randrange(2, 9))}))
        case "unload":
            await here.host.unload(name)
        case "replace":
            await here.host.replace(ModelSource(name, version=str(here.dice.randrange(3)) if name in LIGHT else ""))
        case "demand":
            async with here.host.get_or_load(name) as model:
                await ask_one(here, model, here.dice.randrange(len(QUESTIONS)))
        case "pin":
            here.host.pin(name)
            await asyncio.sleep(0.01)
            here.host.unpin(name)


async def come_and_go(here: World, num_operations: int) -> None:
    """Operations under traffic; afterwards only the steady model is left, and all memory is released."""
    here.outcomes.clear()
    here.is_over = False
    async with asyncio.TaskGroup() as clients:
        for number in range(2):
            clients.create_task(ask_steadily(here, number * 7))
            clients.create_task(ask_around(here, random.Random(number)))
        try:
            await asyncio.gather(*(operate(here, num_operations) for _ in range(NUM_WORKERS)))
        finally:
            here.is_over = True
    for status in here.host.statuses():
        if status.name != STEADY:
            await here.host.unload(status.name)
    await asyncio.gather(*here.host._leaving)  # white box: replaced models that are still being ended
    assert [model.name for model in here.registry.models] == [STEADY]
    assert [holding.name for holding in here.ledger.holdings] == [STEADY]


def resident_bytes() -> int:
    give_back()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


async def begun(tmp_path: Path) -> World:
    """A world in which the steady model is loaded, and its answers are known."""
    here = world(tmp_path)
    await here.host.load(ModelSource(STEADY))
    here.host.pin(STEADY)
    for number in range(len(QUESTIONS)):
        here.expected[number] = await tokens_of(here.registry.find(STEADY), number)
    return here


def test_some_loads_and_unloads_do_not_disturb_other_models(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = await begun(tmp_path)
        await come_and_go(here, NUM_OF_SOME)
        assert here.builder.num_real > 1, "the steady one, and others"
        assert here.outcomes["steady"] > 1
        await here.host.close()

    asyncio.run(scenario())


@pytest.mark.full("memory and threads that a model leaves behind show only after many")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_150_loads_and_unloads_do_not_disturb_other_models(tmp_path: Path) -> None:
    async def scenario() -> None:
        here = await begun(tmp_path)
        await come_and_go(here, NUM_WARM_UP)
        memory, threads = resident_bytes(), num_threads()
        here.builder.num_real = 0
        await come_and_go(here, NUM_OPERATIONS)
        growth = resident_bytes() - memory
        print(f"{dict(here.outcomes)}, {here.builder.num_real} real loads, {growth / MIB:+.1f} MiB")
        assert growth < TOLERANCE_BYTES
        assert num_threads() <= threads + TOLERANCE_THREADS
        assert here.builder.num_real > 8  # how many depends on what was busy when it was asked for
        assert here.outcomes["steady"] > 8
        assert here.outcomes["around"] > 8
        await here.host.close()

    asyncio.run(scenario())
