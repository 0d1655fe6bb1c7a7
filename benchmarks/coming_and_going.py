"""Loads, replaces and unloads models at random beside one that answers all the time, and tells what memory does meanwhile.

Does: serve copies of a model out of a store of its own, in this process, without HTTP; compare every answer of the
model that stays with what it answers alone; print the resident memory and the threads every so many operations. The
last line is JSON. Does not: measure speed beyond how long operations take.

    python -m benchmarks.coming_and_going                              (the bundled model; a minute or two)
    python -m benchmarks.coming_and_going --model DIR --operations 1000

Operations follow from the seed; which of them are refused depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.cli.arguments import read_arguments
from dragoman.compose import ComposedModel, Composer, model_profile
from dragoman.config.resolve import demo_model_dir
from dragoman.config.run_time import ModelStore
from dragoman.config.several import resolve_all
from dragoman.errors import Conflict, NoMemory, NotFound
from dragoman.host.host import ModelHost
from dragoman.host.ledger import MemoryLedger
from dragoman.host.machine import available_memory_bytes
from dragoman.server.apis import set_up_all
from dragoman.server.hosting import ModelSource
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.types import GenerationRequest, SamplingParams, TextPrompt

STEADY = "steady"
PROMPTS = ("Once upon a time", "What is deep learning?", "The sea", "In the beginning there was nothing but")
KINDS = ("load", "unload", "replace", "demand")
MIB = 1 << 20


@dataclass
class Trial:
    """One run: who owns the models, what is expected, and what happened."""

    host: ModelHost[ComposedModel]
    registry: ModelRegistry
    dice: random.Random
    expected: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    is_over: bool = False


def set_up(work: Path, model: Path, num_models: int, options: str, seed: int) -> Trial:
    """A host over a store with so many copies of the model beside the one that stays."""
    for name in (STEADY, *(f"m{number}" for number in range(num_models))):
        shutil.copytree(model, work / "store" / name)
    line = f"--load-models NONE --model-store {work}/store --cache-dir {work}/cache {options}"
    arguments = read_arguments(line.split())
    if arguments.problems:
        raise SystemExit("\n".join(arguments.problems))
    found = resolve_all(arguments.givens, {}, demo_model_dir())
    registry = ModelRegistry(set_up_all(model_profile(found.process)), can_be_empty=True)
    store = ModelStore(found.store, found.process, arguments.givens, {}, demo_model_dir())
    ledger = MemoryLedger(available_memory_bytes(), available_memory_bytes)
    host = ModelHost(registry, Composer(), store, ledger, drain_s=60.0)
    registry.mark_ready()
    return Trial(host, registry, random.Random(seed))


async def tokens_of(model: ServedModel, prompt: str) -> tuple[int, ...]:
    """The greedy answer."""
    request = GenerationRequest(prompt, TextPrompt(prompt), SamplingParams(temperature=0.0), max_tokens=24)
    with model.admission.visit(), model.admission.permit():
        result = await model.service.generate(request)
    return tuple(token.id for token in result.sequences[0].tokens)


async def ask_steadily(trial: Trial) -> None:
    """Ask the model that stays until all is over. Raises: AssertionError if an answer is not what it is alone."""
    while not trial.is_over:
        prompt = PROMPTS[trial.outcomes["answers"] % len(PROMPTS)]
        assert await tokens_of(trial.registry.find(STEADY), prompt) == trial.expected[prompt]
        trial.outcomes["answers"] += 1


async def operate(trial: Trial, name: str) -> None:
    """One operation on one model, whatever its outcome."""
    kind, begin = trial.dice.choice(KINDS), time.perf_counter()
    try:
        if kind == "load":
            await trial.host.load(ModelSource(name))
        elif kind == "unload":
            await trial.host.unload(name)
        elif kind == "replace":
            await trial.host.replace(ModelSource(name))
        else:
            async with trial.host.get_or_load(name) as model:
                await tokens_of(model, PROMPTS[0])
    except (Conflict, NotFound, NoMemory) as error:
        trial.outcomes[f"{kind}: {type(error).__name__}"] += 1
    else:
        trial.outcomes[kind] += 1
        trial.seconds[kind] += time.perf_counter() - begin


def resident_mib() -> float:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def num_threads() -> int:
    """The threads of this process, the runtime's included."""
    return len(os.listdir("/proc/self/task"))


async def run(trial: Trial, num_models: int, num_operations: int, every: int) -> list[dict[str, float]]:
    """Carry out the operations, two at a time; what was measured every so many, with only the steady model loaded."""
    await trial.host.load(ModelSource(STEADY))
    trial.host.pin(STEADY)
    for prompt in PROMPTS:
        trial.expected[prompt] = await tokens_of(trial.registry.find(STEADY), prompt)
    asking = asyncio.create_task(ask_steadily(trial))
    samples: list[dict[str, float]] = []
    while (done := sum(trial.outcomes[kind] for kind in KINDS)) < num_operations and not asking.done():
        if done >= len(samples) * every:
            await unload_all(trial)
            samples.append({"operations": done, "resident_mib": round(resident_mib(), 1), "threads": num_threads()})
            print(f"{done:6d} operations  {resident_mib():8.1f} MiB  {num_threads():4d} threads", flush=True)
        await asyncio.gather(*(operate(trial, f"m{trial.dice.randrange(num_models)}") for _ in range(2)))
    trial.is_over = True
    await asking
    await unload_all(trial)
    samples.append({"operations": done, "resident_mib": round(resident_mib(), 1), "threads": num_threads()})
    await trial.host.close()
    return samples


async def unload_all(trial: Trial) -> None:
    """Unload all but the steady model."""
    for status in trial.host.statuses():
        if status.name != STEADY:
            await trial.host.unload(status.name)


def main() -> None:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=demo_model_dir(), help="model directory to copy")
    parser.add_argument("--models", type=int, default=4, help="how many copies come and go")
    parser.add_argument("--operations", type=int, default=300, help="operations that are carried out")
    parser.add_argument("--every", type=int, default=30, help="operations between two samples")
    parser.add_argument("--options", default="--dtype f32 --kv-cache-gb 0.02", help="options of all models")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dragoman-coming-") as work:
        trial = set_up(Path(work), asked.model, asked.models, asked.options, asked.seed)
        samples = asyncio.run(run(trial, asked.models, asked.operations, asked.every))
    means = {kind: round(trial.seconds[kind] / trial.outcomes[kind], 3) for kind in KINDS if trial.outcomes[kind]}
    print(f"mean seconds: {means}")
    print(json.dumps({"samples": samples, "outcomes": dict(trial.outcomes), "mean_s": means}))


if __name__ == "__main__":
    main()
