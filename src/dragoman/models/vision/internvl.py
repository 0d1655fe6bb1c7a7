"""InternVL 2 to 3: a picture in as many tiles as fit its shape, and a small copy of the whole.

Sources: arXiv:2404.16821, section 3.2 (tiles); arXiv:2412.05271; the slow GotOcr2ImageProcessor of transformers 4.57,
as InternVLProcessor calls it: it always cuts, whatever crop_to_patches says. OpenGVLab's own layout: the code of
OpenGVLab/InternVL and its model cards.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from openvino import opset13 as ops
from PIL import Image

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS, plain_mlp
from dragoman.models.blocks.nodes import add, integers, multiply, parameter
from dragoman.models.blocks.norms import layer_norm, rms_norm
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node, constant
from dragoman.models.vision.base import PictureLayout, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import (
    dense_tensor,
    end_of_part,
    found_at,
    full_attention,
    patch_embeddings,
    projected,
    projector_weights,
    rows_before,
)
from dragoman.models.vision.described import PLACEHOLDER, PLACEHOLDER_KEY
from dragoman.models.vision.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    as_image,
    read_kind,
    read_resample,
    read_size,
    read_text,
    read_values,
    refuse_unread,
)
from dragoman.models.vision.tiles import PIXELS, cut, folded, nearest_grid, read_grids, stacked
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture

_PROJECTOR_EPSILON = 1e-5


class TowerNames(NamedTuple):
    class_row: str = "cls_token"
    patches: str = "patch_embeddings.projection"
    places: str = "position_embeddings"
    layers: str = "encoder.layer"
    first_norm: str = "layernorm_before"
    attention: str = "attention"
    output: str = "projection_layer"
    first_scale: str = "lambda_1"
    second_norm: str = "layernorm_after"
    second_scale: str = "lambda_2"


class InternVision:
    names: ClassVar[TowerNames] = TowerNames()
    head_norm_epsilon: float = 1e-6
    """Of queries and keys, whatever layer_norm_eps says."""

    def __init__(self, config: Config) -> None:
        self.size = config.count("hidden_size", 1024)
        self.num_layers = config.count("num_hidden_layers", 24)
        self.num_heads = config.count("num_attention_heads", 16)
        self.inner_size = config.count("intermediate_size", 4096)
        self.activation = config.choice("hidden_act", ACTIVATIONS, "gelu")
        self.epsilon = config.positive("layer_norm_eps", 1e-6)
        self.has_rms_norms = config.choice("norm_type", ("layer_norm", "rms_norm"), "layer_norm") == "rms_norm"
        self.has_bias = config.flag("attention_bias")
        self.norms_heads = config.flag("use_qk_norm")
        self.has_places = config.flag("use_absolute_position_embeddings", default=True)
        self.has_last_norm = not config.flag("use_mean_pooling", default=True)
        self.image_size = read_side(config, "image_size", 448)
        self.patch_size = read_side(config, "patch_size", 14)
        self.side = self.image_size // self.patch_size
        if self.size % self.num_heads:
            raise config.error("num_attention_heads", f"a divisor of hidden_size, {self.size}")
        if not self.side:
            raise config.error("image_size", f"at least patch_size, {self.patch_size}")
        config.expect(num_channels=3)
        # keys for training: first values, dropouts and masks
        config.skip("layer_scale_init_value", "initializer_factor", "dropout", "projection_dropout", "drop_path_rate")
        config.skip("use_mask_token")
        config.refuse_unread()

    def rows(self, pixels: Node, weights: Weights) -> Node:
        """Shapes: pixels f32 [tiles, 3, image, image] -> [tiles, patches, size]."""
        embeddings = weights.at("embeddings")
        embeddings.skip("mask_token")  # stood for patches that training hid
        projection = embeddings.at(self.names.patches)
        x = patch_embeddings(pixels, projection, self.size, self.patch_size, bias=True)
        x = rows_before(
            x, dense_tensor(embeddings, (1, 1, self.size), self.names.class_row).astype("float32").reshape(-1)
        )
        if self.has_places:
            places = dense_tensor(embeddings, (1, self.side**2 + 1, self.size), self.names.places)
            x = add(x, constant(places.astype("float32")))
        for index in range(self.num_layers):
            x = self._layer(x, weights.at(f"{self.names.layers}.{index}"))
        if self.has_last_norm:
            x = layer_norm(x, weights.at("layernorm"), self.epsilon)
        return ops.slice(x, integers(1), integers(2**31 - 1), integers(1), integers(1)).output(0)

    def _layer(self, x: Node, weights: Weights) -> Node:
        names = self.names
        attended = self._attention(self._norm(x, weights.at(names.first_norm)), weights.at(names.attention))
        x = end_of_part(add(x, self._scaled(attended, weights, names.first_scale)))
        mlp, normed = weights.at("mlp"), self._norm(x, weights.at(names.second_norm))
        raised = plain_mlp(normed, mlp.at("fc1"), mlp.at("fc2"), self.inner_size, self.activation)
        return end_of_part(add(x, self._scaled(raised, weights, names.second_scale)))

    def _attention(self, x: Node, weights: Weights) -> Node:
        is_fused = weights.storage.format.fuses_attention
        q, k, v = linears(x, self.projections(weights), [self.size] * 3, bias=self.has_bias, is_fused=is_fused)
        if self.norms_heads:  # all heads of a row as one
            q = rms_norm(q, weights.at("q_norm"), self.head_norm_epsilon)
            k = rms_norm(k, weights.at("k_norm"), self.head_norm_epsilon)
        attended = full_attention(q, k, v, self.num_heads)
        return linear(attended, weights.at(self.names.output), self.size, bias=True)

    def projections(self, weights: Weights) -> list[Weights]:
        return [weights.at("q_proj"), weights.at("k_proj"), weights.at("v_proj")]

    def _norm(self, x: Node, weights: Weights) -> Node:
        return (rms_norm if self.has_rms_norms else layer_norm)(x, weights, self.epsilon)

    def _scaled(self, x: Node, weights: Weights, name: str) -> Node:
        return multiply(x, constant(weights.vector(self.size, name).reshape(1, 1, -1)))


class InternVL(VisionFamily):
    def __init__(self, config: Config, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.facts = PictureFacts(config.count("image_token_id", 151667, least=0))
        self.vision = InternVision(config.part("vision_config") or Config({}, "config.json vision_config"))
        self.factor = read_factor(config, self.vision.side)
        self.num_embeddings = (self.vision.side // self.factor) ** 2
        if config.count("image_seq_length", self.num_embeddings) != self.num_embeddings:
            raise config.error("image_seq_length", f"{self.num_embeddings}, as vision_config and downsample_ratio say")
        self.activation = config.choice("projector_hidden_act", ACTIVATIONS, "gelu")
        config.expect(vision_feature_layer=-1, vision_feature_select_strategy="default")

    def processor(self, described: Config) -> InternVLProcessor:
        return InternVLProcessor(described, self.vision.image_size, self.num_embeddings)

    def tower(self, weights: Weights) -> TowerGraph:
        pixels = parameter(PIXELS, -1, 3, self.vision.image_size, self.vision.image_size)
        rows = self.vision.rows(pixels.output(0), self.tower_weights(weights))
        norm, up, down = self.projector(weights)
        x = layer_norm(folded(rows, self.vision.side, self.factor), norm, _PROJECTOR_EPSILON)
        return TowerGraph(projected(x, up, down, (self.hidden_size,) * 2, self.activation), [pixels])

    def tower_weights(self, weights: Weights) -> Weights:
        return found_at(weights, ("vision_tower", "model.vision_tower"), "embeddings.cls_token")

    def projector(self, weights: Weights) -> tuple[Weights, Weights, Weights]:
        projector = projector_weights(weights)
        return projector.at("layer_norm"), projector.at("linear_1"), projector.at("linear_2")


class InternVLProcessor:
    """See `PictureProcessor`. With detail "low" a picture is one tile. `has_whole`: a copy follows several tiles."""

    has_whole: bool = True

    def __init__(self, described: Config, tile_size: int, num_embeddings: int) -> None:
        read_kind(described, ("GotOcr2",))
        # The reference resizes tiles with this filter whatever the file says, and whole pictures with the file's.
        if read_resample(described) != Image.Resampling.BICUBIC:
            raise described.error("resample", f"{Image.Resampling.BICUBIC:d} (bicubic)")
        described.expect(do_resize=True)
        self.values = read_values(described, CLIP_MEAN, CLIP_STD)
        size = read_size(described, "size", 384, is_square=True)
        if (size.height, size.width) != (tile_size, tile_size):
            raise described.error("size", f'{{"height": {tile_size}, "width": {tile_size}}}, as the tower takes them')
        self.tile_size = tile_size
        self.num_embeddings = num_embeddings
        self.grids = read_grids(described, "min_patches", "max_patches")
        self.marker = read_text(described, "context_image_token", "<IMG_CONTEXT>")
        self.before = read_text(described, "start_image_token", "<img>")
        self.after = read_text(described, "end_image_token", "</img>")
        described.skip("crop_to_patches", "default_to_square")
        refuse_unread(described)

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        columns, rows = self._grid(width, height, detail)
        num_tiles = columns * rows + (self.has_whole and columns * rows > 1)
        count = num_tiles * self.num_embeddings
        return PictureLayout(f"{self.before}{self.placeholder * count}{self.after}", count)

    @property
    def placeholder(self) -> str:
        return self.marker

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        columns, rows = self._grid(picture.width, picture.height, detail)
        image, size = as_image(picture), self.tile_size
        large = image.resize((columns * size, rows * size), Image.Resampling.BICUBIC)
        tiles = cut(large, rows, columns, size)
        if self.has_whole and len(tiles) > 1:
            tiles.append(image.resize((size, size), Image.Resampling.BICUBIC))
        return {PIXELS: stacked(tiles, self.values)}

    def _grid(self, width: int, height: int, detail: Detail) -> tuple[int, int]:
        return (1, 1) if detail == "low" else nearest_grid(self.grids, width, height, self.tile_size)


def read_factor(config: Config, side: int) -> int:
    """The patches, of `side` in a row, that become one embedding's side. Raises: ModelError."""
    ratio = config.positive("downsample_ratio", 0.5)
    factor = max(round(1 / ratio), 1)
    if ratio != 1 / factor or side % factor:
        raise config.error("downsample_ratio", f"one over a divisor of the {side} patches of a tile's side")
    return factor


def read_side(config: Config, key: str, default: int) -> int:
    if not isinstance(config.value(key), list):
        return config.count(key, default)
    height, width = config.numbers(key, 2, least=1)
    if height != width or height != int(height):
        raise config.error(key, "a whole number, or two that are equal")
    return int(height)


# ImageNet's, whatever a checkpoint's file says.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# The layout's defaults, which a vision_config may leave out: the tower of 6 billion parameters.
_ASSUMED: dict[str, Any] = {
    "hidden_size": 3200,
    "num_hidden_layers": 48,
    "num_attention_heads": 25,
    "intermediate_size": 12800,
    "image_size": 224,
    "norm_type": "rms_norm",
    "use_qk_norm": True,
}
_ALIASES = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}

# Keys for training, and for experts (use_moe), which no tower has.
_HARMLESS = """
    capacity_factor eval_capacity_factor laux_allreduce moe_coeff_ratio moe_intermediate_size moe_output_scale
    noisy_gate_policy num_experts num_routed_experts num_shared_experts shared_expert_intermediate_size use_fa3
    use_flash_attn use_residual use_rts use_weighted_residual
"""

_COUNTS = ("min_dynamic_patch", "max_dynamic_patch")
_OF_OTHER_PROCESSORS = "crop_size crop_to_patches default_to_square do_center_crop do_pad do_resize size_divisor"


class InternChatVision(InternVision):
    names = TowerNames(
        class_row="class_embedding",
        patches="patch_embedding",
        places="position_embedding",
        layers="encoder.layers",
        first_norm="norm1",
        attention="attn",
        output="proj",
        first_scale="ls1",
        second_norm="norm2",
        second_scale="ls2",
    )

    def __init__(self, config: Config) -> None:
        config.rename(_ALIASES)
        config.assume(**_ASSUMED)
        config.expect(use_moe=False, use_mean_pooling=True, use_absolute_position_embeddings=True)
        config.skip(*_HARMLESS.split())
        super().__init__(config)
        self.head_norm_epsilon = self.epsilon

    def projections(self, weights: Weights) -> list[Weights]:
        fused = weights.at("qkv")
        return [fused.rows(slice(part * self.size, (part + 1) * self.size), 3 * self.size) for part in range(3)]


class InternVLChat(InternVL):
    prefixes = (r"vision_model\.", r"mlp1\.")

    def __init__(self, config: Config, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.facts = PictureFacts(_read_placeholder(config))
        self.vision = InternChatVision(config.part("vision_config") or Config({}, "config.json vision_config"))
        size = self.vision.image_size
        if config.value("force_image_size") and read_side(config, "force_image_size", size) != size:
            raise config.error("force_image_size", f"{size}, as vision_config image_size")
        config.choice("ps_version", ("v2",), "v1")  # "v1" transposes tiles
        config.expect(select_layer=-1, pad2square=False, use_backbone_lora=0, use_llm_lora=0)
        self.factor = read_factor(config, self.vision.side)
        self.num_embeddings = (self.vision.side // self.factor) ** 2
        self.activation = "gelu"
        read_grids(config, *_COUNTS)
        self._tiling: dict[str, Any] = {key: config.count(key) for key in _COUNTS if key in config}
        self._tiling |= {key: config.flag(key) for key in ("dynamic_image_size", "use_thumbnail")}

    def processor(self, described: Config) -> InternVLProcessor:
        return InternVLChatProcessor(described, self._tiling, self.vision.image_size, self.num_embeddings)

    def tower_weights(self, weights: Weights) -> Weights:
        return weights.at("vision_model")

    def projector(self, weights: Weights) -> tuple[Weights, Weights, Weights]:
        projector = weights.at("mlp1")
        return projector.at("0"), projector.at("1"), projector.at("3")


class InternVLChatProcessor(InternVLProcessor):
    """See `PictureProcessor`. preprocessor_config.json is another processor's: only its values of pixels count."""

    def __init__(self, described: Config, tiling: dict[str, Any], tile_size: int, num_embeddings: int) -> None:
        """`tiling`: the keys of config.json for tiles; the same keys in `described` go first."""
        read_kind(described, ("CLIP", "GotOcr2"))
        if read_resample(described) != Image.Resampling.BICUBIC:
            raise described.error("resample", f"{Image.Resampling.BICUBIC:d} (bicubic)")
        self.values = read_values(described, _MEAN, _STD)
        size = read_size(described, "size", tile_size, is_square=True)
        if (size.shortest or size.height, size.shortest or size.width) != (tile_size, tile_size):
            raise described.error("size", f"{tile_size}, as the tower takes tiles")
        self.tile_size = tile_size
        self.num_embeddings = num_embeddings
        described.rename({"max_patches": "max_dynamic_patch", "min_patches": "min_dynamic_patch"})
        described.assume(**tiling)
        self.has_whole = described.flag("use_thumbnail")
        self.grids = read_grids(described, *_COUNTS)
        if not described.flag("dynamic_image_size"):
            self.grids = ((1, 1),)
        self.marker = "<image>"
        self.before, self.after = "<img>", "</img>"
        described.skip(*_OF_OTHER_PROCESSORS.split())
        refuse_unread(described)

    @property
    def placeholder(self) -> str:
        return PLACEHOLDER


def _read_placeholder(config: Config) -> int:
    if PLACEHOLDER_KEY not in config:
        raise ModelError(
            f"neither config.json ({PLACEHOLDER_KEY}) nor the tokenizer's files say which token {PLACEHOLDER} is"
        )
    return config.count(PLACEHOLDER_KEY, least=0)
