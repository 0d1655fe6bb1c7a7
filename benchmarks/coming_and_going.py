"""Loads, replaces and unloads models at random beside one that answers all the time, and tells what memory does meanwhile.

Does: serve copies of a model out of a store of its own, in this process, without HTTP; compare every answer of the
model that stays with what it answers alone; print resident and live memory and the threads every so many operations; say
what the bare runtime leaves. The last line is JSON. Does not: measure speed beyond how long operations take.

    python -m benchmarks.coming_and_going                              (the bundled model; a minute or two)
    python -m benchmarks.coming_and_going --model DIR --operations 1000
    python -m benchmarks.coming_and_going --bare 200                   (the runtime alone: KiB left per compiled graph)

Live memory is exact with GLIBC_TUNABLES=glibc.malloc.tcache_count=0; else threads keep some hundred KiB of it.

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

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from benchmarks.heap import live_bytes, num_heaps
from dragoman.cli.arguments import read_arguments
from dragoman.compose import ComposedModel, Composer, model_profile
from dragoman.config.resolve import demo_model_dir
from dragoman.config.run_time import ModelStore
from dragoman.config.several import resolve_all
from dragoman.errors import Conflict, NoMemory, NotFound
from dragoman.host.host import ModelHost
from dragoman.host.ledger import MemoryLedger
from dragoman.host.machine import available_memory_bytes
from dragoman.models.memory import bound_arenas
from dragoman.server.apis import set_up_all
from dragoman.server.hosting import ModelSource
from dragoman.server.registry import ModelRegistry, ServedModel
from dragoman.types import GenerationRequest, SamplingParams, TextPrompt

STEADY = "steady"
PROMPTS = ("Once upon a time", "What is deep learning?", "The sea", "In the beginning there was nothing but")
KINDS = ("load", "unload", "replace", "demand")
MIB = 1 << 20
_NUM_FIRST = 20  # compiled graphs until all that is made once is there


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
            samples.append(_show(done))
        await asyncio.gather(*(operate(trial, f"m{trial.dice.randrange(num_models)}") for _ in range(2)))
    trial.is_over = True
    await asking
    await unload_all(trial)
    samples.append(_show(done))
    await trial.host.close()
    return samples


def _show(done: int) -> dict[str, float]:
    """What is measured after so many operations; prints it."""
    live = round(live_bytes() / MIB, 2)  # first: it gives back what is freed
    sample = {"operations": done, "resident_mib": round(resident_mib(), 1), "live_mib": live, "heaps": num_heaps()}
    sample["threads"] = num_threads()
    print("  ".join(f"{name} {value:>8}" for name, value in sample.items()), flush=True)
    return sample


def measure_bare(num_compiles: int) -> dict[str, float]:
    """KiB that stay per graph that the runtime alone has compiled, run and released, after the first twenty."""
    dice = np.random.default_rng(0)
    weights = [dice.standard_normal((256, 256), dtype=np.float32) for _ in range(12)]
    core = ov.Core()
    begin: tuple[int, float] = (0, 0.0)
    for number in range(_NUM_FIRST + num_compiles):
        if number == _NUM_FIRST:
            begin = live_bytes(), resident_mib()
        rows = ops.parameter(ov.PartialShape([-1, 256]), ov.Type.f32, name="rows")
        last = rows
        for weight in weights:
            last = ops.relu(ops.matmul(last, ops.constant(weight), False, True))
        compiled = core.compile_model(ov.Model([ops.result(last)], [rows], "bare"), "CPU")
        compiled.create_infer_request().infer({"rows": np.zeros((8, 256), dtype=np.float32)})
        del compiled, last, rows
    live, resident = live_bytes() - begin[0], resident_mib() - begin[1]
    return {"live_kib": round(live / num_compiles / 1024, 2), "resident_kib": round(resident / num_compiles * 1024, 2)}


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
    parser.add_argument("--bare", type=int, metavar="COMPILES", help="only the runtime: what compiled graphs leave")
    asked = parser.parse_args()
    if asked.bare is not None:
        if asked.bare < 1:
            parser.error(f"argument --bare: {asked.bare} is not 1 or more")
        print(json.dumps({"compiles": asked.bare, **measure_bare(asked.bare)}))
        return
    bound_arenas()  # as a server does at its start
    with tempfile.TemporaryDirectory(prefix="dragoman-coming-") as work:
        trial = set_up(Path(work), asked.model, asked.models, asked.options, asked.seed)
        samples = asyncio.run(run(trial, asked.models, asked.operations, asked.every))
    means = {kind: round(trial.seconds[kind] / trial.outcomes[kind], 3) for kind in KINDS if trial.outcomes[kind]}
    print(f"mean seconds: {means}")
    print(json.dumps({"samples": samples, "outcomes": dict(trial.outcomes), "mean_s": means}))


if __name__ == "__main__":
    main()
