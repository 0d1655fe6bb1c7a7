"""Tells whether the library of kernels is here, and why not, without loading anything.

Does: read what native/build.py has put beside it. Does not: import packages that may be missing. Called by `library`
and by the doctor; on any thread.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PLACE = Path(__file__).parent
LIBRARY = "libdragoman.so"
_STAMP, _WHY_NOT = "built_from.txt", "why_not.txt"

HELD = "DRAGOMAN_KERNELS_ISA"
"""The variable that holds the library to an instruction set, for tests; `none` has it count as missing."""

BUILD = "install dragoman again where there is a C++ compiler"


def why_not() -> str:
    """Why there is no library that fits what is installed, "" if there is one."""
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
