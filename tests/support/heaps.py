"""Tells over how many heaps threads are spread that allocate at once after a load; a process of its own.

python -m tests.support.heaps MODEL_DIR    the last line is the number of heaps
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from benchmarks.heap import num_heaps
from dragoman.models import ModelOptions, load_model

_NUM_THREADS = 6


def measure(directory: Path, environ: dict[str, str]) -> int:
    """The heaps of a process that loads the model of `directory`, then allocates on several threads at once."""
    command = [sys.executable, "-m", __name__, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=os.environ | environ)
    return int(done.stdout.splitlines()[-1])


def main() -> None:
    """Load, allocate and tell."""
    load_model(Path(sys.argv[1]), ModelOptions("f32"))
    together = threading.Barrier(_NUM_THREADS)

    def allocate() -> None:
        held = bytearray(5_000)
        together.wait()
        del held

    threads = [threading.Thread(target=allocate) for _ in range(_NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{num_heaps()}\n")


if __name__ == "__main__":
    main()
