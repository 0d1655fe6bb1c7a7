"""Checkpoints that also see: chooses the text's family and the tower, and knows which keys and tensors are not for text."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dragoman.models.architectures import TOWERS
from dragoman.models.config import Config, ModelError, shown
from dragoman.models.families.base import Family, Layout
from dragoman.models.families.gemma import Gemma3, Gemma3n, Gemma4
from dragoman.models.families.lfm2 import Lfm2
from dragoman.models.families.llama import Llama
from dragoman.models.families.llama4 import Llama4
from dragoman.models.families.mistral import Ministral3, Mistral, Mistral4
from dragoman.models.families.phi import Phi3
from dragoman.models.families.qwen import Qwen2, Qwen3, Qwen3Experts, Qwen35, Qwen35Experts
from dragoman.models.families.relatives import InternLM2
from dragoman.models.sources.quantised import QUANTISATION_KEYS
from dragoman.models.vision.base import VisionFamily


class Qwen2Vision(Qwen2):
    """Qwen2-VL and Qwen2.5-VL: the axes' sections lie one after the other."""

    axes = "sections"


class Qwen3Vision(Qwen3):
    """Qwen3-VL: the axes take turns."""

    axes = "turns"


class Qwen3VisionExperts(Qwen3Vision, Qwen3Experts):
    """Experts that lie in two tensors, stored by columns, or each in its own."""

    are_turned = True

    def __init__(self, config: Config) -> None:
        config.assume(norm_topk_prob=True)
        config.expect(norm_topk_prob=True)
        super().__init__(config)


class Qwen35Vision(Qwen35):
    axes = "turns"


class Qwen35VisionExperts(Qwen35Experts):
    axes = "turns"


_LAYOUTS = (
    Layout("language_model.model", "language_model.lm_head"),
    Layout("model.language_model", "lm_head"),  # transformers writes this since its version 4.52
    Layout("model.text_model", "lm_head"),
    Layout("model", "lm_head"),
)
_NOT_FOR_TEXT = (
    r"^(model\.)?(vision_|visual\.|multi_modal_projector\.|connector\.|image_newline$)",
    r"^(model\.)?(audio_tower|embed_audio|embed_vision)\.",
)

_FAMILIES: dict[str, type[Family]] = {
    "gemma3_text": Gemma3,
    "gemma3n_text": Gemma3n,
    "gemma4_text": Gemma4,
    "lfm2": Lfm2,
    "llama": Llama,
    "llama4_text": Llama4,
    "ministral3": Ministral3,
    "mistral": Mistral,
    "mistral4": Mistral4,
    "qwen2": Qwen2,
    "qwen2_vl": Qwen2Vision,
    "qwen2_vl_text": Qwen2Vision,
    "qwen2_5_vl": Qwen2Vision,
    "qwen2_5_vl_text": Qwen2Vision,
    "qwen3": Qwen3,
    "qwen3_vl_text": Qwen3Vision,
    "qwen3_vl_moe_text": Qwen3VisionExperts,
    "qwen3_5_text": Qwen35Vision,
    "qwen3_5_moe_text": Qwen35VisionExperts,
}

# transformers' defaults, which the text's part may leave out. (A separate config has every key.)
_LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
_ASSUMED: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA_7B, "intermediate_size": 11008, "max_position_embeddings": 2048},
    "mistral": {
        **_LLAMA_7B,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {
        **_LLAMA_7B,
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "sliding_window": 4096,
    },
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1_000_000.0,
    },
}

INTERNVL_DECODERS: dict[str, type[Family]] = {
    family.architectures()[0]: family for family in (InternLM2, Llama, Phi3, Qwen2, Qwen3, Qwen3Experts)
}
"""The decoders of OpenGVLab's own InternVL checkpoints, by the architecture that their llm_config names."""

_KEYS_OF_IMAGES = """
    audio_config audio_soft_tokens_per_image audio_token_id boa_token_id boa_token_index boi_token_id eoa_token_id
    eoa_token_index eoi_token_id vision_soft_tokens_per_image
    boi_token_index eoi_token_index downsample_factor downsample_ratio ignore_index image_aspect_ratio image_grid_pinpoints
    image_seq_length
    image_token_id image_token_index mm_tokens_per_image multimodal_projector_bias projector_bias
    projector_hidden_act projector_hidden_size projector_use_layernorm scale_factor
    spatial_merge_size use_image_newline_parameter use_reentrant_checkpointing video_token_id video_token_index
    vision_aspect_ratio vision_config vision_end_token_id vision_feature_layer vision_feature_select_strategy
    vision_start_token_id vision_token_id
"""
# LFM2-VL's config repeats keys of preprocessor_config.json, which decides.
_KEYS_OF_PREPARATION = """
    do_image_splitting encoder_patch_size max_image_tokens max_num_patches max_pixels_tolerance max_tiles min_image_tokens
    min_tiles tile_size use_image_special_tokens use_thumbnail
"""
_TOKENS_OF_IMAGES = "image_token_id video_token_id vision_end_token_id vision_start_token_id vision_token_id"
# Idefics3 and SmolVLM write the config of their training's class.
_KEYS_OF_TRAINING = """
    _flash_attn_2_enabled is_llama_config neftune_noise_alpha perceiver_config pixel_shuffle_factor
"""

# Keys of InternVL's own layout: of pictures, for the tower and other libraries; and sizes that
# llm_config repeats.
_KEYS_OF_INTERNVL = """
    downsample_ratio dynamic_image_size force_image_size hidden_size image_fold img_context_token_id max_dynamic_patch
    min_dynamic_patch num_hidden_layers num_image_token pad2square ps_version select_layer system_message template
    tie_word_embeddings use_backbone_lora use_llm_lora use_thumbnail vision_config vocab_size
"""
_KEYS_OF_INTERNVL_TRAINING = "debug ep_size micro_forward skip_checkpoint use_deepep use_fa3 use_flash_attn"
_NOT_FOR_INTERNVL_TEXT = (r"^(vision_model|mlp1)\.",)


def text_model(config: Config) -> Family:
    config.skip(*_KEYS_OF_IMAGES.split(), *_KEYS_OF_PREPARATION.split())
    part = config.part("text_config")
    text = config if part is None else _text_config(config, part)
    kind = str(text.value("model_type"))
    if kind not in _FAMILIES:
        raise ModelError(f"a text_config of model_type {kind!r} is not supported, allowed: {', '.join(_FAMILIES)}")
    model = _FAMILIES[kind](text)
    model.layouts = _LAYOUTS
    model.is_tied_without_head = config.flag("tie_word_embeddings")
    model.unread = (*model.unread, *_NOT_FOR_TEXT)
    text.refuse_unread()
    return model


def internvl_text_model(config: Config) -> Family:
    """The model of an InternVL's llm_config, in OpenGVLab's own layout. Raises: ModelError."""
    config.skip(*_KEYS_OF_INTERNVL.split())
    text = config.part("llm_config")
    if text is None:
        raise config.error("llm_config", "an object")
    names = text.value("architectures")
    known = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if known not in INTERNVL_DECODERS:
        raise ModelError(
            f"config.json llm_config architectures {shown(names)} are not supported, "
            f"allowed: one of {', '.join(INTERNVL_DECODERS)}"
        )
    text.skip(*_KEYS_OF_INTERNVL_TRAINING.split(), *QUANTISATION_KEYS)
    model = INTERNVL_DECODERS[known](text)
    model.layouts = tuple(Layout(*(f"language_model.{place}" for place in layout)) for layout in model.layouts)
    model.unread = (*model.unread, *_NOT_FOR_INTERNVL_TEXT)
    text.refuse_unread()
    return model


def find_tower(architecture: str) -> type[VisionFamily] | None:
    if architecture not in TOWERS:
        return None
    module, _, name = TOWERS[architecture].partition(".")
    tower: type[VisionFamily] = getattr(import_module(f"dragoman.models.vision.{module}"), name)
    return tower


def _text_config(config: Config, part: Config) -> Config:
    raw: dict[str, Any] = config.value("text_config")
    kind = str(part.value("model_type"))
    config.skip("vocab_size")
    config.skip_repeated(raw)  # transformers 4.57 writes Qwen2-VL's text twice
    if raw.get("use_sliding_window") is False:
        config.skip("sliding_window")
    known = {key: config.value(key) for key in ("tie_word_embeddings", "tie_embedding") if key in config}
    text = Config({**_ASSUMED.get(kind, {}), **known, **raw}, "config.json text_config")
    text.expect(qk_layer_norms=False, rope_interleaved=False, use_resampler=False)
    text.skip(*_KEYS_OF_TRAINING.split())
    text.skip(*QUANTISATION_KEYS)  # read with the whole config's
    text.skip(*_TOKENS_OF_IMAGES.split())  # transformers 4 writes them here as well
    return text
