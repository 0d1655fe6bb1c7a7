"""Tells whether the library of kernels is here, why not, and whether it is of these sources, without loading anything.

Imports no package that may be missing; native/build.py runs it by its path.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PLACE = Path(__file__).parent
LIBRARY = "libdragoman.so"
_STAMP, _WHY_NOT = "built_from.txt", "why_not.txt"
SOURCES = PLACE.parents[2] / "native"  # only clones have it
_STAMP_WORDS = 3  # digests of all that it was built from and of the sources, and OpenVINO's version

HELD = "DRAGOMAN_KERNELS_ISA"
"""The variable that holds the library to an instruction set, for tests; with `none` it counts as missing."""

BUILD = "install dragoman again where there is a C++ compiler"
BUILD_CLONE = "run `make serve` or `python native/build.py`"

STALE = "dragoman's own kernels are not built from the sources in native/"


def why_not() -> str:
    """The reason why no library fits what is installed, "" if one does."""
    if held() == "none":
        return f"{HELD} is none"
    if not (PLACE / LIBRARY).is_file():
        return _text(_WHY_NOT) or "not built"
    built_for = _text(_STAMP).rpartition(" ")[2]
    installed = _openvino()
    if installed is None:
        return "the package openvino is not installed"
    return "" if built_for == installed else f"built for OpenVINO {built_for}, and {installed} is installed"


def held() -> str | None:
    """The instruction set that the library is held to, None if it is not."""
    return os.environ.get(HELD)


def digest() -> str:
    """The digest of what the library was built from, "" if there is none."""
    return _text(_STAMP).partition(" ")[0]


def is_stale() -> bool:
    """True if this is a clone, and its library was built from other sources than it has now."""
    built_from = _text(_STAMP).split(" ")
    if len(built_from) != _STAMP_WORDS or not (SOURCES / "CMakeLists.txt").is_file():
        return False
    return built_from[1] != sources_digest(SOURCES)


def sources_digest(folder: Path) -> str:
    paths = sorted((*folder.glob("*.cpp"), *folder.glob("*.hpp"), folder / "CMakeLists.txt"))
    parts = [part for path in paths for part in (path.name.encode(), path.read_bytes())]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@cache
def _openvino() -> str | None:
    """The version that is installed, looked up once: it takes a millisecond, and each matrix asks."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return None


def _text(name: str) -> str:
    try:
        return (PLACE / name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
