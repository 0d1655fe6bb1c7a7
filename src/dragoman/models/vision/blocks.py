"""The blocks of towers' graphs; CLIP's and SigLIP's towers; and the cuts of a graph within and between its layers.

Used while a graph is built, on the thread that loads; families prepare pictures. Shapes: N tiles of P patches each; a tile
is a picture, or a part of one. Sources: CLIP, arXiv:2103.00020; SigLIP, arXiv:2303.15343.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear, linears, product
from dragoman.models.blocks.mlp import ACTIVATIONS, plain_mlp
from dragoman.models.blocks.nodes import add, integers, reshape, scalar, unsqueeze, width
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.config import Config, ModelError
from dragoman.models.sources.base import Array, PackedMatrix
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights

CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"

# transformers' defaults, which a vision_config may leave out.
_ASSUMED: dict[str, dict[str, Any]] = {
    CLIP: {"image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    SIGLIP: {"image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
}
_SIZES = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}

# Keys for training, for texts, and for the vector of a whole picture, not needed here.
_HARMLESS = "dropout initializer_factor logit_scale_init_value projection_dim vision_use_head vocab_size"


@dataclass(frozen=True, slots=True)
class VisionTransformer:
    kind: str
    hidden_size: int
    num_layers: int
    image_size: int
    patch_size: int
    layer: LayerSizes

    @property
    def has_class_row(self) -> bool:
        return self.kind == CLIP

    @property
    def side(self) -> int:
        return self.image_size // self.patch_size

    def states(self, pixels: Node, weights: Weights, levels: Collection[int]) -> dict[int, Node]:
        """The inputs of the layers in `levels`; the number of layers = the last one's output.

        Shapes: pixels f32 [N, 3, image, image] -> f32 [N, patches, hidden] each, of CLIP with one row more before them.
        """
        x = self._embedded(pixels, weights)
        states = {0: x}
        for index in range(self.num_layers):
            layer = weights.at(f"encoder.layers.{index}")
            if index < max(levels):
                x = states[index + 1] = encoder_layer(x, layer, self.layer)
            else:
                layer.skip_all()
        weights.at("post_layernorm").skip_all()
        self.skip_whole(weights)
        return {level: states[level] for level in levels}

    def skip_whole(self, weights: Weights) -> None:
        """Skip what makes one vector of a picture."""
        weights.at("head").skip_all()
        weights.skip("embeddings.position_ids")

    def last_norm(self, x: Node, weights: Weights) -> Node:
        return layer_norm(x, weights.at("post_layernorm"), self.layer.epsilon)

    def _embedded(self, pixels: Node, weights: Weights) -> Node:
        embeddings = weights.at("embeddings")
        patches = embeddings.at("patch_embedding")
        x = patch_embeddings(pixels, patches, self.hidden_size, self.patch_size, bias=not self.has_class_row)
        if self.has_class_row:
            x = rows_before(x, embeddings.vector(self.hidden_size, "class_embedding"))
        num_rows = self.side**2 + self.has_class_row
        places: Array = dense_tensor(embeddings.at("position_embedding"), (num_rows, self.hidden_size))
        x = add(x, unsqueeze(constant(places.astype("float32")), 0))
        return layer_norm(x, weights.at("pre_layrnorm"), self.layer.epsilon) if self.has_class_row else x


def read_transformer(config: Config, kind: str, assumed: Mapping[str, Any]) -> VisionTransformer:
    """`kind`, `assumed`: the meaning of their absence in a vision_config. Raises: ModelError."""
    config.assume(model_type=kind)
    kind = config.choice("model_type", (CLIP, SIGLIP))
    config.skip(*_HARMLESS.split())
    return read_sizes(config, kind, {**_SIZES, **_ASSUMED[kind], **assumed})


def read_sizes(
    config: Config, kind: str, assumed: Mapping[str, Any], image_size: int | None = None
) -> VisionTransformer:
    config.assume(**assumed)
    config.expect(num_channels=3)
    tower = VisionTransformer(
        kind,
        config.count("hidden_size"),
        config.count("num_hidden_layers"),
        image_size or config.count("image_size"),
        config.count("patch_size"),
        LayerSizes(
            config.count("num_attention_heads"),
            config.count("intermediate_size"),
            config.positive("layer_norm_eps"),
            config.choice("hidden_act", ACTIVATIONS),
        ),
    )
    if tower.hidden_size % tower.layer.num_heads:
        raise config.error("num_attention_heads", f"a divisor of hidden_size, {tower.hidden_size}")
    if tower.image_size < tower.patch_size:
        raise config.error("image_size", f"at least patch_size, {tower.patch_size}")
    config.refuse_unread()
    return tower


def found_at(weights: Weights, places: Sequence[str], *known: str) -> Weights:
    views = [weights.at(place) for place in places]
    return next((view for view in views if any(name in view for name in known)), views[0])


def tower_weights(weights: Weights) -> Weights:
    places = ("vision_tower.vision_model", "model.vision_tower.vision_model", "model.vision_tower", "vision_tower")
    return found_at(weights, places, "embeddings.patch_embedding.weight")


def projector_weights(weights: Weights, known: str = "linear_1.weight") -> Weights:
    return found_at(weights, ("multi_modal_projector", "model.multi_modal_projector"), known)


def projected(
    x: Node, first: Weights, second: Weights, sizes: tuple[int, int], activation: str, *, bias: bool = True
) -> Node:
    raised = ACTIVATIONS[activation](linear(x, first, sizes[0], bias=bias))
    return linear(raised, second, sizes[1], bias=bias)


class LayerSizes(NamedTuple):
    num_heads: int
    inner_size: int
    epsilon: float
    activation: str


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


def transpose(x: Node, *order: int) -> Node:
    return ops.transpose(x, integers(*order)).output(0)


def rows_before(x: Node, row: Array) -> Node:
    """Shapes: x [N, P, hidden], row [hidden] -> [N, P + 1, hidden]."""
    num_tiles = ops.gather(ops.shape_of(x), integers(0), ops.constant(np.int64(0)))
    shape = ops.concat([num_tiles, integers(1, len(row))], axis=0)
    first = ops.broadcast(constant(row.reshape(1, 1, -1)), shape)
    return ops.concat([first, x], axis=1).output(0)


_END = "end of part "


def end_of_part(x: Node) -> Node:
    node = x.get_node()
    node.set_friendly_name(_END + node.get_friendly_name())
    return x


def parts_of(graph: ov.Model) -> list[ov.Model]:
    """The parts of a graph in the order of computing. The graph is used up."""
    levels = _levels(graph)
    parts = [_Part(index) for index in range(max(levels.values()) + 1)]
    for parameter in graph.get_parameters():
        parts[0].inputs[parameter.output(0).get_any_name()] = parameter
    for node in graph.get_ordered_ops():
        name = node.get_friendly_name()
        if name not in levels:
            continue
        part = parts[levels[name]]
        if node.get_type_name() == "Result":
            part.results.append(node)
        for place in node.inputs():
            source = place.get_source_output()
            level = levels.get(source.get_node().get_friendly_name(), levels[name])
            if level < levels[name]:
                place.replace_source_output(part.input_like(parts[level].output_of(source)))
    return [part.graph(f"{graph.get_friendly_name()} {index}") for index, part in enumerate(parts)]


@dataclass(slots=True)
class _Part:
    index: int
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)

    def output_of(self, value: Node) -> Node:
        """An output for later parts, under the same name in every build: a part's file may have to be made again."""
        if value.get_node().get_type_name() == "Parameter":
            return value
        if not value.get_names():
            value.set_names({f"part {self.index}, value {len(self.outputs)}"})
        self.outputs.setdefault(value.get_any_name(), value)
        return value

    def input_like(self, value: Node) -> Node:
        name = value.get_any_name()
        if name not in self.inputs:
            parameter = ops.parameter(value.get_partial_shape(), value.get_element_type())
            parameter.output(0).set_names({name})
            self.inputs[name] = parameter
        return self.inputs[name].output(0)

    def graph(self, name: str) -> ov.Model:
        return ov.Model([*map(ops.result, self.outputs.values()), *self.results], list(self.inputs.values()), name)


def _levels(graph: ov.Model) -> dict[str, int]:
    levels: dict[str, int] = {}
    for node in graph.get_ordered_ops():
        sources = [place.get_source_output().get_node().get_friendly_name() for place in node.inputs()]
        found = [levels[source] + source.startswith(_END) for source in sources if source in levels]
        if found or node.get_type_name() == "Parameter":
            levels[node.get_friendly_name()] = max(found, default=0)
    return levels
