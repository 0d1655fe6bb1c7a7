"""The library of kernels, for tests of what it computes."""

from __future__ import annotations

import os
import shutil

import pytest

from dragoman.kernels import presence
from dragoman.kernels.native import Library, library


@pytest.fixture(scope="session")
def kernels() -> Library:
    """The loaded library. Without a C++ compiler there is none; with one a missing library fails the tests."""
    if os.environ.get(presence.HELD) == "none":
        pytest.skip(f"{presence.HELD} is none")
    compilers = (os.environ.get("CXX") or "c++", "g++", "clang++")
    if presence.why_not() and not any(shutil.which(name) for name in compilers):
        pytest.skip("there is no C++ compiler, and so no library of kernels")
    return library()
