"""Tells how a process's memory grows with the sizes of steps it computes; a process of its own, for nothing else to count.

python -m tests.support.step_memory MODEL_DIR SIZE...    the last line is JSON, the fields of `StepMemory`
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import BLOCK_SIZE, ModelOptions, load_model
from tests.support.forward import forward_batch

CAN_TELL = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")
"""Whether this machine counts memory as this module reads it, and has the C library that keeps freed memory."""

_NUM_DECODING = 8  # sequences that decode in every step, as far as it has room for them


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of a process that is no file's, in MiB: after each step, and what the last one really `needed`."""

    after: list[float]
    needed: float


def measure(directory: Path, sizes: Sequence[int]) -> StepMemory:
    """What a process holds that computes steps of `sizes` tokens, in this order."""
    command = [sys.executable, "-m", __name__, str(directory), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return StepMemory(**json.loads(done.stdout.splitlines()[-1]))


def _step(size: int) -> ForwardBatch:
    """A few sequences that decode, each in a block of its own, and a prompt."""
    num_decoding = min(_NUM_DECODING, size - 1)
    prompt = [3] * (size - num_decoding)
    decoding = [([3], 2, [number]) for number in range(num_decoding)]
    blocks = range(_NUM_DECODING, _NUM_DECODING - (-len(prompt) // BLOCK_SIZE))
    return forward_batch([*decoding, (prompt, 0, blocks)], logit_rows=[*range(num_decoding), size - 1])


def anonymous_mib() -> float:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def main() -> None:
    """Compute the steps and tell."""
    sizes = [int(size) for size in sys.argv[2:]]
    num_blocks = _NUM_DECODING - (-max(sizes) // BLOCK_SIZE)
    runner = OpenVinoRunner(load_model(Path(sys.argv[1]), ModelOptions()), num_blocks)
    after = []
    for size in sizes:
        runner.forward(_step(size))
        after.append(anonymous_mib())
    ctypes.CDLL(None).malloc_trim(0)
    sys.stdout.write(json.dumps({"after": after, "needed": anonymous_mib()}) + "\n")


if __name__ == "__main__":
    main()
