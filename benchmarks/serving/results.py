"""Results of measurements: one JSON line each, in a file that only grows.

Does: write a line as soon as there is a result, read lines back, and describe the machine. Does not: measure or judge.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

Value = float | int | str | bool | None

FILE_NAME = "results.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a row's table. `subject`: what was measured, unique within its row; `settings`: how."""

    row: int
    subject: str
    values: Mapping[str, Value]
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """A stored result. `machine` and `time` (UTC, ISO 8601) tell where and when it was taken."""

    result: Result
    machine: Mapping[str, Value]
    time: str


def append(directory: Path, result: Result) -> None:
    """Add `result` to the directory's file; the directory is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    time = datetime.now(UTC).isoformat(timespec="seconds")
    line = {**asdict(result), "machine": machine(), "time": time}
    with (directory / FILE_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(directory: Path) -> list[Line]:
    """Every stored result, oldest first. Raises: FileNotFoundError if there is none."""
    return list(_lines(directory / FILE_NAME))


def _lines(path: Path) -> Iterator[Line]:
    for text in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(text)
        result = Result(entry["row"], entry["subject"], entry["values"], entry["settings"])
        yield Line(result, entry["machine"], entry["time"])


def latest(lines: list[Line]) -> list[Line]:
    """The newest line for each row and subject, in the order in which they first appeared within their row."""
    newest: dict[tuple[int, str], Line] = {}
    for line in lines:
        newest[line.result.row, line.result.subject] = line
    return sorted(newest.values(), key=lambda line: line.result.row)


def machine() -> dict[str, Value]:
    """What numbers depend on: processor, cores, its vector instructions, memory, versions."""
    facts = _first_values(Path("/proc/cpuinfo"), ("model name", "flags"))
    flags = facts.get("flags", "").split()
    memory = _first_values(Path("/proc/meminfo"), ("MemTotal",)).get("MemTotal", "0 kB")
    wanted = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    return {
        "processor": facts.get("model name", platform.processor()),
        "cores": os.cpu_count() or 0,
        "vector": " ".join(flag for flag in wanted if flag in flags),
        "memory_gib": round(int(memory.split()[0]) / 2**20, 1),
        "python": platform.python_version(),
        "openvino": version("openvino"),
        "dragoman": version("dragoman"),
    }


def _first_values(path: Path, keys: tuple[str, ...]) -> dict[str, str]:
    """The first value of each key in a file of `key: value` lines; {} where there is no such file."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            found.setdefault(key.strip(), value.strip())
    return found
