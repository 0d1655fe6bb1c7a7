"""A small model whose layers convolve, wide enough for the kernels of real models.

Does: widen a recorded case of tests/models/families. Does not: know what its tensors mean; random values, as there.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.family_checkpoint import read_case, write_case

VOCAB_SIZE = 320
_WIDER = {16: 64, 32: 128, 64: 256, 192: 768}


def write_hybrid(directory: Path) -> Path:
    """Write an LFM2 of five layers, three of which convolve; returns `directory`."""
    case = read_case("lfm2")
    case["config"] |= {"hidden_size": 256, "block_ff_dim": 1152}
    widths = case["tensors"].items()
    case["tensors"] = {name: [_WIDER.get(size, size) for size in shape] for name, shape in widths}
    return write_case("hybrid", case, directory)
