"""On dragoman's own kernels layers that follow each other are one node where their family allows it.

They compute what their parts do. A layer's parts are three nodes, which are joined with the same bits.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks.shapes import SHAPES, RandomSource
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.blocks import fusing
from dragoman.models.blocks.fusing import join_layers
from dragoman.models.families import base, read_model
from dragoman.models.loader import compile_source
from tests.models.test_fused_nodes import SMALL
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.family_logits import logits_of
from tests.support.forward import forward_batch
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
RUNS = {
    "gemma3_text": [4],
    "granite": [4],
    "phi4_mini": [2],
    "llama_longrope": [3],
    "lfm2": [1, 1],
    "ernie4_5_moe": [1],
    "qwen3_moe_sparse_step": [1, 2],
    "cohere": [],
}
"""By cases of tests/models/families, how many layers each node of theirs has."""
CASES = ("gemma3_text", "granite", "phi4_mini", "llama_default", "qwen3", "olmo2", "hunyuan_v1_dense", "cohere")


def node_types(config: dict[str, Any], num_layers: int) -> Counter[str]:
    config = config | SMALL | {"num_hidden_layers": num_layers}
    loaded = compile_source(read_model(config), RandomSource(), OWN)
    nodes: list[Any] = loaded.compiled.get_runtime_model().get_ops()
    return Counter(str(node.get_rt_info()["layerType"].astype(str)) for node in nodes)


@pytest.mark.parametrize("name", width(list(WHOLE), ["llama-3.2-1b", "gemma-3-1b", "phi4-mini"]))
def test_more_layers_are_no_more_nodes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def added() -> dict[str, int]:
        more = node_types(WHOLE[name], 4)
        more.subtract(node_types(WHOLE[name], 3))
        return {kind: count for kind, count in more.items() if count and kind not in FREE}

    assert added() == {}
    monkeypatch.setattr(fusing, "join_layers", lambda _graph: None)
    assert added() == {"Reference": 3}  # nodes that the library computes: attention, and what is around it


def test_layers_are_joined_up_to_what_lies_between_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts, convolutions and recurrences end a run of layers, and so does whoever else reads what a layer gives."""
    joined: list[list[int]] = []

    def counted(graph: ov.Model) -> None:
        join_layers(graph)
        nodes = [node for node in graph.get_ops() if node.get_type_name() == "Layers"]
        joined.append([len(node.get_attributes()["how"].split(";")) - 1 for node in nodes])

    with Rows() as rows:
        for name, runs in RUNS.items():
            with rows.row(name), monkeypatch.context() as patch:
                directory = write_family_checkpoint(name, tmp_path / name)
                joined.clear()
                patch.setattr(fusing, "join_layers", counted)
                whole = load_model(directory, OWN)
                assert sorted(joined[0]) == runs
                patch.setattr(fusing, "join_layers", lambda _graph: None)
                parts = load_model(directory, OWN)
                assert steps_of(whole).tobytes() == steps_of(parts).tobytes()


def steps_of(loaded: LoadedModel) -> np.ndarray:
    """The logits of two steps, behind one that begins a prompt and gives none."""
    runner = OpenVinoRunner(loaded, num_blocks=4)
    steps = [
        forward_batch([(TOKEN_IDS[:5], 0, range(2, 4))], []),
        forward_batch([(TOKEN_IDS[:9], 0, range(2)), (TOKEN_IDS[5:17], 5, range(2, 4))], [20, 8]),
        forward_batch([(TOKEN_IDS[9:10], 9, range(2)), (TOKEN_IDS[17:], 17, range(2, 4))], range(24)),
    ]
    logits = [runner.forward(step).copy() for step in steps]
    runner.close()
    return np.concatenate(logits)


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
