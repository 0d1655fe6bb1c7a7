"""The part of a GGUF model that sees: a file beside the model's own, which llama.cpp calls mmproj.

Does: find the file, write what config.json and preprocessor_config.json say of pictures, name its tensors as a checkpoint
does. Does not: read tensors, or build towers. Called through `texts` and by the source of weights, on any thread.
Source of the facts: llama.cpp's converter of Hugging Face checkpoints, and its tools/mtmd.

The rule: the file that the operator names is the model's, or the model is refused. Where none is named, one file beside the
model with `mmproj` in its name is the model's, if it fits. What does not fit is not read then, and the log says why: the
model takes in texts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dragoman.errors import ModelError
from dragoman.gguf.config import make_config
from dragoman.gguf.files import GgufModel, files_that_see, named_to_see, read_gguf, read_gguf_file
from dragoman.gguf.header import GgufTensor

logger = logging.getLogger(__name__)

Values = dict[str, Any]

_SIGLIP = "gelu_pytorch_tanh"


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
    """One kind of file. `hugging_face`: the architecture of model and file together.

    `texts`: the decoders' architectures that it goes with, by their names in files. `placeholder`: the token that stands for
    an embedding. `output`: the tensor that makes what the decoder takes, and the axis along which that lies. `tower`: where
    a checkpoint has the tower's tensors; `layers`, `layer`: its layers, and their parts' names; `names`: of other tensors.
    `raised`: a norm that has one added in the file. `activation`: the one that clip.use_gelu or clip.use_silu must
    name, "quick_gelu" = neither, "" = any. `read`: keys besides those that all kinds have. `config`, `described`: values of
    config.json and preprocessor_config.json besides those that all kinds have.
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
    raised: str = ""
    activation: str = "gelu"
    read: tuple[str, ...] = ()
    layers: str = "encoder.layers"
    layer: Mapping[str, str] = field(default_factory=lambda: LAYER)


_PREFIX = "clip.vision."
_SIZES = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
}
_EPSILON = "attention.layer_norm_epsilon"
_READ = {
    *(f"{_PREFIX}{name}" for name in (*_SIZES.values(), _EPSILON, "image_mean", "image_std", "projection_dim")),
    *("clip.projector_type", f"{_PREFIX}projector_type", "clip.use_gelu", "clip.use_silu"),
    *(f"clip.has_{name}" for name in ("vision_encoder", "llava_projector")),
}
_FACTOR, _LONGEST = f"{_PREFIX}projector.scale_factor", f"{_PREFIX}preproc_image_size"
_OFF: Mapping[str, Any] = {  # keys, and the only value that changes nothing
    "clip.has_text_encoder": False,
    "clip.has_audio_encoder": False,
    f"{_PREFIX}mm_patch_merge_type": "flat",
    f"{_PREFIX}image_aspect_ratio": "pad",
}

_TOWER = {
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding",
    "v.pre_ln": "pre_layrnorm",
    "v.post_ln": "post_layernorm",
}
_CLASS = "v.class_embd"
_FRAMES = ("v.patch_embd.weight", "v.patch_embd.weight.1")  # of a picture that is a film of two
_FIRST_UP = f"{LAYERS}0.ffn_up.weight"
_PARTS = ("weight", "bias")
_LEVELS, _IS_LEVEL = "v.deepstack.", f"{_PREFIX}is_deepstack_layers"
_LEVEL = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_MERGE = "spatial_merge_size"
_WINDOWS = ("n_wa_pattern", "window_size")
_LIMITS = ("image_min_pixels", "image_max_pixels")


def _gemma3(model: GgufModel) -> Values:
    side = model.metadata.count(f"{_PREFIX}image_size") // max(model.metadata.count(f"{_PREFIX}patch_size"), 1)
    return {"mm_tokens_per_image": (side // max(model.metadata.count(_FACTOR, 4), 1)) ** 2}


def _gemma3_pictures(model: GgufModel) -> Values:
    size = model.metadata.count(f"{_PREFIX}image_size")
    return {"image_processor_type": "Gemma3ImageProcessor", "resample": 2, "size": {"height": size, "width": size}}


def _llava(_model: GgufModel) -> Values:
    """llama.cpp takes what comes out of the last layer but one."""
    return {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}


def _llava_pictures(model: GgufModel) -> Values:
    """Pictures become squares first, as for the original LLaVA."""
    size = model.metadata.count(f"{_PREFIX}image_size")
    sizes = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    return {"image_processor_type": "LlavaImageProcessor", "do_pad": True, **sizes}


def _idefics3(model: GgufModel) -> Values:
    return {"scale_factor": model.metadata.count(_FACTOR, 2)}


def _idefics3_pictures(model: GgufModel) -> Values:
    size = model.metadata.count(f"{_PREFIX}image_size")
    longest = model.metadata.count(_LONGEST, 4 * size)  # what older files leave out, as all checkpoints have it
    edges = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": size}}
    return {"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": True, **edges}


def _qwen25(model: GgufModel) -> Values:
    """The last layer of each pattern sees the whole picture, the others windows."""
    values = model.metadata
    num_layers, every = (values.count(f"{_PREFIX}{name}") for name in ("block_count", "n_wa_pattern"))
    if not every:
        raise values.error(f"{_PREFIX}n_wa_pattern", "an integer of at least 1")
    sizes = {
        "depth": num_layers,
        "hidden_size": values.count(f"{_PREFIX}embedding_length"),
        "intermediate_size": values.count(f"{_PREFIX}feed_forward_length"),
        "num_heads": values.count(f"{_PREFIX}attention.head_count"),
        "out_hidden_size": model.tensors["mm.2.weight"].shape[0],
        "patch_size": values.count(f"{_PREFIX}patch_size"),
        "spatial_merge_size": values.count(f"{_PREFIX}{_MERGE}", 2),
        "window_size": values.count(f"{_PREFIX}window_size", 112),
        "fullatt_block_indexes": list(range(every - 1, min(num_layers, len(model.tensors)), every)),
    }
    return {"vision_config": {**sizes, "model_type": "qwen2_5_vl", "hidden_act": "silu", "in_chans": 3}}


def _qwen2(model: GgufModel) -> Values:
    """The MLP's size is that of its matrices: the key that is called so has the decoder's."""
    values = model.metadata
    size, first = values.count(f"{_PREFIX}embedding_length"), model.tensors.get(_FIRST_UP)
    if first is None or not size:
        raise ModelError(f"{model.path} has no tensor {_FIRST_UP!r} or no size, allowed: a tower of layers")
    sizes = {
        "depth": values.count(f"{_PREFIX}block_count"),
        "embed_dim": size,
        "hidden_size": model.tensors["mm.2.weight"].shape[0],
        "mlp_ratio": math.prod(first.shape) / size**2,
        "num_heads": values.count(f"{_PREFIX}attention.head_count"),
        "patch_size": values.count(f"{_PREFIX}patch_size"),
        "spatial_merge_size": values.count(f"{_PREFIX}{_MERGE}", 2),
    }
    return {"vision_config": {**sizes, "model_type": "qwen2_vl", "in_chans": 3}}


def _qwen3(model: GgufModel) -> Values:
    """Positions are learnt for a square of patches; layers that the file marks have a further level."""
    values, places = model.metadata, model.tensors.get("v.position_embd.weight")
    if places is None:
        raise ModelError(f"{model.path} has no tensor 'v.position_embd.weight', allowed: learnt positions")
    sizes = {
        "deepstack_visual_indexes": _levels(model),
        "depth": values.count(f"{_PREFIX}block_count"),
        "hidden_size": values.count(f"{_PREFIX}embedding_length"),
        "intermediate_size": values.count(f"{_PREFIX}feed_forward_length"),
        "num_heads": values.count(f"{_PREFIX}attention.head_count"),
        "num_position_embeddings": places.shape[0],
        "out_hidden_size": model.tensors["mm.2.weight"].shape[0],
        "patch_size": values.count(f"{_PREFIX}patch_size"),
        "spatial_merge_size": values.count(f"{_PREFIX}{_MERGE}", 2),
    }
    return {"vision_config": {**sizes, "model_type": "qwen3_vl", "hidden_act": _SIGLIP, "in_channels": 3}}


def _levels(model: GgufModel) -> list[int]:
    """The layers behind which a further level of embeddings comes out."""
    return [index for index, is_one in enumerate(model.metadata.listed(_IS_LEVEL, bool)) if is_one]


def _qwen25_pictures(model: GgufModel) -> Values:
    """Limits are llama.cpp's, of 8 to 4096 embeddings, where the file has none."""
    values = model.metadata
    patch, merge = values.count(f"{_PREFIX}patch_size"), values.count(f"{_PREFIX}{_MERGE}", 2)
    fewest, most = (
        values.count(f"{_PREFIX}{name}", count * (patch * merge) ** 2)
        for name, count in zip(_LIMITS, (8, 4096), strict=True)
    )
    sizes = {"patch_size": patch, "merge_size": merge, "temporal_patch_size": 2}
    return {"image_processor_type": "Qwen2VLImageProcessor", **sizes, "min_pixels": fewest, "max_pixels": most}


PROJECTORS: dict[str, Projector] = {
    "gemma3": Projector(
        "Gemma3ForConditionalGeneration",
        ("gemma3",),
        "<image_soft_token>",
        ("mm.input_projection.weight", 1),
        "vision_tower.vision_model",
        {
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
            "mm.soft_emb_norm.weight": "multi_modal_projector.mm_soft_emb_norm.weight",
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
        {"mm.model.fc.weight": "model.connector.modality_projection.proj.weight"},
        _idefics3,
        _idefics3_pictures,
        read=(_FACTOR, _LONGEST),
    ),
    "mlp": Projector(
        "LlavaForConditionalGeneration",
        ("llama", "qwen2"),
        "<image>",
        ("mm.2.weight", 0),
        "vision_tower.vision_model",
        {
            f"mm.{number}.{part}": f"multi_modal_projector.linear_{index}.{part}"
            for number, index in ((0, 1), (2, 2))
            for part in _PARTS
        },
        _llava,
        _llava_pictures,
        is_clip=True,
        activation="",
    ),
    "qwen2vl_merger": Projector(
        "Qwen2VLForConditionalGeneration",
        ("qwen2vl",),
        "<|image_pad|>",
        ("mm.2.weight", 0),
        "visual",
        {
            "v.patch_embd.weight": "visual.patch_embed.proj.weight",
            **{f"v.post_ln.{part}": f"visual.merger.ln_q.{part}" for part in _PARTS},
            **{f"mm.{number}.{part}": f"visual.merger.mlp.{number}.{part}" for number in (0, 2) for part in _PARTS},
        },
        _qwen2,
        _qwen25_pictures,
        activation="quick_gelu",
        read=tuple(f"{_PREFIX}{name}" for name in (_MERGE, *_LIMITS)),
        layers="blocks",
        layer={
            "attn_qkv": "attn.qkv",
            "attn_out": "attn.proj",
            "ln1": "norm1",
            "ln2": "norm2",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
    ),
    "qwen2.5vl_merger": Projector(
        "Qwen2_5_VLForConditionalGeneration",
        ("qwen2vl",),
        "<|image_pad|>",
        ("mm.2.weight", 0),
        "visual",
        {
            "v.patch_embd.weight": "visual.patch_embed.proj.weight",
            "v.post_ln.weight": "visual.merger.ln_q.weight",
            **{f"mm.{number}.{part}": f"visual.merger.mlp.{number}.{part}" for number in (0, 2) for part in _PARTS},
        },
        _qwen25,
        _qwen25_pictures,
        activation="silu",
        read=tuple(f"{_PREFIX}{name}" for name in (_MERGE, *_WINDOWS, *_LIMITS)),
        layers="blocks",
        layer={
            "attn_qkv": "attn.qkv",
            "attn_out": "attn.proj",
            "ln1": "norm1",
            "ln2": "norm2",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "qwen3vl_merger": Projector(
        "Qwen3VLForConditionalGeneration",
        ("qwen3vl",),
        "<|image_pad|>",
        ("mm.2.weight", 0),
        "model.visual",
        {
            **{f"v.patch_embd.{part}": f"model.visual.patch_embed.proj.{part}" for part in _PARTS},
            "v.position_embd.weight": "model.visual.pos_embed.weight",
            **{f"v.post_ln.{part}": f"model.visual.merger.norm.{part}" for part in _PARTS},
            **{
                f"mm.{number}.{part}": f"model.visual.merger.linear_fc{index}.{part}"
                for number, index in ((0, 1), (2, 2))
                for part in _PARTS
            },
        },
        _qwen3,
        _qwen25_pictures,
        read=(_IS_LEVEL, *(f"{_PREFIX}{name}" for name in (_MERGE, *_LIMITS))),
        layers="blocks",
        layer={
            "attn_qkv": "attn.qkv",
            "attn_out": "attn.proj",
            "ln1": "norm1",
            "ln2": "norm2",
            "ffn_up": "mlp.linear_fc1",
            "ffn_down": "mlp.linear_fc2",
        },
    ),
}
"""By the name in clip.projector_type."""

_TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen2vl": "qwen2_5_vl_text",
    "qwen3vl": "qwen3_vl_text",
}


@dataclass(frozen=True, slots=True)
class SeeingPart:
    """A file that fits a model. `placeholder_id`: in the model's vocabulary."""

    model: GgufModel
    projector: Projector
    placeholder_id: int

    def tensors(self) -> Iterator[tuple[str, tuple[GgufTensor, ...]]]:
        """Every tensor by its name in a checkpoint; several that are one there, below each other or frame by frame."""
        swaps, found = self._swaps(), self.model.tensors
        joins = "attn_qkv" in self.projector.layer
        for tensor in found.values():
            stem, _, ending = tensor.name.rpartition(".")
            is_layers = joins and stem.startswith(LAYERS)
            if (joins and tensor.name == _FRAMES[1]) or (is_layers and stem.endswith((".attn_k", ".attn_v"))):
                continue
            if joins and tensor.name == _FRAMES[0]:
                yield self._name(tensor.name, swaps), tuple(found[name] for name in _FRAMES if name in found)
            elif is_layers and stem.endswith(".attn_q"):
                parts = [f"{stem[:-1]}{part}.{ending}" for part in "qkv"]
                if any(part not in found for part in parts):
                    raise ModelError(f"{self.model.path} has {tensor.name!r}, but not all of {', '.join(parts)}")
                yield self._name(f"{stem}kv.{ending}", swaps), tuple(found[part] for part in parts)
            else:
                yield self._name(tensor.name, swaps), (tensor,)

    def _name(self, name: str, swaps: bool) -> str:
        tower = f"{self.projector.tower}."
        if name in self.projector.names:
            return self.projector.names[name]
        if name == _CLASS:
            return f"{tower}embeddings.class_embedding"
        stem, _, ending = name.rpartition(".")
        if stem in _TOWER:
            return f"{tower}{_TOWER[stem]}.{ending}"
        if stem.startswith(_LEVELS):
            index, _, part = stem.removeprefix(_LEVELS).partition(".")
            levels = [str(level) for level in _levels(self.model)]
            if index in levels and part in _LEVEL:
                return f"{tower}deepstack_merger_list.{levels.index(index)}.{_LEVEL[part]}.{ending}"
        index, _, part = stem.removeprefix(LAYERS).partition(".")
        if not name.startswith(LAYERS) or part not in self.projector.layer:
            return name  # which the tower refuses
        if swaps and part.startswith("ffn_"):
            part = "ffn_down" if part == "ffn_up" else "ffn_up"
        return f"{tower}{self.projector.layers}.{index}.{self.projector.layer[part]}.{ending}"

    def _swaps(self) -> bool:
        """True if the MLP's matrices have each other's names, as in files of the first converter."""
        up, size = self.model.tensors.get(_FIRST_UP), self.model.metadata.count(f"{_PREFIX}embedding_length")
        return up is not None and len(up.shape) == 2 and up.shape[0] == size != up.shape[1]


def seeing_part(model: Path) -> SeeingPart | None:
    """The vision part of the model at that path; None if no file next to it fits. Raises: ModelError."""
    files = files_that_see(model)
    if not files:
        return None
    try:
        states = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    except OSError as error:
        raise ModelError(f"{files[0]} cannot be read: {error}") from error
    return _found(model, states, is_named=named_to_see(model) is not None)


@lru_cache(maxsize=4)
def _found(model: Path, states: tuple[tuple[Path, int, int], ...], *, is_named: bool) -> SeeingPart | None:
    if len(states) > 1:
        found = ", ".join(path.name for path, _, _ in states)
        logger.warning(
            "pictures are refused: several files have mmproj in their names, name one with --mmproj: %s",
            found,
        )
        return None
    ((path, _, _),) = states
    try:
        return _fitting(read_gguf(model), read_gguf_file(path))
    except ModelError as error:
        if is_named:
            raise
        logger.warning("pictures are refused: %s", error)
        return None


def _fitting(text: GgufModel, part: GgufModel) -> SeeingPart:
    """Raises: ModelError naming what is not known or does not fit."""
    values = part.metadata
    if part.architecture != "clip":
        raise values.error("general.architecture", "'clip', as in mmproj files")
    key = f"{_PREFIX}projector_type" if f"{_PREFIX}projector_type" in values else "clip.projector_type"
    kind = values.text(key)
    if kind not in PROJECTORS:
        raise values.error(key, ", ".join(PROJECTORS))
    projector = PROJECTORS[kind]
    read = {*_READ, *projector.read}
    for name in values:
        if name.startswith("clip.") and name not in read and not (name in _OFF and values[name] == _OFF[name]):
            raise ModelError(f"{part.path} has {name}, which is unknown for {key} {kind}")
    if (_CLASS in part.tensors) != projector.is_clip:
        raise ModelError(
            f"{part.path} has {'no ' if projector.is_clip else ''}{_CLASS}, other than {key} {kind} has it"
        )
    if projector.is_clip and "v.post_ln.weight" in part.tensors:
        raise ModelError(f"{part.path} has v.post_ln.weight, allowed with {key} {kind}: none behind the last layer")
    for name in ("gelu", "silu"):
        is_on = values.flag(f"clip.use_{name}", False)
        if projector.activation in ("quick_gelu", name) and is_on != (projector.activation == name):
            raise values.error(f"clip.use_{name}", "false" if is_on else "true")
    if text.architecture not in projector.texts:
        raise ModelError(f"{part.path} {key} is {kind!r}, which does not fit {text.architecture} of {text.path.name}")
    name, axis = projector.output
    size = text.metadata.count(f"{text.architecture}.embedding_length")
    output = part.tensors.get(name)
    if output is None or len(output.shape) != 2 or output.shape[axis] != size:
        raise ModelError(
            f"{part.path} has no tensor {name!r} whose vectors have {size} numbers, as those of {text.path.name}"
        )
    tokens = text.metadata.listed("tokenizer.ggml.tokens", str)
    if projector.placeholder not in tokens:
        raise ModelError(
            f"{text.path} has no token {projector.placeholder!r}, the placeholder for the pictures of {part.path.name}"
        )
    return SeeingPart(part, projector, tokens.index(projector.placeholder))


def seeing_config(model: Path, part: SeeingPart) -> Values:
    """The contents of config.json of both files. Raises: ModelError."""
    file, values = read_gguf(model), part.model.metadata
    text = make_config(file)
    del text["architectures"]
    sections = file.metadata.listed(f"{file.architecture}.rope.dimension_sections", int)
    if sections:
        is_interleaved = file.architecture.startswith("qwen3")
        told = {"rope_type": "default", "mrope_interleaved": True} if is_interleaved else {"type": "mrope"}
        text["rope_scaling"] = {**told, "mrope_section": sections[:3]}
    tower: Values = {key: values.count(f"{_PREFIX}{name}") for key, name in _SIZES.items()}
    epsilon = values.number(f"{_PREFIX}{_EPSILON}")
    if epsilon is None:
        raise values.error(f"{_PREFIX}{_EPSILON}", "a number above 0")
    tower["layer_norm_eps"] = float(f"{epsilon:.6g}") if math.isfinite(epsilon) else epsilon
    if part.projector.is_clip:
        gelu = "gelu" if values.flag("clip.use_gelu", False) else "quick_gelu"
        activation = {
            "model_type": "clip_vision_model",
            "hidden_act": "silu" if values.flag("clip.use_silu", False) else gelu,
        }
    else:
        activation = {"model_type": "siglip_vision_model", "hidden_act": _SIGLIP}
    placeholder = "image_token_index" if part.projector.tower.startswith("vision_tower") else "image_token_id"
    return {
        "architectures": [part.projector.hugging_face],
        "text_config": {**text, "model_type": _TEXT_TYPES[file.architecture]},
        "vision_config": {**tower, **activation},
        "tie_word_embeddings": text["tie_word_embeddings"],
        placeholder: part.placeholder_id,
        **part.projector.config(part.model),
    }


def described_pictures(part: SeeingPart) -> Values:
    """The contents of preprocessor_config.json. Raises: ModelError."""
    numbers = {name: part.model.metadata.listed(f"{_PREFIX}{name}", float) for name in ("image_mean", "image_std")}
    return {**part.projector.described(part.model), **{name: values for name, values in numbers.items() if values}}
