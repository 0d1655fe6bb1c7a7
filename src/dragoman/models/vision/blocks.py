"""The blocks of towers' graphs. Shapes: N tiles of P patches each; a tile is a picture, or a part of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear, linears, product
from dragoman.models.blocks.mlp import plain_mlp
from dragoman.models.blocks.nodes import add, integers, reshape, scalar, width
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.config import ModelError
from dragoman.models.sources.base import Array, PackedMatrix
from dragoman.models.storage.constants import Node, constant
from dragoman.models.vision.parts import end_of_part
from dragoman.models.weights import Weights


class LayerSizes(NamedTuple):
    num_heads: int
    inner_size: int
    epsilon: float
    activation: str


def tower_input(name: str, *shape: int, dtype: Any = ov.Type.f32) -> Any:
    """An input of a tower's graph; -1 = any size. Its only output is the node."""
    parameter = ops.parameter(ov.PartialShape(list(shape)), dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter


def dense_tensor(weights: Weights, shape: tuple[int, ...], name: str = "weight") -> Array:
    tensor = weights.tensor(shape, name)
    if isinstance(tensor, PackedMatrix):
        raise ModelError(f"a tensor of {list(shape)} of the tower is packed, allowed: numbers")
    return tensor


def patch_embeddings(pixels: Node, weights: Weights, size: int, patch_size: int, *, bias: bool) -> Node:
    """Pixels beyond whole patches are left out.

    Shapes: pixels f32 [N, channels, height, width], weight [size, channels, patch, patch] -> [N, P, size], row by row.
    """
    channels, height, wide = (int(pixels.get_partial_shape()[axis].get_length()) for axis in (1, 2, 3))
    rows, columns = height // patch_size, wide // patch_size
    ends = integers(rows * patch_size, columns * patch_size)
    whole = ops.slice(pixels, integers(0, 0), ends, integers(1, 1), integers(2, 3)).output(0)
    cut = reshape(whole, -1, channels, rows, patch_size, columns, patch_size)
    flat = reshape(transpose(cut, 0, 2, 4, 1, 3, 5), -1, rows * columns, channels * patch_size**2)
    return patch_vectors(flat, weights, (size, channels, patch_size, patch_size), bias=bias)


def patch_vectors(patches: Node, weights: Weights, kernel: tuple[int, ...], *, bias: bool) -> Node:
    """Shapes: [..., numbers of a patch] -> [..., kernel's first]."""
    size = kernel[0]
    matrix = dense_tensor(weights, kernel).reshape(size, -1)
    if matrix.shape[1] % 2:  # for bf16 the plugin's kernel of int8 is wrong by a fifth where columns are odd
        rank = len(patches.get_partial_shape())
        behind = integers(*[0] * (rank - 1), 1)
        patches = ops.pad(patches, integers(*[0] * rank), behind, "constant", scalar(0.0)).output(0)
        matrix = np.pad(matrix, [(0, 0), (0, 1)])
    return product(patches, matrix, weights.storage, weights.vector(size, "bias") if bias else None)


def full_attention(q: Node, k: Node, v: Node, num_heads: int, mask: Node | None = None) -> Node:
    """Shapes: [N, P, heads * size], thrice -> [N, P, heads * size]; `mask` f32 [N, 1, 1, P], added to the scores."""
    # 0 = the input's own length
    shape = integers(0, 0, num_heads, width(q) // num_heads)
    heads = [transpose(ops.reshape(x, shape, special_zero=True).output(0), 0, 2, 1, 3) for x in (q, k, v)]
    masks = [] if mask is None else [mask]
    attended = ops.scaled_dot_product_attention(*heads, *masks, causal=False).output(0)
    return ops.reshape(transpose(attended, 0, 2, 1, 3), integers(0, 0, width(q)), special_zero=True).output(0)


def encoder_layer(
    x: Node,
    weights: Weights,
    sizes: LayerSizes,
    attend: Callable[[Node, Node, Node], Node] | None = None,
) -> Node:
    """Two parts. `attend` None = attention in each tile. Shape of x: [N, P, hidden], or as `attend` takes."""
    hidden = width(x)
    normed = layer_norm(x, weights.at("layer_norm1"), sizes.epsilon)
    parts = [weights.at(f"self_attn.{name}_proj") for name in "qkv"]
    is_fused = weights.storage.format.fuses_attention
    q, k, v = linears(normed, parts, [hidden] * 3, bias=True, is_fused=is_fused)
    attended = attend(q, k, v) if attend is not None else full_attention(q, k, v, sizes.num_heads)
    x = end_of_part(add(x, linear(attended, weights.at("self_attn.out_proj"), hidden, bias=True)))
    normed = layer_norm(x, weights.at("layer_norm2"), sizes.epsilon)
    raised = plain_mlp(normed, weights.at("mlp.fc1"), weights.at("mlp.fc2"), sizes.inner_size, sizes.activation)
    return end_of_part(add(x, raised))


def skip_layer(weights: Weights) -> None:
    names = (
        "layer_norm1",
        "layer_norm2",
        "mlp.fc1",
        "mlp.fc2",
        *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
    )
    weights.skip(*(f"{name}.{part}" for name in names for part in ("weight", "bias")))


def transpose(x: Node, *order: int) -> Node:
    return ops.transpose(x, integers(*order)).output(0)


def rows_before(x: Node, row: Array) -> Node:
    """Shapes: x [N, P, hidden], row [hidden] -> [N, P + 1, hidden]."""
    num_tiles = ops.gather(ops.shape_of(x), integers(0), ops.constant(np.int64(0)))
    shape = ops.concat([num_tiles, integers(1, len(row))], axis=0)
    first = ops.broadcast(constant(row.reshape(1, 1, -1)), shape)
    return ops.concat([first, x], axis=1).output(0)
