"""On dragoman's own kernels a layer is three nodes where its family allows it, and computes what its parts do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.shapes import SHAPES, RandomSource
from dragoman.models import ModelOptions, load_model
from dragoman.models.families import base, read_model
from dragoman.models.loader import compile_source
from tests.models.test_fused_nodes import SMALL
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.family_logits import logits_of
from tests.support.tables import Rows
from tests.support.tiers import width

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.varies("the instruction set is the processor's")]

TOKEN_IDS = [(37 * index) % 200 + 3 for index in range(40)]
OWN = ModelOptions("int8", kernels="own")
FREE = {"Input", "Output", "Const", "Reorder"}  # Reorder: rows to and from a node, where types differ

WHOLE = {
    **{name: SHAPES[name] for name in ("llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "olmo-2-1b", "gemma-3-1b")},
    "granite": SHAPES["llama-3.2-1b"] | {"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0.22},
    "phi4-mini": SHAPES["llama-3.2-1b"] | {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.75},
}
CASES = ("gemma3_text", "granite", "phi4_mini", "llama_default", "qwen3", "olmo2", "hunyuan_v1_dense", "cohere")


def node_types(config: dict[str, Any], num_layers: int) -> Counter[str]:
    config = config | SMALL | {"num_hidden_layers": num_layers}
    loaded = compile_source(read_model(config), RandomSource(), OWN)
    nodes: list[Any] = loaded.compiled.get_runtime_model().get_ops()
    return Counter(str(node.get_rt_info()["layerType"].astype(str)) for node in nodes)


@pytest.mark.parametrize("name", width(list(WHOLE), ["llama-3.2-1b", "gemma-3-1b", "phi4-mini"]))
def test_a_layer_is_three_nodes(name: str) -> None:
    added = node_types(WHOLE[name], 4)
    added.subtract(node_types(WHOLE[name], 3))
    computing = {kind: count for kind, count in added.items() if count and kind not in FREE}
    assert computing == {"Reference": 3}  # nodes that the library computes: attention, and what is around it


def loss(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def test_logits_lose_no_more_than_unfused_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both round rows to 8 bits between products; a row that falls between two codes may become either."""
    with Rows() as rows:
        for name in width(CASES, CASES[:3]):
            with rows.row(name), monkeypatch.context() as patch:
                directory = write_family_checkpoint(name, tmp_path / name)
                expected = logits_of(load_model(directory, ModelOptions("f32")), TOKEN_IDS)
                fused = logits_of(load_model(directory, OWN), TOKEN_IDS)
                patch.setattr(base, "fuse", lambda _graph, _storage: None)
                plain = logits_of(load_model(directory, OWN), TOKEN_IDS)
                assert loss(fused, expected) < 1.2 * loss(plain, expected) + 0.002
                assert loss(fused, plain) < 1.2 * loss(plain, expected) + 0.002
                assert (fused != plain).any()


def test_positions_stay_exact_where_attention_computes_in_bf16() -> None:
    """A position of bf16 is wrong from 257 on: the runtime keeps it f32 for its own operations, and for ours if told."""
    loaded = compile_source(read_model(SHAPES["llama-3.2-1b"] | SMALL | {"num_hidden_layers": 1}), RandomSource(), OWN)
    graph = loaded.compiled.get_runtime_model()
    seen, waiting = set(), [node for node in graph.get_ops() if node.get_rt_info()["layerType"].astype(str) == "Math"]
    assert len(waiting) == 2
    while waiting:
        node = waiting.pop()
        info = node.get_rt_info()
        seen.add(str(info["layerType"].astype(str)))
        if node.get_input_size():
            assert str(info["outputPrecisions"].astype(str)) == "f32", node.get_friendly_name()
        waiting += [node.input_value(index).get_node() for index in range(node.get_input_size())]
    assert {"Math", "Convert", "Eltwise"} <= seen
