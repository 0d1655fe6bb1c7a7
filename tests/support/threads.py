"""Where the threads of a process may run, as Linux tells it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from dragoman.cores import Cores, parse_cores


def allowed_cores(pid: int) -> Counter[Cores]:
    """How many of the process's threads may run on which cores."""
    found: Counter[Cores] = Counter()
    for thread in os.listdir(f"/proc/{pid}/task"):
        if cores := thread_cores(pid, int(thread)):
            found[cores] += 1
    return found


def thread_cores(pid: int, thread: int) -> Cores:
    """The cores of one thread; none if it has ended. The main thread has the process's number."""
    try:
        status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return frozenset()
    (line,) = (line for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    return parse_cores(line.partition(":")[2].strip())


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that still run."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and entry != str(pid):
            try:
                words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(words[1]) == pid and words[0] != "Z":
                found.append(int(entry))
    return sorted(found)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
