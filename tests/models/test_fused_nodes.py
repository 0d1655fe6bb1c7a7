"""On the plugin's kernels a layer becomes fused nodes alone, whatever the family: others would cost a tenth of a step.

What one more layer adds to the runtime's graph is counted, so that what all layers share does not matter.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.shapes import SHAPES, RandomSource
from dragoman.models import ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source
from tests.support.tiers import width

SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
FREE = {"Input", "Output", "Const", "Reshape"}  # move and compute nothing
FREE |= {"Reorder"}  # of biases, where arithmetic is bf16: once, before the first step

# q, k and v in one and cut apart, output, gate, up, down; norms before attention and MLP; queries and keys; two sums, and
# the gate's product, which some processors fold into another node
LLAMA = {"FullyConnected": 5, "Split": 1, "RMS": 2, "RoPE": 2, "PagedAttention": 1}
EXPECTED = {
    "llama-3.2-1b": LLAMA,
    "qwen2.5-0.5b": LLAMA,
    "qwen3-0.6b": LLAMA | {"RMS": 4},  # and of queries and keys
    "gemma-3-1b": LLAMA | {"RMS": 6},  # and behind attention and MLP
}


def node_types(name: str, num_layers: int) -> Counter[str]:
    config = SHAPES[name] | SMALL | {"num_hidden_layers": num_layers}
    loaded = compile_source(read_model(config), RandomSource(), ModelOptions("int8", kernels="openvino"))
    nodes: list[Any] = loaded.compiled.get_runtime_model().get_ops()
    return Counter(str(node.get_rt_info()["layerType"].astype(str)) for node in nodes)


@pytest.mark.varies("what is fused depends on the processor")
@pytest.mark.parametrize("name", width(list(EXPECTED), ["llama-3.2-1b", "gemma-3-1b"]))
def test_a_layer_holds_only_fused_nodes(name: str) -> None:
    added = node_types(name, 4)
    added.subtract(node_types(name, 3))
    computing = {kind: count for kind, count in added.items() if count and kind not in FREE}
    assert 2 <= computing.pop("Eltwise") <= 3
    assert computing == EXPECTED[name]
