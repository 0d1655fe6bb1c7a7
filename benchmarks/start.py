"""Measures what loading a model takes: seconds of each stage, and memory at its peak and at the end.

Does: load a model in fresh processes, cold (its files out of the page cache, nothing kept), then with what the
first load kept; read the same files for comparison. The last line is JSON. Does not: start a server, or judge. Run by hand,
on an otherwise idle machine:

    python -m benchmarks.start                          (random weights in the shape of Llama 3.2 1B: 2.5 GB in a temporary
                                                         directory, another gigabyte or two for the kept graph)
    python -m benchmarks.start MODEL --dtype int4       (a directory or a GGUF file; `benchmarks.starts` makes them in
                                                         every format, and measures all)

Memory is what the process has for itself (RssAnon): pages of mapped files are the page cache's, and go when they are needed
elsewhere. Files leave the page cache by posix_fadvise; where the kernel keeps them all the same, that is told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 1 << 20
_PAUSE_S = 0.002  # between two looks at the memory
_STATUS = Path("/proc/self/status")


# --- in the process that loads ----------------------------------------------------------------------------------------


class MemoryWatch:
    """Looks at the process's memory all the time, on a thread of its own, and remembers the peak of each stage."""

    def __init__(self) -> None:
        self.stage = "importing"
        self.peaks_mib: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_PAUSE_S):
            self.look()

    def look(self) -> float:
        """What the process has for itself now, in MiB."""
        now = anonymous_mib()
        self.peaks_mib[self.stage] = max(self.peaks_mib.get(self.stage, 0.0), now)
        return now

    def end(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()


def anonymous_mib() -> float:
    """The memory that the process has for itself, in MiB."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024


def load_and_tell(model: Path, dtype: str, cache_dir: Path) -> dict[str, Any]:
    """Load the model in this process; seconds and peak memory by stage, and what is left at the end."""
    watch, begin, processor_begin = MemoryWatch(), time.perf_counter(), time.process_time()
    from dragoman.models import ModelOptions, load_model  # here, so that importing is a stage too
    from dragoman.models.memory import give_back

    seconds: dict[str, float] = {}
    processor_s: dict[str, float] = {}

    def enter(stage: str, _fraction: float = 0.0) -> None:
        nonlocal begin, processor_begin
        if stage != watch.stage:
            now, processor_now = time.perf_counter(), time.process_time()
            seconds[watch.stage], processor_s[watch.stage] = now - begin, processor_now - processor_begin
            watch.look()
            watch.stage, begin, processor_begin = stage, now, processor_now

    enter("reading config.json")
    options = ModelOptions(dtype, cache_dir=cache_dir)  # type: ignore[arg-type]  # the parser has checked it
    loaded = load_model(model, options, enter)
    enter("end")
    watch.end()
    give_back()
    return {
        "is_from_cache": loaded.from_cache,
        "seconds": seconds,
        "processor_s": processor_s,
        "peaks_mib": watch.peaks_mib,
        "end_mib": anonymous_mib(),
        "mapped_mib": sum(path.stat().st_size for path in cache_dir.iterdir()) / MIB if cache_dir.exists() else 0,
    }


# --- in the process that measures -------------------------------------------------------------------------------------


def drop_from_page_cache(paths: Sequence[Path]) -> bool:
    """Ask the kernel to forget the files' pages; True if it did."""
    are_gone = True
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            are_gone &= not _is_cached(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
    return are_gone


def _is_cached(descriptor: int, size: int) -> bool:
    """True if one of some pages can be read without waiting for the disk."""
    for part in range(1, 8):
        try:
            if os.preadv(descriptor, [bytearray(1)], size * part // 8, os.RWF_NOWAIT):
                return True
        except BlockingIOError:
            continue
    return False


def read_s(paths: Sequence[Path]) -> float:
    """Seconds to read the files from begin to end."""
    buffer, begin = bytearray(4 * MIB), time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin


def weight_files(model: Path) -> list[Path]:
    """The files with the model's weights, in whichever format they are."""
    if model.is_file():
        return [model]
    found = (sorted(model.glob(pattern)) for pattern in ("*.safetensors", "*.gguf", "openvino_*.bin"))
    files = next((files for files in found if files), None)
    if files is None:
        raise SystemExit(
            f"MODEL={model}: must be a GGUF file, or a directory with *.safetensors, *.gguf or openvino_*.bin"
        )
    return files


def measure(model: Path, dtype: str, rounds: int) -> dict[str, Any]:
    """The best of some rounds, each of which reads the files, loads the model cold, and with what that kept."""
    files = weight_files(model)
    reads: list[float] = []
    loads: dict[str, list[dict[str, Any]]] = {"cold": [], "kept": []}
    is_cold = True
    for _ in range(rounds):
        is_cold &= drop_from_page_cache(files)
        reads.append(read_s(files))
        is_cold &= drop_from_page_cache(files)
        with tempfile.TemporaryDirectory() as cache:
            loads["cold"].append(_load_elsewhere(model, dtype, Path(cache)))
            drop_from_page_cache(list(Path(cache).iterdir()))
            loads["kept"].append(_load_elsewhere(model, dtype, Path(cache)))
    best = {name: min(runs, key=_load_s) for name, runs in loads.items()}
    return {"is_cold": is_cold, "bytes": sum(file.stat().st_size for file in files), "read_s": min(reads), **best}


def _load_elsewhere(model: Path, dtype: str, cache: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.start", str(model), "--dtype", dtype, "--load-once", str(cache)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _load_s(run: dict[str, Any]) -> float:
    seconds: dict[str, float] = run["seconds"]
    return sum(value for stage, value in seconds.items() if stage != "importing")


def tell(result: dict[str, Any]) -> Iterator[str]:
    """The result in lines for people."""
    if not result["is_cold"]:
        yield "the kernel kept the files in its page cache: nothing here is cold"
    yield f"{result['bytes'] / 1e9:.2f} GB read in {result['read_s']:.2f} s"
    for name in ("cold", "kept"):
        run = result[name]
        peak, end, mapped = max(run["peaks_mib"].values()), run["end_mib"], run["mapped_mib"]
        yield f"{name}: {_load_s(run):.2f} s, {_load_s(run) / result['read_s']:.2f} times reading the files"
        yield f"      peak {peak:.0f} MiB, at the end {end:.0f} MiB and a mapped file of {mapped:.0f} MiB: "
        yield f"      the peak is {peak / (end + mapped):.2f} of both, {peak / end:.2f} of the first"
        for stage, stage_s in run["seconds"].items():
            processor_s, peak = run["processor_s"][stage], run["peaks_mib"][stage]
            yield f"      {stage:20} {stage_s:5.2f} s, of processors {processor_s:5.2f} s, peak {peak:6.0f} MiB"


@contextmanager
def model_directory(path: Path | None) -> Iterator[Path]:
    """The model that was named, or one with random weights that is gone afterwards."""
    if path is not None:
        yield path
        return
    from benchmarks.serving.model import BenchShape, write_weights

    llama_1b = BenchShape(2048, 16, 32, 8, 64, 8192, max_position=131_072, vocab_size=128_256, is_tied=True)
    with tempfile.TemporaryDirectory() as directory:
        write_weights(Path(directory), llama_1b)
        yield Path(directory)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What loading a model takes.")
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL", help="none = random weights, 1.2 billion")
    parser.add_argument("--dtype", default="int8", choices=("int8", "int4", "bf16", "f16", "f32"))
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    parser.add_argument("--load-once", type=Path, metavar="CACHE_DIR", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.load_once is not None:
        sys.stdout.write(json.dumps(load_and_tell(asked.model, asked.dtype, asked.load_once)) + "\n")
        return
    with model_directory(asked.model) as directory:
        result = measure(directory, asked.dtype, asked.rounds)
    sys.stdout.write("".join(f"{line}\n" for line in tell(result)) + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
