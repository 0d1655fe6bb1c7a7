"""The part of a GGUF model that sees: a file beside the model's own, which llama.cpp calls mmproj.

A file that the operator names must fit, or the model is refused. Else one file with `mmproj` in its name is taken if it
fits; if not, the log says why, and pictures are refused. Called through `texts` and by the source of weights, on any
thread.
Sources: llama.cpp's converter of Hugging Face checkpoints, and its tools/mtmd.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
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
_QUERIES_KEYS_VALUES = re.compile(rf"{re.escape(LAYERS)}.*\.attn_[qkv]")
_MINISTRAL = ("Ministral3ForCausalLM", "ministral3")  # files call it mistral3, too


@dataclass(frozen=True, slots=True)
class SeeingPart:
    model: GgufModel
    projector: Projector
    placeholder_id: int

    def tensors(self) -> Iterator[tuple[str, tuple[GgufTensor, ...]]]:
        """Every tensor by its name in a checkpoint; several are one there, below each other or frame by frame."""
        found, layer = self.model.tensors, self._layer_names()
        for name in found:
            whole, parts = self._joined(name)
            if name == parts[0] and name not in self.projector.unread:
                yield self._name(whole, layer), tuple(found[part] for part in parts)

    def _joined(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The name of what a tensor is part of in a checkpoint, and the tensors that it is made of."""
        stem, _, ending = name.rpartition(".")
        if "attn_qkv" in self.projector.layer and name in FRAMES:
            return FRAMES[0], tuple(frame for frame in FRAMES if frame in self.model.tensors)
        if "attn_qkv" not in self.projector.layer or not _QUERIES_KEYS_VALUES.fullmatch(stem):
            return name, (name,)
        parts = tuple(f"{stem[:-1]}{part}.{ending}" for part in "qkv")
        if any(part not in self.model.tensors for part in parts):
            raise ModelError(f"{self.model.path} has {name!r}, but not all of {', '.join(parts)}")
        return f"{stem[:-1]}qkv.{ending}", parts

    def _name(self, name: str, layer: Mapping[str, str]) -> str:
        """The name in a checkpoint; unchanged if it is unknown: the tower refuses it."""
        tower, target = self.projector.tower, None
        if name.startswith(LAYERS):
            index, _, part = name.removeprefix(LAYERS).partition(".")
            target = _named(layer, part)
            return f"{tower}.{self.projector.layers}.{index}.{target}" if target else name
        if name.startswith(LEVELS):
            index, _, part = name.removeprefix(LEVELS).partition(".")
            levels, target = [str(level) for level in levels_of(self.model)], _named(LEVEL, part)
            return (
                f"{tower}.deepstack_merger_list.{levels.index(index)}.{target}" if target and index in levels else name
            )
        target = _named(TOWER, name)
        return _named(self.projector.names, name) or (f"{tower}.{target}" if target else name)

    def _layer_names(self) -> Mapping[str, str]:
        """In files of the first converter the MLP's matrices have each other's names."""
        names, up = self.projector.layer, self.model.tensors.get(FIRST_UP)
        size = self.model.metadata.count(f"{PREFIX}embedding_length")
        if up is None or len(up.shape) != 2 or not up.shape[0] == size != up.shape[1]:
            return names
        return {**names, "ffn_up": names["ffn_down"], "ffn_down": names["ffn_up"]}


def _named(names: Mapping[str, str], part: str) -> str | None:
    stem, _, ending = part.rpartition(".")
    return names.get(part) or (f"{names[stem]}.{ending}" if stem in names else None)


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
        rotation = {"rope_type": "default", "mrope_interleaved": True} if is_interleaved else {"type": "mrope"}
        text["rope_scaling"] = {**rotation, "mrope_section": sections[:3]}
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
