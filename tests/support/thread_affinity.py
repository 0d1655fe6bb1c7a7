"""Tells whether a model's threads are tied to cores while it computes; a process of its own, for no other threads to count.

python -m tests.support.thread_affinity MODEL_DIR alone|neighbours [CACHE_DIR]    prints true or false
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import ModelOptions, load_model
from tests.support.forward import forward_batch

NUM_STEPS = 50


def are_tied(directory: Path, *, has_neighbours: bool, cache_dir: Path | None = None) -> bool:
    """Whether any thread of a process that computes steps may not run on all cores of the process."""
    arguments = [str(directory), "neighbours" if has_neighbours else "alone", *([str(cache_dir)] if cache_dir else [])]
    command = [sys.executable, "-m", __name__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return bool(json.loads(done.stdout.splitlines()[-1]))


def _is_any_tied(cores: set[int]) -> bool:
    for thread in os.listdir("/proc/self/task"):
        try:
            if os.sched_getaffinity(int(thread)) != cores:
                return True
        except ProcessLookupError:  # it has ended meanwhile
            continue
    return False


def main() -> None:
    """Compute steps, look at the threads meanwhile, and tell."""
    cores = os.sched_getaffinity(0)
    cache_dir = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    loaded = load_model(
        Path(sys.argv[1]), ModelOptions(has_neighbours=sys.argv[2] == "neighbours", cache_dir=cache_dir)
    )
    runner = OpenVinoRunner(loaded, num_blocks=8)
    batch = forward_batch([([3] * 200, 0, range(7))], logit_rows=[199])

    def compute() -> None:
        for _ in range(NUM_STEPS):
            runner.forward(batch)

    engine = threading.Thread(target=compute)
    engine.start()
    is_tied = False
    while engine.is_alive():
        is_tied = _is_any_tied(cores) or is_tied
    engine.join()
    sys.stdout.write(json.dumps(is_tied or _is_any_tied(cores)) + "\n")


if __name__ == "__main__":
    main()
