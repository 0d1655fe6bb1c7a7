"""The part of a GGUF model that sees: a file beside the model's own, which llama.cpp calls mmproj.

A file that the operator names must fit, or the model is refused. Else one file with `mmproj` in its name is taken if it
fits; if not, the log says why, and pictures are refused. Called through `texts` and by the source of weights, on any
thread.
Sources: llama.cpp's converter of Hugging Face checkpoints, and its tools/mtmd.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dragoman.errors import ModelError
from dragoman.gguf.config import make_config
from dragoman.gguf.files import GgufModel, files_that_see, named_to_see, read_gguf, read_gguf_file
from dragoman.gguf.header import GgufTensor
from dragoman.gguf.projectors import (
    CLASS_ROW,
    EPSILON,
    FIRST_UP,
    FRAMES,
    LAYERS,
    LEVEL,
    LEVELS,
    OFF,
    PREFIX,
    PROJECTORS,
    READ,
    SIGLIP,
    SIZES,
    TOWER,
    Projector,
    Values,
    levels_of,
    rounded,
)

logger = logging.getLogger(__name__)

_TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "lfm2": "lfm2",
    "llama": "llama",
    "mistral3": "llama",
    "qwen2": "qwen2",
    "qwen2vl": "qwen2_5_vl_text",
    "qwen3": "qwen3",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
}
_MINISTRAL = ("Ministral3ForCausalLM", "ministral3")  # files call it mistral3, too


@dataclass(frozen=True, slots=True)
class SeeingPart:
    model: GgufModel
    projector: Projector
    placeholder_id: int

    def tensors(self) -> Iterator[tuple[str, tuple[GgufTensor, ...]]]:
        """Every tensor by its name in a checkpoint; several are one there, below each other or frame by frame."""
        swaps, found = self._swaps(), self.model.tensors
        joins = "attn_qkv" in self.projector.layer
        for tensor in found.values():
            stem, _, ending = tensor.name.rpartition(".")
            is_layers = joins and stem.startswith(LAYERS)
            if tensor.name in self.projector.unread:
                continue
            if (joins and tensor.name == FRAMES[1]) or (is_layers and stem.endswith((".attn_k", ".attn_v"))):
                continue
            if joins and tensor.name == FRAMES[0]:
                yield self._name(tensor.name, swaps), tuple(found[name] for name in FRAMES if name in found)
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
        if name == CLASS_ROW:
            return f"{tower}embeddings.class_embedding"
        stem, _, ending = name.rpartition(".")
        if stem in TOWER:
            return f"{tower}{TOWER[stem]}.{ending}"
        if stem.startswith(LEVELS):
            index, _, part = stem.removeprefix(LEVELS).partition(".")
            levels = [str(level) for level in levels_of(self.model)]
            if index in levels and part in LEVEL:
                return f"{tower}deepstack_merger_list.{levels.index(index)}.{LEVEL[part]}.{ending}"
        index, _, part = stem.removeprefix(LAYERS).partition(".")
        if name.startswith(LAYERS) and f"{part}.{ending}" in self.projector.layer:
            return f"{tower}{self.projector.layers}.{index}.{self.projector.layer[f'{part}.{ending}']}"
        if not name.startswith(LAYERS) or part not in self.projector.layer:
            return name  # the tower refuses it
        if swaps and part.startswith("ffn_"):
            part = "ffn_down" if part == "ffn_up" else "ffn_up"
        return f"{tower}{self.projector.layers}.{index}.{self.projector.layer[part]}.{ending}"

    def _swaps(self) -> bool:
        """True if the MLP's matrices have each other's names, as in files of the first converter."""
        up, size = self.model.tensors.get(FIRST_UP), self.model.metadata.count(f"{PREFIX}embedding_length")
        return up is not None and len(up.shape) == 2 and up.shape[0] == size != up.shape[1]


def seeing_part(model: Path) -> SeeingPart | None:
    """The vision part of the model; None if no file next to it fits. Raises: ModelError."""
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
    values = part.metadata
    if part.architecture != "clip":
        raise values.error("general.architecture", "'clip', as in mmproj files")
    key = f"{PREFIX}projector_type" if f"{PREFIX}projector_type" in values else "clip.projector_type"
    kind = values.text(key)
    if kind not in PROJECTORS:
        raise values.error(key, ", ".join(PROJECTORS))
    projector = PROJECTORS[kind]
    read = {*READ, *projector.read}
    for name in values:
        if name.startswith("clip.") and name not in read and not (name in OFF and values[name] == OFF[name]):
            raise ModelError(f"{part.path} has {name}, which is unknown for {key} {kind}")
    if (CLASS_ROW in part.tensors) != projector.has_class_row:
        raise ModelError(
            f"{part.path} has {'no ' if projector.has_class_row else ''}{CLASS_ROW}, other than {key} {kind} has it"
        )
    if projector.is_clip and "v.post_ln.weight" in part.tensors:
        raise ModelError(f"{part.path} has v.post_ln.weight, allowed with {key} {kind}: none behind the last layer")
    for name in ("gelu", "silu"):
        is_on = values.flag(f"clip.use_{name}", False)
        if projector.activation in ("quick_gelu", name) and is_on != (projector.activation == name):
            raise values.error(f"clip.use_{name}", "false" if is_on else "true")
    if projector.activation == "gelu or silu" and values.flag("clip.use_gelu", False) == values.flag(
        "clip.use_silu", False
    ):
        raise values.error("clip.use_gelu", "true, or clip.use_silu true, and not both")
    if text.architecture not in projector.texts:
        raise ModelError(f"{part.path} {key} is {kind!r}, which does not fit {text.architecture} of {text.path.name}")
    for name in projector.needs:
        if name not in part.tensors:
            raise ModelError(f"{part.path} has no tensor {name!r}, which {key} {kind} needs here")
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
    file, values = read_gguf(model), part.model.metadata
    text = make_config(file)
    text_type = _TEXT_TYPES[file.architecture]
    if text.pop("architectures") == [_MINISTRAL[0]]:
        text_type = _MINISTRAL[1]
    sections = file.metadata.listed(f"{file.architecture}.rope.dimension_sections", int)
    if sections:
        is_interleaved = file.architecture.startswith("qwen3")
        told = {"rope_type": "default", "mrope_interleaved": True} if is_interleaved else {"type": "mrope"}
        text["rope_scaling"] = {**told, "mrope_section": sections[:3]}
    tower: Values = {key: values.count(f"{PREFIX}{name}") for key, name in SIZES.items()}
    epsilon = values.number(f"{PREFIX}{EPSILON}")
    if epsilon is None:
        raise values.error(f"{PREFIX}{EPSILON}", "a number above 0")
    tower["layer_norm_eps"] = rounded(epsilon)
    if part.projector.is_clip:
        gelu = "gelu" if values.flag("clip.use_gelu", False) else "quick_gelu"
        activation = {
            "model_type": "clip_vision_model",
            "hidden_act": "silu" if values.flag("clip.use_silu", False) else gelu,
        }
    else:
        activation = {"model_type": "siglip_vision_model", "hidden_act": SIGLIP}
    placeholder = "image_token_index" if part.projector.tower.startswith("vision_tower") else "image_token_id"
    return {
        "architectures": [part.projector.hugging_face],
        "text_config": {**text, "model_type": text_type},
        "vision_config": {**tower, **activation},
        "tie_word_embeddings": text["tie_word_embeddings"],
        placeholder: part.placeholder_id,
        **part.projector.config(part.model),
    }


def described_pictures(part: SeeingPart) -> Values:
    numbers = {name: part.model.metadata.listed(f"{PREFIX}{name}", float) for name in ("image_mean", "image_std")}
    return {**part.projector.described(part.model), **{name: values for name, values in numbers.items() if values}}
