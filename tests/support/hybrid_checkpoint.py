"""Small models whose layers do not all attend, wide enough for the kernels of real models.

Does: widen recorded cases of tests/models/families. Does not: know what their tensors mean; random values, as there.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.family_checkpoint import read_case, write_case

VOCAB_SIZE = 320
_WIDER = {16: 64, 32: 128, 64: 256, 192: 768}


def write_hybrid(directory: Path) -> Path:
    """Write an LFM2 of five layers, three of which convolve; returns `directory`."""
    return _write("lfm2", {"hidden_size": 256, "block_ff_dim": 1152}, _WIDER, directory)


def write_stateful(directory: Path) -> Path:
    """Write a Qwen 3.5 of six layers, five of which have states; returns `directory`."""
    return _write("qwen3_5_text", {"intermediate_size": 192}, {176: 192}, directory)


def write_scanning(directory: Path) -> Path:
    """Write a Mamba 2, of which no layer attends; returns `directory`."""
    return _write("mamba2", {}, {}, directory)


def _write(name: str, config: dict[str, int], wider: dict[int, int], directory: Path) -> Path:
    case = read_case(name)
    case["config"] |= config
    widths = case["tensors"].items()
    case["tensors"] = {tensor: [wider.get(size, size) for size in shape] for tensor, shape in widths}
    return write_case(f"hybrid {name}", case, directory)
