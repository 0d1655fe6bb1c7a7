"""The kinds of files that see, by the name of their projector: keys, values and names on the Hugging Face side.

Sources: llama.cpp's converter of Hugging Face checkpoints, and its tools/mtmd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import ModelError
from dragoman.gguf.files import GgufModel

Values = dict[str, Any]

SIGLIP = "gelu_pytorch_tanh"


LAYERS = "v.blk."
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}


@dataclass(frozen=True, slots=True)
class Projector:
    """One kind of file. `hugging_face`: the architecture of both files together. `texts`: its decoders.

    `placeholder`: the token of an embedding. `output`: the tensor that makes embeddings, and their axis. `tower`: of a
    checkpoint's tensors; `layers`, `layer`: its layers, and their parts' names; `names`: of other tensors. A name with
    its ending ("ls1.weight") says all of the target's. `raised`: a norm that has one added in the file.
    `batched`: tensors of three axes in a checkpoint, the first ones 1 long. `takes_turns`: rows of a head's two halves
    alternate in queries and keys. `has_flat_patches`: a checkpoint's patches are rows of numbers, colours last.
    `unread`: tensors that the model has as well. `needs`: tensors without which the tower is another one.
    `activation`: that clip.use_gelu or clip.use_silu must name, "quick_gelu" = neither, "gelu or silu" = one, "" =
    any. `read`, `config`, `described`: beyond those of all kinds.
    """

    hugging_face: str
    texts: tuple[str, ...]
    placeholder: str
    output: tuple[str, int]
    tower: str
    names: Mapping[str, str]
    config: Callable[[GgufModel], Values]
    described: Callable[[GgufModel], Values]
    is_clip: bool = False
    has_class_row: bool = False
    raised: str = ""
    batched: tuple[str, ...] = ()
    takes_turns: bool = False
    has_flat_patches: bool = False
    unread: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    activation: str = "gelu"
    read: tuple[str, ...] = ()
    layers: str = "encoder.layers"
    layer: Mapping[str, str] = field(default_factory=lambda: LAYER)


PREFIX = "clip.vision."
SIZES = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
}
HEADS = f"{PREFIX}{SIZES['num_attention_heads']}"
EPSILON = "attention.layer_norm_epsilon"
READ = {
    *(f"{PREFIX}{name}" for name in (*SIZES.values(), EPSILON, "image_mean", "image_std", "projection_dim")),
    *("clip.projector_type", f"{PREFIX}projector_type", "clip.use_gelu", "clip.use_silu"),
    *(f"clip.has_{name}" for name in ("vision_encoder", "llava_projector")),
}
_FACTOR, _LONGEST = f"{PREFIX}projector.scale_factor", f"{PREFIX}preproc_image_size"
OFF: Mapping[str, Any] = {  # keys, and the only value that changes nothing
    "clip.has_text_encoder": False,
    "clip.has_audio_encoder": False,
    f"{PREFIX}mm_patch_merge_type": "flat",
    f"{PREFIX}image_aspect_ratio": "pad",
    "clip.rope.freq_base": 10_000.0,
}

CLASS_ROW = "v.class_embd"
TOWER = {
    CLASS_ROW: "embeddings.class_embedding",
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding",
    "v.pre_ln": "pre_layrnorm",
    "v.post_ln": "post_layernorm",
}
FRAMES = ("v.patch_embd.weight", "v.patch_embd.weight.1")  # of a picture as a film of two frames
FIRST_UP = f"{LAYERS}0.ffn_up.weight"
LEVELS, _IS_LEVEL = "v.deepstack.", f"{PREFIX}is_deepstack_layers"
LEVEL = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_MERGE = "spatial_merge_size"
_TILES = {"min_patches": f"{PREFIX}preproc_min_tiles", "max_patches": f"{PREFIX}preproc_max_tiles"}
_PROJECTION = "multi_modal_projector"
_OF_MERGER = {
    "v.patch_embd": "visual.patch_embed.proj",
    "v.post_ln": "visual.merger.ln_q",
    "mm.0": "visual.merger.mlp.0",
    "mm.2": "visual.merger.mlp.2",
}
_OF_BLOCK = {"attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2"}
_WINDOWS = ("n_wa_pattern", "window_size")
_LIMITS = ("image_min_pixels", "image_max_pixels")


def _gemma3(model: GgufModel) -> Values:
    side = model.metadata.count(f"{PREFIX}image_size") // max(model.metadata.count(f"{PREFIX}patch_size"), 1)
    return {"mm_tokens_per_image": (side // max(model.metadata.count(_FACTOR, 4), 1)) ** 2}


def _gemma3_pictures(model: GgufModel) -> Values:
    size = model.metadata.count(f"{PREFIX}image_size")
    return {"image_processor_type": "Gemma3ImageProcessor", "resample": 2, "size": {"height": size, "width": size}}


def _llava(_model: GgufModel) -> Values:
    """llama.cpp takes the output of the last layer but one."""
    return {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}


def _llava_pictures(model: GgufModel) -> Values:
    """Pictures become squares first, as for the original LLaVA."""
    size = model.metadata.count(f"{PREFIX}image_size")
    sizes = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    return {"image_processor_type": "LlavaImageProcessor", "do_pad": True, **sizes}


def _idefics3(model: GgufModel) -> Values:
    return {"scale_factor": model.metadata.count(_FACTOR, 2)}


def _idefics3_pictures(model: GgufModel) -> Values:
    size = model.metadata.count(f"{PREFIX}image_size")
    longest = model.metadata.count(_LONGEST, 4 * size)  # all checkpoints have this; older files leave it out
    edges = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": size}}
    return {"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": True, **edges}


def _qwen(model: GgufModel, model_type: str, sizes: Values) -> Values:
    names = {"depth": "block_count", "num_heads": "attention.head_count", "patch_size": "patch_size"}
    counts = {key: model.metadata.count(f"{PREFIX}{name}") for key, name in names.items()}
    merge = model.metadata.count(f"{PREFIX}{_MERGE}", 2)
    return {"vision_config": {**counts, "spatial_merge_size": merge, "model_type": model_type, **sizes}}


def _qwen25(model: GgufModel) -> Values:
    """The last layer of each pattern sees the whole picture, the others windows."""
    values = model.metadata
    num_layers, every = (values.count(f"{PREFIX}{name}") for name in ("block_count", "n_wa_pattern"))
    if not every:
        raise values.error(f"{PREFIX}n_wa_pattern", "an integer of at least 1")
    sizes = {
        "hidden_size": values.count(f"{PREFIX}embedding_length"),
        "intermediate_size": values.count(f"{PREFIX}feed_forward_length"),
        "out_hidden_size": model.tensors["mm.2.weight"].shape[0],
        "window_size": values.count(f"{PREFIX}window_size", 112),
        "fullatt_block_indexes": list(range(every - 1, min(num_layers, len(model.tensors)), every)),
    }
    return _qwen(model, "qwen2_5_vl", {**sizes, "hidden_act": "silu", "in_chans": 3})


def _qwen2(model: GgufModel) -> Values:
    """The MLP's size is that of its matrices: the key that is called so has the decoder's."""
    values = model.metadata
    size, first = values.count(f"{PREFIX}embedding_length"), model.tensors.get(FIRST_UP)
    if first is None or not size:
        raise ModelError(f"{model.path} has no tensor {FIRST_UP!r} or no size, allowed: a tower of layers")
    sizes = {
        "embed_dim": size,
        "hidden_size": model.tensors["mm.2.weight"].shape[0],
        "mlp_ratio": math.prod(first.shape) / size**2,
        "in_chans": 3,
    }
    return _qwen(model, "qwen2_vl", sizes)


def _qwen3(model: GgufModel) -> Values:
    values, places = model.metadata, model.tensors.get("v.position_embd.weight")
    if places is None:
        raise ModelError(f"{model.path} has no tensor 'v.position_embd.weight', allowed: learnt positions")
    sizes = {
        "deepstack_visual_indexes": levels_of(model),
        "hidden_size": values.count(f"{PREFIX}embedding_length"),
        "intermediate_size": values.count(f"{PREFIX}feed_forward_length"),
        "num_position_embeddings": places.shape[0],
        "out_hidden_size": model.tensors["mm.2.weight"].shape[0],
        "hidden_act": SIGLIP,
        "in_channels": 3,
    }
    return _qwen(model, "qwen3_vl", sizes)


def levels_of(model: GgufModel) -> list[int]:
    return [index for index, is_one in enumerate(model.metadata.listed(_IS_LEVEL, bool)) if is_one]


def _qwen25_pictures(model: GgufModel) -> Values:
    """Limits are llama.cpp's, of 8 to 4096 embeddings, where the file has none."""
    values = model.metadata
    patch, merge = values.count(f"{PREFIX}patch_size"), values.count(f"{PREFIX}{_MERGE}", 2)
    fewest, most = (
        values.count(f"{PREFIX}{name}", count * (patch * merge) ** 2)
        for name, count in zip(_LIMITS, (8, 4096), strict=True)
    )
    sizes = {"patch_size": patch, "merge_size": merge, "temporal_patch_size": 2}
    return {"image_processor_type": "Qwen2VLImageProcessor", **sizes, "min_pixels": fewest, "max_pixels": most}


def _vision(model: GgufModel) -> Values:
    values = model.metadata
    sizes: Values = {key: values.count(f"{PREFIX}{name}") for key, name in SIZES.items()}
    return {**sizes, "hidden_act": "silu" if values.flag("clip.use_silu", False) else "gelu"}


def _internvl(model: GgufModel) -> Values:
    """Norms without biases are those of the 6 billion tower: roots of mean squares, of queries and keys, too."""
    tensors, values = model.tensors, model.metadata
    tower = {
        "layer_norm_eps": rounded(values.number(f"{PREFIX}{EPSILON}")),
        "attention_bias": f"{LAYERS}0.attn_q.bias" in tensors,
        "use_qk_norm": f"{LAYERS}0.attn_q_norm.weight" in tensors,
        "norm_type": "layer_norm" if f"{LAYERS}0.ln1.bias" in tensors else "rms_norm",
    }
    return {
        "vision_config": {**_vision(model), **tower},
        "downsample_ratio": 1 / max(values.count(_FACTOR, 2), 1),
    }


def _internvl_pictures(model: GgufModel) -> Values:
    """Up to 12 tiles where the file does not say it, as in llama.cpp and all checkpoints."""
    size = model.metadata.count(f"{PREFIX}image_size")
    tiles = {key: model.metadata.count(name, count) for (key, name), count in zip(_TILES.items(), (1, 12), strict=True)}
    sizes = {"size": {"height": size, "width": size}, **tiles}
    return {"image_processor_type": "GotOcr2ImageProcessor", "resample": 3, **sizes}


def _pixtral(model: GgufModel) -> Values:
    return {
        "vision_config": {**_vision(model), "model_type": "pixtral"},
        "spatial_merge_size": model.metadata.count(f"{PREFIX}{_MERGE}", 1),
        "multimodal_projector_bias": "mm.1.bias" in model.tensors,
    }


def _pixtral_pictures(model: GgufModel) -> Values:
    """The longer side is the tower's size, as in all checkpoints."""
    return {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": model.metadata.count(f"{PREFIX}image_size")},
    }


def _lfm2(model: GgufModel) -> Values:
    tower = _vision(model)
    del tower["image_size"]  # 256 in all files; the table of positions says more
    places = {"num_patches": model.tensors["v.position_embd.weight"].shape[0]}
    names = {"model_type": "siglip2_vision_model", "hidden_act": SIGLIP}
    epsilon = {"layer_norm_eps": rounded(model.metadata.number(f"{PREFIX}{EPSILON}"))}
    return {
        "vision_config": {**tower, **places, **names, **epsilon},
        "downsample_factor": model.metadata.count(_FACTOR, 2),
        "projector_bias": "mm.1.bias" in model.tensors,
        "projector_use_layernorm": "mm.input_norm.weight" in model.tensors,
        "projector_hidden_size": model.tensors["mm.1.weight"].shape[0],
    }


def _lfm2_pictures(model: GgufModel) -> Values:
    """Limits are those of all checkpoints: 64 to 256 embeddings, 2 to 10 tiles of 512."""
    values = model.metadata
    sizes = {"downsample_factor": values.count(_FACTOR, 2), "encoder_patch_size": values.count(f"{PREFIX}patch_size")}
    return {"image_processor_type": "Lfm2VlImageProcessor", "resample": 2, **sizes}


def rounded(number: float | None) -> float | None:
    """The number as it was before the file made it 32 bits."""
    return number if number is None or not math.isfinite(number) else float(f"{number:.6g}")


PROJECTORS: dict[str, Projector] = {
    "gemma3": Projector(
        "Gemma3ForConditionalGeneration",
        ("gemma3",),
        "<image_soft_token>",
        ("mm.input_projection.weight", 1),
        "vision_tower.vision_model",
        {
            "mm.input_projection.weight": f"{_PROJECTION}.mm_input_projection_weight",
            "mm.soft_emb_norm": f"{_PROJECTION}.mm_soft_emb_norm",
        },
        _gemma3,
        _gemma3_pictures,
        raised="mm.soft_emb_norm.weight",
        read=(_FACTOR,),
    ),
    "idefics3": Projector(
        "Idefics3ForConditionalGeneration",
        ("llama",),
        "<image>",
        ("mm.model.fc.weight", 0),
        "model.vision_model",
        {"mm.model.fc": "model.connector.modality_projection.proj"},
        _idefics3,
        _idefics3_pictures,
        read=(_FACTOR, _LONGEST),
    ),
    "internvl": Projector(
        "InternVLForConditionalGeneration",
        ("llama", "qwen2", "qwen3"),
        "<IMG_CONTEXT>",
        ("mm.model.mlp.3.weight", 0),
        "model.vision_tower",
        {
            CLASS_ROW: "model.vision_tower.embeddings.cls_token",
            "v.position_embd.weight": "model.vision_tower.embeddings.position_embeddings",
            "v.patch_embd": "model.vision_tower.embeddings.patch_embeddings.projection",
            "mm.model.mlp.0": f"model.{_PROJECTION}.layer_norm",
            "mm.model.mlp.1": f"model.{_PROJECTION}.linear_1",
            "mm.model.mlp.3": f"model.{_PROJECTION}.linear_2",
        },
        _internvl,
        _internvl_pictures,
        has_class_row=True,
        batched=(CLASS_ROW, "v.position_embd.weight"),
        activation="gelu or silu",
        read=(_FACTOR, *_TILES.values()),
        layers="encoder.layer",
        layer={
            "attn_q": "attention.q_proj",
            "attn_k": "attention.k_proj",
            "attn_v": "attention.v_proj",
            "attn_q_norm": "attention.q_norm",
            "attn_k_norm": "attention.k_norm",
            "attn_out": "attention.projection_layer",
            "ln1": "layernorm_before",
            "ln2": "layernorm_after",
            "ls1.weight": "lambda_1",
            "ls2.weight": "lambda_2",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
    ),
    "lfm2": Projector(
        "Lfm2VlForConditionalGeneration",
        ("lfm2",),
        "<image>",
        ("mm.2.weight", 0),
        "model.vision_tower",
        {
            "mm.input_norm": f"model.{_PROJECTION}.layer_norm",
            "mm.1": f"model.{_PROJECTION}.linear_1",
            "mm.2": f"model.{_PROJECTION}.linear_2",
        },
        _lfm2,
        _lfm2_pictures,
        has_flat_patches=True,
        needs=("v.position_embd.weight", "mm.1.weight"),
        read=(_FACTOR,),
    ),
    "mlp": Projector(
        "LlavaForConditionalGeneration",
        ("llama", "qwen2"),
        "<image>",
        ("mm.2.weight", 0),
        "vision_tower.vision_model",
        {"mm.0": f"{_PROJECTION}.linear_1", "mm.2": f"{_PROJECTION}.linear_2"},
        _llava,
        _llava_pictures,
        is_clip=True,
        has_class_row=True,
        activation="",
    ),
    "pixtral": Projector(
        "Mistral3ForConditionalGeneration",
        ("llama", "mistral3"),
        "[IMG]",
        ("mm.2.weight", 0),
        "model.vision_tower",
        {
            "v.patch_embd": "model.vision_tower.patch_conv",
            "v.pre_ln": "model.vision_tower.ln_pre",
            "mm.input_norm": f"model.{_PROJECTION}.norm",
            "mm.patch_merger": f"model.{_PROJECTION}.patch_merger.merging_layer",
            "mm.1": f"model.{_PROJECTION}.linear_1",
            "mm.2": f"model.{_PROJECTION}.linear_2",
        },
        _pixtral,
        _pixtral_pictures,
        takes_turns=True,
        unread=("v.token_embd.img_break",),
        needs=("mm.patch_merger.weight", "mm.input_norm.weight"),
        activation="gelu or silu",
        read=(f"{PREFIX}{_MERGE}",),
        layers="transformer.layers",
        layer={
            **{f"attn_{name}": f"attention.{name}_proj" for name in "qkv"},
            "attn_out": "attention.o_proj",
            "ln1": "attention_norm",
            "ln2": "ffn_norm",
            **{f"ffn_{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
        },
    ),
    "qwen2vl_merger": Projector(
        "Qwen2VLForConditionalGeneration",
        ("qwen2vl",),
        "<|image_pad|>",
        ("mm.2.weight", 0),
        "visual",
        _OF_MERGER,
        _qwen2,
        _qwen25_pictures,
        activation="quick_gelu",
        read=tuple(f"{PREFIX}{name}" for name in (_MERGE, *_LIMITS)),
        layers="blocks",
        layer=_OF_BLOCK | {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    ),
    "qwen2.5vl_merger": Projector(
        "Qwen2_5_VLForConditionalGeneration",
        ("qwen2vl",),
        "<|image_pad|>",
        ("mm.2.weight", 0),
        "visual",
        _OF_MERGER,
        _qwen25,
        _qwen25_pictures,
        activation="silu",
        read=tuple(f"{PREFIX}{name}" for name in (_MERGE, *_WINDOWS, *_LIMITS)),
        layers="blocks",
        layer=_OF_BLOCK | {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    ),
    "qwen3vl_merger": Projector(
        "Qwen3VLForConditionalGeneration",
        ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
        "<|image_pad|>",
        ("mm.2.weight", 0),
        "model.visual",
        {
            "v.patch_embd": "model.visual.patch_embed.proj",
            "v.position_embd": "model.visual.pos_embed",
            "v.post_ln": "model.visual.merger.norm",
            "mm.0": "model.visual.merger.linear_fc1",
            "mm.2": "model.visual.merger.linear_fc2",
        },
        _qwen3,
        _qwen25_pictures,
        read=(_IS_LEVEL, *(f"{PREFIX}{name}" for name in (_MERGE, *_LIMITS))),
        layers="blocks",
        layer=_OF_BLOCK | {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"},
    ),
}
"""By the name in clip.projector_type."""
