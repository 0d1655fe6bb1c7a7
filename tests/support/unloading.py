"""Tells what a process holds after it has served models and closed them; a process of its own, for nothing else to count.

python -m tests.support.unloading CACHE_DIR|- NUM_ROUNDS MODEL_DIR:WEIGHT_TYPE:ROLE...    the last line is JSON: a `Held`

In every round each model is loaded, answers a request, has its whole key/value cache written to, and is closed. ROLE
`alone`, or `draft` if it is its own draft model too. The closed engines are kept: closing is what must give memory back.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.models import ModelOptions, load_model
from dragoman.models import memory as runtime_memory
from dragoman.models.storage.constants import WeightType
from dragoman.types import EngineRequest, SamplingParams
from tests.support.step_memory import anonymous_mib

NUM_BLOCKS = 1500

_PROMPT = tuple(range(3, 200))


class Model(NamedTuple):
    """A model to load. `role`: alone or draft."""

    directory: Path
    weight_type: WeightType
    role: str = "alone"


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of the process that is no file's, in MiB, and the kept graphs that it maps; per round.

    `loaded`: while the round's last model is there. `closed`: when it is gone. `num_mapped`: then.
    """

    start: float = 0.0
    loaded: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)
    num_mapped: list[int] = field(default_factory=list)


def measure(models: Sequence[Model], num_rounds: int, cache_dir: Path | None) -> Held:
    """What a process holds that loads and closes `models`, one after the other, `num_rounds` times."""
    named = [f"{model.directory}:{model.weight_type}:{model.role}" for model in models]
    command = [sys.executable, "-m", __name__, str(cache_dir or "-"), str(num_rounds), *named]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return Held(**json.loads(done.stdout.splitlines()[-1]))


def _parse(named: str) -> Model:
    words: list[Any] = named.rsplit(":", 2)
    return Model(Path(words[0]), words[1], words[2])


def _num_mapped() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if line.endswith(".blob")})


def _runner(model: Model, cache_dir: Path | None) -> OpenVinoRunner:
    options = ModelOptions(model.weight_type, cache_dir=cache_dir)
    runner = OpenVinoRunner(load_model(model.directory, options), NUM_BLOCKS)
    runner.copy_blocks([(0, block) for block in range(1, NUM_BLOCKS)])
    return runner


async def _serve(model: Model, cache_dir: Path | None) -> tuple[RollingEngine, float]:
    """The closed engine, and what was held while it answered."""
    runner = _runner(model, cache_dir)
    proposers = [DraftModelProposer(_runner(model, cache_dir), runner)] if model.role == "draft" else []
    engine = RollingEngine(runner, Sampler(runner.vocab_size), proposers=proposers)
    await engine.start()
    async for _ in engine.generate(EngineRequest("r", _PROMPT, SamplingParams(), max_tokens=20, seed=1)):
        pass
    held = anonymous_mib()
    await engine.shutdown(drain_s=0)
    return engine, held


def main() -> None:
    """Load, close and tell."""
    cache_dir = None if sys.argv[1] == "-" else Path(sys.argv[1])
    models = [_parse(named) for named in sys.argv[3:]]
    held = Held(start=anonymous_mib())
    closed_engines = []
    for _ in range(int(sys.argv[2])):
        for model in models:
            engine, loaded = asyncio.run(_serve(model, cache_dir))
            closed_engines.append(engine)  # half a megabyte each: arrays in which steps are packed
        runtime_memory.give_back()
        held.loaded.append(loaded)
        held.closed.append(anonymous_mib())
        held.num_mapped.append(_num_mapped())
    sys.stdout.write(json.dumps(asdict(held)) + "\n")


if __name__ == "__main__":
    main()
