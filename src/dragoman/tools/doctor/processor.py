"""What the processor can do, how many of its cores may be used, and how they are driven.

Does: read what Linux tells. Does not: decide how models run (`models.profile` does), or ask the runtime, which may not even
start here. Called by `examine`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dragoman.cores.topology import time_quota
from dragoman.tools.doctor.findings import Finding, Places, Section

# Flags of /proc/cpuinfo, and what they are called elsewhere.
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


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """`num_cores`: logical ones of the machine; `num_usable`: of these, those that this process may run on. `quota`: cores'
    worth of time that its groups may take, None = no limit. `num_nodes`: of memory (NUMA). `governor` "" = unknown.
    """

    name: str
    machine: str
    features: tuple[str, ...]
    num_cores: int
    num_usable: int
    quota: float | None
    num_nodes: int
    governor: str

    @property
    def usable_cores(self) -> float:
        """Cores' worth of time."""
        return self.num_usable if self.quota is None else min(self.num_usable, self.quota)


def processor_facts(places: Places, machine: str, affinity: Callable[[], int] | None = None) -> ProcessorFacts:
    """What is told. `machine`: "" = this architecture. `affinity`: the number of cores it may run on, None = Linux's."""
    machine = machine or platform.machine()
    text = places.text("proc/cpuinfo")
    fields = dict(_fields(text))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    cores = sum(line.startswith("processor") for line in text.splitlines()) or os.cpu_count() or 1
    return ProcessorFacts(
        name=fields.get("model name") or fields.get("Hardware") or machine,
        machine=machine,
        features=tuple(word for flag, word in _FEATURES.items() if flag in flags),
        num_cores=cores,
        num_usable=min(cores, affinity() if affinity else len(os.sched_getaffinity(0))),
        quota=time_quota(places.text),
        num_nodes=max(1, sum(1 for _ in places.names("sys/devices/system/node", "node[0-9]*"))),
        governor=places.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    )


def processor_section(facts: ProcessorFacts) -> Section:
    """What is told of the processor, and what is wrong with it."""
    usable = f", {facts.num_usable} of them usable" if facts.num_usable < facts.num_cores else ""
    quota = f", {facts.quota:g} cores' worth of time allowed" if facts.quota is not None else ""
    nodes = f", {facts.num_nodes} memory nodes" if facts.num_nodes > 1 else ""
    governor = f", governor {facts.governor}" if facts.governor else ""
    lines = (
        f"{facts.name} ({facts.machine})",
        ", ".join(facts.features) or "no vector instructions that are known here",
        f"{facts.num_cores} cores{usable}{quota}{nodes}{governor}",
    )
    told = {
        "name": facts.name,
        "machine": facts.machine,
        "features": list(facts.features),
        "cores": facts.num_cores,
        "usable_cores": facts.num_usable,
        "quota_cores": facts.quota,
        "memory_nodes": facts.num_nodes,
        "governor": facts.governor or None,
    }
    return Section("processor", lines, told, (*_of_instructions(facts), *_of_cores(facts)))


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
    if facts.quota is not None and facts.quota < facts.num_usable:
        threads = max(1, int(facts.quota))
        yield Finding(
            "warning",
            f"{facts.num_usable} cores share {facts.quota:g} cores' worth of time: kernels get {_threads(threads)}",
            "give the container cores of its own (a cpuset), or allow it more processor time (see docs/many_cores.md)",
        )
    if facts.num_nodes > 1:
        yield Finding(
            "note",
            f"memory lies in {facts.num_nodes} nodes: one engine would use the cores of one socket",
            "serve with --numa auto, which runs an engine on each node (see docs/many_cores.md)",
        )
    if facts.governor == _POWER_SAVING:
        yield Finding(
            "note",
            "the processor saves power, and may be slow to speed up",
            "sudo cpupower frequency-set -g performance",
        )


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Of the first core."""
    for line in text.partition("\n\n")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()
