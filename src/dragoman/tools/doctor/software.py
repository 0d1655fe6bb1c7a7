"""Examines the software: Python, installed and missing packages, and a GPU without its package. Imports none of them."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires

from dragoman import __version__
from dragoman.engine.vllm.accelerators import has_gpu
from dragoman.errors import how_to_install
from dragoman.kernels.presence import BUILD, BUILD_CLONE, STALE, is_stale, why_not
from dragoman.tools.doctor.findings import Finding, Section
from dragoman.tools.doctor.machine import Machine

_TOLD = ("openvino", "numpy", "tokenizers")  # beside the problems
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
_PINNED = re.compile(r"~=\s*(\d+\.\d+)\.\d+")
_FOR_DEVELOPERS = "dev"

_AGAIN = "pip install --force-reinstall . in dragoman's clone, or with its wheel file"


@dataclass(frozen=True, slots=True)
class SoftwareFacts:
    """Facts about the software. `versions`: of needed packages, None = missing. `pins`: required beginnings of
    versions.

    `extras`, `others`: installed and missing ones. `kernels_lack`: why the library of kernels is missing.
    `has_stale_kernels`: it was built from other sources than the clone's.
    """

    versions: dict[str, str | None]
    pins: dict[str, str]
    extras: tuple[str, ...]
    others: tuple[str, ...]
    has_gpu: bool
    kernels_lack: str = ""
    has_stale_kernels: bool = False


def software_facts(machine: Machine) -> SoftwareFacts:
    """The installed software. Never raises."""
    needed: dict[str, str | None] = {}
    pins: dict[str, str] = {}
    of_extras: dict[str, list[str]] = {}
    for requirement in _requirements():
        name = _NAME.match(requirement)
        extra = _EXTRA.search(requirement)
        if name is None or (extra is None and "sys_platform != 'win32'" in requirement and sys.platform == "win32"):
            continue
        if extra is not None:
            of_extras.setdefault(extra[1], []).append(name[0])
            continue
        needed[name[0]] = _version(machine, name[0])
        if pin := _PINNED.search(requirement):
            pins[name[0]] = pin[1]
    of_extras.pop(_FOR_DEVELOPERS, None)
    here = {extra: all(_version(machine, name) for name in names) for extra, names in of_extras.items()}
    return SoftwareFacts(
        needed,
        pins,
        tuple(extra for extra, is_here in here.items() if is_here),
        tuple(extra for extra, is_here in here.items() if not is_here),
        has_gpu(machine.root / "dev"),
        why_not(),
        is_stale(),
    )


def software_section(facts: SoftwareFacts) -> Section:
    packages = ", ".join(f"{name} {facts.versions.get(name) or 'missing'}" for name in _TOLD)
    extras = f"extras: {', '.join(facts.extras) or 'none'}"
    others = f" (not installed: {', '.join(facts.others)})" if facts.others else ""
    gpu = "a GPU is here" if facts.has_gpu else "no GPU"
    python = platform.python_version()
    kernels = "OpenVINO's" if facts.kernels_lack else "dragoman's own and OpenVINO's"
    lines = (f"dragoman {__version__}, Python {python}, {packages}", f"{extras}{others}; {gpu}; kernels: {kernels}")
    report = {
        "dragoman": __version__,
        "python": python,
        "platform": platform.platform(),
        "packages": facts.versions,
        "extras": list(facts.extras),
        "other_extras": list(facts.others),
        "has_gpu": facts.has_gpu,
        "has_own_kernels": not facts.kernels_lack,
    }
    return Section("software", lines, report, tuple(_findings(facts)))


def _findings(facts: SoftwareFacts) -> Iterator[Finding]:
    for name, found in facts.versions.items():
        pin = facts.pins.get(name)
        if found is None:
            yield Finding(
                "problem",
                f"the package {name} is not installed",
                _AGAIN,
            )
        elif pin and not f"{found}.".startswith(f"{pin}."):
            yield Finding(
                "problem", f"{name} {found} is installed, and {pin} is needed", f"pip install '{name}~={pin}.0'"
            )
    if facts.kernels_lack:
        yield Finding("note", f"dragoman's own kernels are not here: {facts.kernels_lack}", BUILD)
    elif facts.has_stale_kernels:
        yield Finding("note", STALE, BUILD_CLONE)
    if facts.has_gpu and "vllm" not in facts.extras:
        yield Finding(
            "note",
            "a GPU is here, which the built-in engine does not use",
            f"{how_to_install('vllm')}, --engine vllm",
        )


def _requirements() -> Sequence[str]:
    try:
        return requires("dragoman") or ()
    except PackageNotFoundError:  # runs from a source directory
        return ()


def _version(machine: Machine, name: str) -> str | None:
    try:
        return machine.find(name)
    except PackageNotFoundError:
        return None
