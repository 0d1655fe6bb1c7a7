"""The doctor at machines that are made of files: each thing that can be wrong, and what it says about it."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.tools.doctor.examine import Question, ToldModel, examine
from dragoman.tools.doctor.findings import Finding, Section, prevents_serving, report_text
from dragoman.tools.doctor.machine import Cache, Machine
from dragoman.tools.doctor.model import ModelFacts, model_section
from dragoman.tools.doctor.software import software_facts, software_section
from tests.support.tables import table

GB = 10**9
GOOD_FLAGS = "fpu sse4_2 avx avx2 avx512f avx512_vnni avx512_bf16 amx_tile amx_int8"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def machine(root: Path, *, flags: str = GOOD_FLAGS, num_cores: int = 4, available_kb: int = 32_000_000) -> Path:
    """The files of a machine on which nothing is wrong."""
    cores = [f"processor\t: {i}\nmodel name\t: Fake CPU\nflags\t\t: {flags}\n" for i in range(num_cores)]
    write(root / "proc/cpuinfo", "\n".join(cores))
    write(root / "proc/meminfo", f"MemTotal:       64000000 kB\nMemAvailable:   {available_kb} kB\n")
    write(root / "proc/self/cgroup", "0::/box\n")
    write(root / "sys/devices/system/node/node0/cpulist", "0-3\n")
    write(root / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    return root


@pytest.fixture(autouse=True)
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The room on the fake machine's disk, however full this one's is."""
    room = {"disk": 100 * GB}
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=room["disk"]))
    return room


def cache_at(path: Path) -> Cache:
    return Cache("graphs", path, "built models", "each start builds its model anew", "serve with --cache-dir elsewhere")


def limits(kind: int) -> int:
    return {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_NOFILE: 65536}[kind]


def question(root: Path) -> Question:
    return Question(
        host="127.0.0.1",
        port=0,
        caches=[cache_at(root / "cache")],
        tell_model=lambda available: ToldModel(f"told with {available}"),
        machine=Machine(root, "x86_64", limits, lambda: 4),
    )


def on(root: Path, architecture: str) -> Question:
    """The question on a machine of another architecture, with one core."""
    return replace(question(root), machine=Machine(root, architecture, limits, lambda: 1))


def found(sections: Sequence[Section], name: str = "") -> list[Finding]:
    return [one for section in sections if name in ("", section.name) for one in section.findings]


def named(sections: Sequence[Section], name: str) -> Section:
    [section] = [one for one in sections if one.name == name]
    return section


def test_on_a_good_machine_nothing_is_wrong(tmp_path: Path) -> None:
    sections = examine(question(machine(tmp_path)))
    assert found(sections) == []
    assert not prevents_serving(sections)
    processor = named(sections, "processor").facts
    assert processor["features"] == ["SSE4.2", "AVX2", "AVX-512", "VNNI", "bf16", "AMX", "AMX int8"]
    assert (processor["name"], processor["cores"], processor["usable_cores"]) == ("Fake CPU", 4, 4)
    memory = named(sections, "memory").facts
    assert (memory["available_bytes"], memory["total_bytes"]) == (32_000_000 * 1024, 64_000_000 * 1024)
    assert memory["bytes_per_s"] > 1e8, "measured, on whatever machine this is"
    assert memory["huge_pages"] == "madvise"
    assert named(sections, "model").lines == (f"told with {32_000_000 * 1024}",)
    text = report_text(sections)
    assert text.endswith("a server would start (0 problems, 0 warnings, 0 notes)\n")


def no_cores(root: Path) -> None:
    write(root / "sys/fs/cgroup/box/cpu.max", "150000 100000\n")


def nodes(root: Path) -> None:
    write(root / "sys/devices/system/node/node1/cpulist", "")


def saving(root: Path) -> None:
    write(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")


def in_a_small_container(root: Path) -> None:
    write(root / "sys/fs/cgroup/box/memory.max", str(400 << 20))
    write(root / "sys/fs/cgroup/box/memory.current", str(100 << 20))
    write(root / "sys/fs/cgroup/box/memory.stat", "inactive_file 0\n")


WRONG: list[tuple[str, Callable[[Path], object], str, str, str]] = [
    ("no AVX2", lambda root: machine(root, flags="sse4_2 avx"), "problem", "no AVX2, which the attention kernels", "2013"),
    ("no SSE4.2", lambda root: machine(root, flags="sse2"), "problem", "no SSE4.2, without which the runtime", "2013"),
    ("no VNNI", lambda root: machine(root, flags="sse4_2 avx2 avx512f"), "note", "this processor has no VNNI", "AVX-512"),
    ("little memory", lambda root: machine(root, available_kb=300_000), "problem", "307.2 MB of memory are avail", "end"),
    ("small container", in_a_small_container, "problem", "314.6 MB of memory are available", "allow the container"),
    ("cores by quota", no_cores, "warning", "4 cores share 1.5 cores' worth of time", "cpuset"),
    ("memory nodes", nodes, "note", "memory lies in 2 nodes", "--numa auto"),
    ("governor", saving, "note", "the processor saves power", "cpupower frequency-set"),
]  # fmt: skip


def test_a_full_disk_is_told(tmp_path: Path, free_bytes: dict[str, int]) -> None:
    free_bytes["disk"] = GB // 2
    [finding] = found(examine(question(machine(tmp_path))), "disk")
    assert finding.level == "warning"
    assert finding.text.startswith("500.0 MB are free where built models lie")
    assert finding.mend == "make room, or serve with --cache-dir elsewhere"


@table(("spoil", "level", "text", "mend"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_told_with_how_to_mend_it(
    tmp_path: Path, spoil: Callable[[Path], object], level: str, text: str, mend: str
) -> None:
    machine(tmp_path)
    spoil(tmp_path)
    sections = examine(question(tmp_path))
    [finding] = found(sections)
    assert finding.level == level
    assert text in finding.text
    assert mend in finding.mend
    assert "\n" not in finding.text + finding.mend
    assert prevents_serving(sections) == (level == "problem")
    assert f"{level}: {finding.text}\n  {finding.mend}\n" in report_text(sections)


def test_arm_needs_scalable_vectors_and_other_machines_have_no_kernels(tmp_path: Path) -> None:
    machine(tmp_path)
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n")
    for name, wanted in (("aarch64", "has no SVE"), ("riscv64", "no kernels for riscv64")):
        [finding] = found(examine(on(tmp_path, name)))
        assert wanted in finding.text
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd sve\n")
    assert found(examine(on(tmp_path, "aarch64"))) == []


def test_a_machine_on_which_the_runtime_cannot_start_is_not_asked_about_models(tmp_path: Path) -> None:
    def explode(available: int) -> ToldModel:
        raise AssertionError("importing the runtime would end the process")

    sections = examine(replace(question(machine(tmp_path, flags="sse2")), tell_model=explode))
    assert "not examined" in named(sections, "model").lines[0]


def test_limits_of_the_process_are_told(tmp_path: Path) -> None:
    def tight(kind: int) -> int:
        return {resource.RLIMIT_AS: 2 * GB, resource.RLIMIT_NOFILE: 256}[kind]

    warnings = found(
        examine(replace(question(tmp_path), machine=Machine(machine(tmp_path), "x86_64", tight, lambda: 4)))
    )
    assert [(one.level, one.text.partition(",")[0]) for one in warnings] == [
        ("warning", "the process may map 2.0 GB at most"),
        ("warning", "the process may open 256 files at most"),
    ]


@pytest.mark.parametrize("place", ["/sys/nowhere/dragoman", "/dev/null/dragoman"])
def test_a_home_that_cannot_be_written_is_told(tmp_path: Path, place: str) -> None:
    """Not even root can make files there."""
    sections = examine(replace(question(machine(tmp_path)), caches=[cache_at(Path(place))]))
    [finding] = found(sections)
    assert finding.level == "warning", "a server starts, and builds its model anew each time"
    assert "cannot be written: each start builds its model anew" in finding.text
    assert "--cache-dir" in finding.mend
    [cache] = named(sections, "disk").facts["caches"]
    assert not cache["is_writable"]


def test_the_size_of_a_cache_and_the_speed_of_its_disk_are_told_and_nothing_stays_there(tmp_path: Path) -> None:
    root = machine(tmp_path / "machine")
    home = tmp_path / "home"
    write(home / "cache" / "model.blob", "x" * 100_000)
    [cache] = named(examine(replace(question(root), caches=[cache_at(home / "cache")])), "disk").facts["caches"]
    assert cache["size_bytes"] >= 100_000
    assert cache["read_bytes_per_s"] is None or cache["read_bytes_per_s"] > 0
    assert [path.name for path in home.rglob("*") if path.is_file()] == ["model.blob"]


def test_a_busy_port_is_told_with_who_has_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        asked = replace(question(machine(tmp_path)), port=port)
        [finding] = found(examine(replace(asked, machine=Machine())), "port")
        assert finding.level == "problem"
        assert finding.text == f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        assert f"serve with --port {port + 1}" in finding.mend
        assert "it is held by process " in finding.mend, "this very process, which may look at itself"
        [unseen] = found(examine(asked), "port")
        assert "it is held: end that" in unseen.mend, "there are no processes in those files"


def test_packages_that_are_missing_or_too_old_are_told(tmp_path: Path) -> None:
    def find(name: str) -> str:
        if name == "tokenizers":
            raise PackageNotFoundError(name)
        return "2024.0.1" if name == "openvino" else "99.0"

    facts = software_facts(Machine(tmp_path, find=find))
    section = software_section(facts)
    assert [(one.level, one.text) for one in section.findings] == [
        ("problem", f"openvino 2024.0.1 is installed, and {facts.pins['openvino']} is needed"),
        ("problem", "the package tokenizers is not installed"),
    ]
    assert section.findings[0].mend == f"pip install 'openvino~={facts.pins['openvino']}.0'"


def test_a_gpu_is_told_where_nothing_uses_it(tmp_path: Path) -> None:
    write(tmp_path / "dev" / "nvidia0", "")
    facts = software_facts(Machine(tmp_path))
    assert facts.has_gpu
    assert any("vllm" in one.mend for one in software_section(replace(facts, extras=())).findings)
    assert not any("vllm" in one.mend for one in software_section(replace(facts, extras=("vllm",))).findings)


LARGE = ModelFacts(
    "large", "/models/large", "int8", "bf16", "bf16", "all", weights_bytes=8 * GB, least_bytes=9 * GB, cache_bytes=4 * GB,
    cached_tokens=100_000, context=8192,
)  # fmt: skip


def test_the_speed_of_a_model_follows_from_its_weights_and_memory() -> None:
    told = model_section(LARGE, 80e9).facts["estimated_tokens_per_s"]
    assert (told["from"], told["to"]) == (5.0, 9.0)
    assert "about 5 to 9 tokens/s (an estimate:" in "\n".join(model_section(LARGE, 80e9).lines)
    assert model_section(LARGE, None).facts["estimated_tokens_per_s"] is None
    experts = model_section(replace(LARGE, reads_all=False), 80e9)
    assert "not estimated (which experts a token reads is not known before)" in "\n".join(experts.lines)
    small = model_section(replace(LARGE, weights_bytes=1000), 80e9)
    assert "not estimated (too small for memory to bound it)" in "\n".join(small.lines)


def test_a_cache_that_holds_hardly_a_request_is_told() -> None:
    [finding] = model_section(replace(LARGE, cached_tokens=9000), 80e9).findings
    assert finding.level == "warning"
    assert "9000 tokens, which is little" in finding.text
