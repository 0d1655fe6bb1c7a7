"""InternVL 2, 2.5 and 3 in OpenGVLab's own layout: `internvl`'s tower and tiles, described and named otherwise.

Source: the code of OpenGVLab/InternVL, and its model cards: no file of a checkpoint describes the pictures.
"""

from __future__ import annotations

from typing import Any

from PIL import Image

from dragoman.models.config import Config, ModelError
from dragoman.models.facts import PictureFacts
from dragoman.models.vision.internvl import (
    InternVision,
    InternVL,
    InternVLProcessor,
    TowerNames,
    read_factor,
    read_side,
)
from dragoman.models.vision.pixels import read_kind, read_resample, read_size, read_values, refuse_unread
from dragoman.models.vision.placeholders import PLACEHOLDER, PLACEHOLDER_KEY
from dragoman.models.vision.tiles import read_grids
from dragoman.models.weights import Weights

# Of ImageNet, whatever processor a checkpoint's file is for.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# What a vision_config leaves out where it is what the layout's code assumes: the tower of 6 billion parameters.
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

# Of training, and of experts that no tower has got (use_moe).
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
        config.choice("ps_version", ("v2",), "v1")  # which turns tiles over
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
    """See `PictureProcessor`. preprocessor_config.json is another processor's: only what it makes of pixels counts."""

    def __init__(self, described: Config, tiling: dict[str, Any], tile_size: int, num_embeddings: int) -> None:
        """`tiling`: what config.json says of tiles; keys of the same names in `described` go first."""
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
