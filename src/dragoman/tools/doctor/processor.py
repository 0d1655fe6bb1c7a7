"""Examines the processor: its instructions, usable cores and power settings, without the runtime."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from dragoman.cores.topology import time_quota
from dragoman.tools.doctor.findings import Finding, Places, Section

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


def processor_facts(places: Places, machine: str, affinity: Callable[[], int] | None = None) -> ProcessorFacts:
    """The facts. `machine`: "" = this architecture. `affinity`: the usable cores, None = by Linux."""
    machine = machine or platform.machine()
    text = places.text("proc/cpuinfo")
    fields = dict(_fields(text))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    cores = sum(line.startswith("processor") for line in text.splitlines()) or os.cpu_count() or 1
    return ProcessorFacts(
        name=fields.get("model name") or fields.get("Hardware") or machine,
        machine=machine,
        features=[word for flag, word in _FEATURES.items() if flag in flags],
        cores=cores,
        usable_cores=min(cores, affinity() if affinity else len(os.sched_getaffinity(0))),
        quota_cores=time_quota(places.text),
        memory_nodes=max(1, sum(1 for _ in places.names("sys/devices/system/node", "node[0-9]*"))),
        governor=places.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
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
