"""CLIP's and SigLIP's towers; families prepare pictures. Sources: CLIP, arXiv:2103.00020; SigLIP, arXiv:2303.15343."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, unsqueeze
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.config import Config
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.vision.blocks import (
    LayerSizes,
    dense_tensor,
    encoder_layer,
    patch_embeddings,
    rows_before,
    skip_layer,
)
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

_OF_WHOLE_PICTURES = """
    head.probe head.attention.in_proj_weight head.attention.in_proj_bias head.attention.out_proj.weight
    head.attention.out_proj.bias head.layernorm.weight head.layernorm.bias head.mlp.fc1.weight head.mlp.fc1.bias
    head.mlp.fc2.weight head.mlp.fc2.bias embeddings.position_ids
"""


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
                skip_layer(layer)
        weights.skip("post_layernorm.weight", "post_layernorm.bias")
        self.skip_whole(weights)
        return {level: states[level] for level in levels}

    def skip_whole(self, weights: Weights) -> None:
        weights.skip(*_OF_WHOLE_PICTURES.split())

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
