"""Checkpoints with experts that are large enough for the kernels to behave as they do with real ones.

Does: Mixtral's tensors, with few large experts or with many small ones. Used by tests of determinism and of the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tests.support.family_checkpoint import read_case, write_case

HIDDEN_SIZE = 256
_SIZES = {64: HIDDEN_SIZE, 32: 128}  # of the recorded case, and here: hidden states, keys and values

ExpertKind = Literal["few", "many"]


def write_experts(kind: ExpertKind, directory: Path) -> Path:
    """Write the model; returns `directory`."""
    num_experts, inner_size = {"few": (4, 768), "many": (32, 128)}[kind]
    case = read_case("mixtral")
    case["config"] |= {
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": inner_size,
        "num_local_experts": num_experts,
    }
    shapes = {name: [_SIZES.get(size, size) for size in shape] for name, shape in case["tensors"].items()}
    case["tensors"] = {name: shape for name, shape in shapes.items() if ".block_sparse_moe." not in name}
    for layer in range(case["config"]["num_hidden_layers"]):
        experts = f"model.layers.{layer}.block_sparse_moe"
        case["tensors"][f"{experts}.gate.weight"] = [num_experts, HIDDEN_SIZE]
        for index in range(num_experts):
            for name in ("w1", "w3"):
                case["tensors"][f"{experts}.experts.{index}.{name}.weight"] = [inner_size, HIDDEN_SIZE]
            case["tensors"][f"{experts}.experts.{index}.w2.weight"] = [HIDDEN_SIZE, inner_size]
    return write_case(f"mixtral_{kind}", case, directory)
