"""Examines the machine: its processor, its memory, the caches on its disks, and the server's port. Without the runtime.

Measures memory and disks for less than a second each, and writes a temporary file.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from dragoman.cores import time_quota
from dragoman.host.machine import available_memory_bytes
from dragoman.tools.doctor.findings import Finding, Section, in_gb

# Flags of /proc/cpuinfo, and their usual names.
_FEATURES = {
    "sse4_2": "SSE4.2",
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "bf16",
    "amx_tile": "AMX",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "sve": "SVE",
}
_X86, _ARM = ("x86_64", "amd64"), ("aarch64", "arm64")
_POWER_SAVING = "powersave"

LEAST_BYTES = 512 << 20  # the runtime, its compiled code and a small model with a short context
_LEAST_DESCRIPTORS = 1024  # one per connection, and some files
_SMALLEST_BUFFER = 32 << 20

_PROBE_BYTES = 64 << 20
_PROBE_PIECE = 4 << 20
_PROBE_S = 0.5  # for writing, and for reading; less shows a slow disk too
_LEAST_FREE = 2 << 30  # a small model and its build
_MANY_FILES = 100_000  # files to add up; more would take too long

_LISTENS = "0A"  # the state of listening in /proc/net/tcp


def _hard_limit(kind: int) -> int:
    return resource.getrlimit(kind)[1]


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Machine:
    """The examined machine as Linux and Python describe it; tests replace parts. `root`: of Linux's files.

    `limit`: a resource's hard limit, -1 = none. `find`: a package's version, or raises PackageNotFoundError.
    """

    root: Path = Path("/")
    architecture: str = field(default_factory=platform.machine)
    limit: Callable[[int], int] = _hard_limit
    usable_cores: Callable[[], int] = _usable_cores
    find: Callable[[str], str] = version

    def text(self, path: str) -> str:
        """The file's text, stripped; "" if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        text = self.text(path)
        return int(text) if text.isdecimal() else None

    def names(self, path: str, pattern: str) -> Iterator[str]:
        yield from sorted(entry.name for entry in (self.root / path).glob(pattern))


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """Facts about the processor. `memory_nodes`: NUMA. `quota_cores`: the groups' time limit, None = none."""

    name: str
    machine: str
    features: list[str]
    cores: int
    usable_cores: int
    quota_cores: float | None
    memory_nodes: int
    governor: str | None

    @property
    def cores_of_time(self) -> float:
        """The usable cores, within the groups' time limit."""
        return self.usable_cores if self.quota_cores is None else min(self.usable_cores, self.quota_cores)


def processor_facts(machine: Machine) -> ProcessorFacts:
    text = machine.text("proc/cpuinfo")
    fields = dict(_fields(text))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    cores = sum(line.startswith("processor") for line in text.splitlines()) or os.cpu_count() or 1
    return ProcessorFacts(
        name=fields.get("model name") or fields.get("Hardware") or machine.architecture,
        machine=machine.architecture,
        features=[word for flag, word in _FEATURES.items() if flag in flags],
        cores=cores,
        usable_cores=min(cores, machine.usable_cores()),
        quota_cores=time_quota(machine.text),
        memory_nodes=max(1, sum(1 for _ in machine.names("sys/devices/system/node", "node[0-9]*"))),
        governor=machine.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
    )


def processor_section(facts: ProcessorFacts) -> Section:
    usable = f", {facts.usable_cores} of them usable" if facts.usable_cores < facts.cores else ""
    quota = f", {facts.quota_cores:g} cores' worth of time allowed" if facts.quota_cores is not None else ""
    nodes = f", {facts.memory_nodes} memory nodes" if facts.memory_nodes > 1 else ""
    governor = f", governor {facts.governor}" if facts.governor else ""
    lines = (
        f"{facts.name} ({facts.machine})",
        ", ".join(facts.features) or "no vector instructions that are known here",
        f"{facts.cores} cores{usable}{quota}{nodes}{governor}",
    )
    return Section("processor", lines, asdict(facts), (*_of_instructions(facts), *_of_cores(facts)))


def _of_instructions(facts: ProcessorFacts) -> Iterator[Finding]:
    has = facts.features.__contains__
    if facts.machine in _ARM:
        if not has("SVE"):
            yield Finding(
                "problem", "this Arm processor has no SVE, and the attention kernels need it", "use another machine"
            )
    elif facts.machine not in _X86:
        yield Finding("problem", f"there are no kernels for {facts.machine}", "use an x86-64 or Arm (SVE) machine")
    elif not has("SSE4.2"):
        yield Finding("problem", "this processor has no SSE4.2, without which the runtime does not start", _NEWER)
    elif not has("AVX2"):
        yield Finding("problem", "this processor has no AVX2, which the attention kernels need", _NEWER)
    elif not (has("VNNI") or has("AVX-VNNI")):
        yield Finding(
            "note", "this processor has no VNNI: weights of 8 bits are unpacked before they are multiplied", _BATCHES
        )


_NEWER = "use a processor of 2013 or later; in a virtual machine, have it pass the host's processor through"
_BATCHES = "a processor with AVX-512 and VNNI is several times faster at prompts and with many streams"


def _of_cores(facts: ProcessorFacts) -> Iterator[Finding]:
    if facts.quota_cores is not None and facts.quota_cores < facts.usable_cores:
        count = max(1, int(facts.quota_cores))
        threads = "one thread" if count == 1 else f"{count} threads"
        yield Finding(
            "warning",
            f"{facts.usable_cores} cores share {facts.quota_cores:g} cores' worth of time: kernels get {threads}",
            "give the container cores of its own (a cpuset), or allow it more processor time (see docs/many_cores.md)",
        )
    if facts.memory_nodes > 1:
        yield Finding(
            "note",
            f"memory lies in {facts.memory_nodes} nodes: one engine would use the cores of one socket",
            "serve with --numa auto, which runs an engine on each node (see docs/many_cores.md)",
        )
    if facts.governor == _POWER_SAVING:
        yield Finding(
            "note",
            "the processor saves power, and may be slow to speed up",
            "sudo cpupower frequency-set -g performance",
        )


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.partition("\n\n")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


# --- memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Facts about memory, in bytes. `huge_pages`: "always", "madvise", "never", None = unknown.

    `available_bytes`: within the groups' limits. `address_space_bytes`: that the process may map, None = no limit.
    `bytes_per_s`: read by all cores together, None = no room to measure.
    """

    total_bytes: int | None
    available_bytes: int
    address_space_bytes: int | None
    open_files: int
    bytes_per_s: float | None
    huge_pages: str | None


def memory_facts(machine: Machine, num_threads: int) -> MemoryFacts:
    root = machine.root
    available = available_memory_bytes(root / "proc/meminfo", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    space = machine.limit(resource.RLIMIT_AS)
    modes = machine.text("sys/kernel/mm/transparent_hugepage/enabled")
    return MemoryFacts(
        total_bytes=_total(machine),
        available_bytes=available,
        address_space_bytes=None if space == resource.RLIM_INFINITY else space,
        open_files=machine.limit(resource.RLIMIT_NOFILE),
        bytes_per_s=_bandwidth(num_threads, available),
        huge_pages=modes.partition("[")[2].partition("]")[0] or None,
    )


def memory_section(facts: MemoryFacts) -> Section:
    total = f" of {in_gb(facts.total_bytes)}" if facts.total_bytes is not None else ""
    speed = "too little to measure its speed" if facts.bytes_per_s is None else f"reads {in_gb(facts.bytes_per_s)}/s"
    pages = f", huge pages: {facts.huge_pages}" if facts.huge_pages else ""
    files = "any number of" if facts.open_files == resource.RLIM_INFINITY else facts.open_files
    lines = (
        f"{in_gb(facts.available_bytes)}{total} available, {speed}",
        f"{files} open files at most{pages}",
    )
    return Section("memory", lines, asdict(facts), tuple(_memory_findings(facts)))


def _memory_findings(facts: MemoryFacts) -> Iterator[Finding]:
    if facts.available_bytes < LEAST_BYTES:
        yield Finding(
            "problem",
            f"{in_gb(facts.available_bytes)} of memory are available, and even a small model needs {in_gb(LEAST_BYTES)}",
            "end other processes, or allow the container more memory",
        )
    if facts.address_space_bytes is not None:
        yield Finding(
            "warning",
            f"the process may map {in_gb(facts.address_space_bytes)} at most, its weights' files included",
            "ulimit -v unlimited, and bound memory by a control group instead",
        )
    if 0 <= facts.open_files < _LEAST_DESCRIPTORS:
        yield Finding(
            "warning",
            f"the process may open {facts.open_files} files at most, and each connection takes one",
            "raise it with ulimit -Hn 65536 or LimitNOFILE=65536 (systemd)",
        )


def _bandwidth(num_threads: int, available: int) -> float | None:
    try:
        from dragoman.tools.memory_speed import BUFFER_BYTES, memory_bandwidth
    except ImportError:  # numpy itself is broken
        return None
    size = min(BUFFER_BYTES, available // 4)
    try:
        return memory_bandwidth(num_threads, size) if size >= _SMALLEST_BUFFER else None
    except MemoryError:  # an unknown limit
        return None


def _total(machine: Machine) -> int | None:
    for line in machine.text("proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


# --- disks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory that a server writes. `lost`: the consequence without write access; `mend`: the remedy."""

    name: str
    path: Path
    purpose: str
    lost: str
    mend: str


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Facts about a cache, in bytes. `parent`: the nearest existing directory. `read_speed`: a second, None = unknown."""

    cache: Cache
    parent: Path
    is_writable: bool
    size: int
    free: int
    read_speed: float | None = None


def cache_facts(cache: Cache, *, measures: bool) -> CacheFacts:
    parent = cache.path
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    is_writable = _can_write(parent)
    free = shutil.disk_usage(parent).free
    speed = _read_speed(parent) if measures and is_writable and free > 4 * _PROBE_BYTES else None
    return CacheFacts(cache, parent, is_writable, _size(cache.path), free, speed)


def storage_section(found: tuple[CacheFacts, ...], *, is_offline: bool) -> Section:
    lines = [*map(_cache_line, found)] + (["the network is not used: HF_HUB_OFFLINE is set"] if is_offline else [])
    told = {
        "caches": [
            {
                "name": facts.cache.name,
                "path": str(facts.cache.path),
                "is_writable": facts.is_writable,
                "size_bytes": facts.size,
                "free_bytes": facts.free,
                "read_bytes_per_s": facts.read_speed,
            }
            for facts in found
        ],
        "is_offline": is_offline,
    }
    return Section("disk", tuple(lines), told, tuple(_cache_findings(found)))


def _cache_line(facts: CacheFacts) -> str:
    state = "" if facts.is_writable else ", cannot be written"
    speed = f", reads {in_gb(facts.read_speed)}/s" if facts.read_speed else ""
    return f"{facts.cache.purpose}: {facts.cache.path}, {in_gb(facts.size)}, {in_gb(facts.free)} free{speed}{state}"


def _cache_findings(found: tuple[CacheFacts, ...]) -> Iterator[Finding]:
    for facts in found:
        if not facts.is_writable:
            yield Finding("warning", f"{facts.parent} cannot be written: {facts.cache.lost}", facts.cache.mend)
        elif facts.free < _LEAST_FREE:
            yield Finding(
                "warning",
                f"{in_gb(facts.free)} are free where {facts.cache.purpose} lie ({facts.parent})",
                f"make room, or {facts.cache.mend}",
            )


def _can_write(directory: Path) -> bool:
    """True if a file can be created there; permissions do not show read-only disks."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _size(path: Path) -> int:
    """Bytes of the files below, without links, so that the hub's files count once."""
    total = count = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(directory, name))
            except OSError:
                continue
            total += status.st_blocks * 512
            count += 1
        if count > _MANY_FILES:
            break
    return total


def _read_speed(directory: Path) -> float | None:
    """Bytes per second from the disk itself; the file is first dropped from the page cache."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            piece = os.urandom(_PROBE_PIECE)
            begin, size = perf_counter(), 0
            while size < _PROBE_BYTES and perf_counter() - begin < _PROBE_S:
                size += file.write(piece) or 0
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            begin, num_read = perf_counter(), 0
            while perf_counter() - begin < _PROBE_S and (got := file.read(_PROBE_PIECE)):
                num_read += len(got)
            return num_read / max(perf_counter() - begin, 1e-9)
    except OSError:
        return None


# --- port -------------------------------------------------------------------------------------------------------------


def port_section(machine: Machine, host: str, port: int) -> Section:
    """The section on `port`; 0 = any free port. `host`: one or several, separated by commas."""
    facts = {"host": host, "port": port}
    try:
        for address in host.split(","):
            _listen(address, port).close()
    except OSError as error:
        holder = _holder(machine, port)
        by = f" by {holder}" if holder else ""
        why = (error.strerror or str(error)).partition(" (while ")[0]  # Python repeats the address
        reason = f"cannot listen on {address} port {port}: {why}"
        finding = Finding("problem", reason, f"it is held{by}: end that, or serve with --port {port + 1}")
        if isinstance(error, PermissionError):
            finding = Finding("problem", reason, "serve with a --port above 1023")
        return Section("port", (f"{host} port {port} cannot be used",), {**facts, "is_free": False}, (finding,))
    return Section("port", (f"{host} port {port or 'any'} is free",), {**facts, "is_free": True})


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _holder(machine: Machine, port: int) -> str:
    """The process that listens there; "" if it is not visible."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(machine, port)}
    for number in machine.names("proc", "[0-9]*") if wanted else ():
        directory = machine.root / "proc" / number / "fd"
        with suppress(OSError):
            if any(os.readlink(link) in wanted for link in directory.iterdir()):
                return f"process {number} ({machine.text(f'proc/{number}/comm')})"
    return ""


def _inodes(machine: Machine, port: int) -> Iterator[str]:
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in machine.text(table).splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTENS and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]
