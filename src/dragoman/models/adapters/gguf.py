"""Reads an adapter (LoRA) from a GGUF file, as llama.cpp's convert_lora_to_gguf.py writes it. Called on any thread.

The matrices change those of a GGUF model, so they lie as those do: the architecture's row, inverted, says how.
Sources: llama.cpp's convert_lora_to_gguf.py and llama-adapter.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from dragoman.gguf.architecture import Architecture
from dragoman.gguf.architectures import ARCHITECTURES, VARIANTS
from dragoman.gguf.header import GgufTensor, Metadata, read_header
from dragoman.models.adapters.low_rank import Adapter, LowRank
from dragoman.models.config import ModelError
from dragoman.models.facts import AttentionFacts, DeltaFacts, ModelFacts
from dragoman.models.sources.base import Array
from dragoman.models.sources.gguf.naming import place_of
from dragoman.models.sources.gguf.orders import row_order, turns_order
from dragoman.models.sources.gguf.stored import MappedFiles

_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
_HARMLESS_KEYS = r"general\..*|GGUF\..*|adapter\.(type|lora\.(alpha|task_name|prompt_prefix))"
_SIDES = (".lora_a", ".lora_b")

_RELATIVES = {
    "DeepseekV3ForCausalLM": "DeepseekV2ForCausalLM",
    "Glm4MoeLiteForCausalLM": "DeepseekV2ForCausalLM",
    "GraniteMoeHybridForCausalLM": "GraniteForCausalLM",
    "MistralForCausalLM": "LlamaForCausalLM",
    "SolarOpenForCausalLM": "Glm4MoeForCausalLM",
}
"""Models of config.json that the converter writes as others."""


def read_gguf_adapter(path: Path, facts: ModelFacts) -> Adapter:
    """The adapter in a file, for a model with these facts. Raises: ModelError naming the key or tensor at fault."""
    header = read_header(path)
    _check_kind(path, header.metadata)
    names = _Names(path, _find_architecture(path, header.metadata, facts), facts)
    alpha = float(header.metadata.number(_ALPHA) or 0)
    if alpha < 0:
        raise header.metadata.error(_ALPHA, "a number of at least 0")
    files = MappedFiles()
    modules: dict[str, LowRank] = {}
    try:
        for name, (down, up) in _pairs(path, header.tensors).items():
            rank = down.shape[0]
            if len(down.shape) != 2 or len(up.shape) != 2 or up.shape[1] != rank:
                raise ModelError(
                    f"{path}: tensors {down.name!r} and {up.name!r} have shapes {list(down.shape)} and {list(up.shape)}, "
                    "allowed: [rank, in] and [out, rank]; experts are not changed by GGUF adapters"
                )
            scale = np.float32(alpha / rank if alpha else 1.0)  # llama.cpp does the same without an alpha
            change = LowRank(_numbers(path, files, down), _numbers(path, files, up) * scale)
            for module, part in names.modules_of(name, change):
                if module in modules:
                    raise ModelError(f"{path} changes module {module!r} twice, once as {name!r}")
                modules[module] = part
    finally:
        files.close()
    if not modules:
        raise ModelError(f"{path} has no tensors, allowed: a lora_a and a lora_b for each matrix that it changes")
    return Adapter(path, (path,), modules)


def _check_kind(path: Path, metadata: Metadata) -> None:
    architecture, kind = metadata.text("general.architecture"), metadata.text("general.type")
    if "controlvector" in (architecture, kind, metadata.text("adapter.type")):
        raise ModelError(f"{path} is a control vector, allowed: an adapter (LoRA); control vectors are not supported")
    if kind != "adapter":
        raise metadata.error("general.type", "'adapter', which files of adapters (LoRA) say")
    if metadata.text("adapter.type") != "lora":
        raise metadata.error("adapter.type", "'lora'")
    unknown = sorted(key for key in metadata if not re.fullmatch(_HARMLESS_KEYS, key))
    if any(key.startswith("adapter.alora.") for key in unknown):
        raise ModelError(
            f"{path} has {_INVOCATION}: an activated LoRA, which changes only some of a prompt's tokens, is not supported; "
            "allowed: one that changes all"
        )
    if unknown:
        raise ModelError(f"{path} has unknown metadata for an adapter: {', '.join(unknown[:5])}")


def _find_architecture(path: Path, metadata: Metadata, facts: ModelFacts) -> Architecture:
    wanted = _RELATIVES.get(facts.architecture, facts.architecture)
    rows = [*ARCHITECTURES.items(), *((name, variant) for (name, _), variant in VARIANTS.items())]
    rows = [(name, row) for name, row in rows if row.hugging_face == wanted]
    architecture = metadata.text("general.architecture")
    found = next((row for name, row in rows if name == architecture), None)
    if found is None:
        known = ", ".join(dict.fromkeys(name for name, _ in rows)) or "none; it takes adapters as PEFT writes them"
        raise ModelError(
            f"{path} general.architecture is {architecture!r:.80}, allowed for {facts.architecture}: {known}"
        )
    return found


def _pairs(path: Path, tensors: tuple[GgufTensor, ...]) -> dict[str, tuple[GgufTensor, GgufTensor]]:
    """Both matrices by the name of the tensor that they change. Raises: ModelError for any other tensor."""
    by_name = {tensor.name: tensor for tensor in tensors}
    found: dict[str, tuple[GgufTensor, GgufTensor]] = {}
    for name in by_name:
        side = next((side for side in _SIDES if name.endswith(side)), None)
        if side is None or not name.removesuffix(side).endswith(".weight"):
            kinds = " and ".join(f"TENSOR.weight{side}" for side in _SIDES)
            raise ModelError(f"{path}: tensor {name!r} is not served, allowed: {kinds}")
        changed = name.removesuffix(side)
        down, up = (by_name.get(changed + one) for one in _SIDES)
        if down is None or up is None:
            other = changed + _SIDES[1 - _SIDES.index(side)]
            raise ModelError(f"{path}: tensor {name!r} has no partner {other!r}")
        found[changed] = down, up
    return found


def _numbers(path: Path, files: MappedFiles, tensor: GgufTensor) -> Array:
    values = files.numbers(tensor)
    if not np.isfinite(values).all():
        raise ModelError(f"{path}: tensor {tensor.name!r} holds numbers that are not finite")
    return values


@dataclass(frozen=True, slots=True)
class _Names:
    """Maps the file's tensors to a checkpoint's modules, and their rows to its rows."""

    path: Path
    row: Architecture
    facts: ModelFacts

    def modules_of(self, name: str, change: LowRank) -> Iterator[tuple[str, LowRank]]:
        """The modules that a tensor is, and the change of each. Raises: ModelError, also for experts."""
        place, part = place_of(name)
        stem = part.removesuffix(".weight")
        if place is None:
            yield self._outer(name, stem), change
            return
        if place >= len(self.facts.layers):
            raise ModelError(
                f"{self.path} changes {name!r}, allowed: layers below the model's {len(self.facts.layers)}"
            )
        joined = {one for parts in self.row.joined.values() for one in parts}
        targets = self.row.cuts.get(stem) or tuple(filter(None, (self.row.layer.get(stem),)))
        if stem in joined or part in joined or any("{expert}" in target for target in targets):
            raise ModelError(
                f"{self.path} changes {name!r}, which is part of a larger matrix here, or spans several experts; allowed: "
                "matrices that the model stores separately"
            )
        if not targets:
            raise self._unknown(name)
        prefix = f"{self.row.layers}.{place}."
        if len(targets) == 1:
            yield prefix + targets[0], self._ordered(name, stem, place, change)
            return
        ends = np.cumsum([0, *self._sizes(name, place, len(change.up), len(targets))])
        stems = ("attn_q", "attn_k", "attn_v") if len(targets) > 2 else ("", "")
        for target, one, (begin, end) in zip(targets, stems, pairwise(ends), strict=True):
            rows = LowRank(change.down, np.ascontiguousarray(change.up[begin:end]))
            yield prefix + target, self._ordered(name, one, place, rows)

    def _outer(self, name: str, stem: str) -> str:
        if stem != "output":
            raise self._unknown(name)
        return self.row.outer[stem]

    def _unknown(self, name: str) -> ModelError:
        return ModelError(f"{self.path} changes {name!r}, allowed: matrices of layers, and output.weight")

    def _sizes(self, name: str, place: int, num_rows: int, num_parts: int) -> tuple[int, ...]:
        """Rows of each part of a tensor: halves; or queries, keys and values."""
        if num_parts == 2:
            return num_rows // 2, num_rows - num_rows // 2
        mixer = self._attention(name, place)
        sizes = mixer.query_width, mixer.key_width, mixer.value_width
        if sum(sizes) != num_rows:
            raise ModelError(
                f"{self.path} changes {num_rows} rows of {name!r}, allowed: {sum(sizes)}, as the model has"
            )
        return sizes

    def _ordered(self, name: str, stem: str, place: int, change: LowRank) -> LowRank:
        order = self.row.orders.get(stem)
        if order is None:
            return change
        if order == "turns_by_column":
            return LowRank(
                self._moved(name, change.down.T, lambda size: self._turns(name, place, size)).T.copy(), change.up
            )
        if order == "turns":
            return LowRank(change.down, self._moved(name, change.up, lambda size: self._turns(name, place, size)))
        mixer = self._attention(name, place)
        heads = mixer.num_heads, mixer.num_kv_heads
        return LowRank(change.down, self._moved(name, change.up, lambda size: row_order(order, size, *heads, stem)))

    def _moved(self, name: str, rows: Array, order: Callable[[int], Array]) -> Array:
        try:
            moved: Array = rows[order(len(rows))]
        except ValueError as error:
            raise ModelError(f"{self.path} changes {len(rows)} rows of {name!r}, which are not whole heads") from error
        return moved

    def _turns(self, name: str, place: int, size: int) -> Array:
        mixer = self.facts.layers[place].mixer
        if not isinstance(mixer, DeltaFacts):
            raise self._unknown(name)
        return turns_order(size, mixer.num_key_heads, mixer.num_heads, mixer.value_size)

    def _attention(self, name: str, place: int) -> AttentionFacts:
        mixer = self.facts.layers[place].mixer
        if not isinstance(mixer, AttentionFacts):
            raise self._unknown(name)
        return mixer


def number_counts(path: Path) -> Mapping[str, int]:
    """The count of numbers in each tensor of a file. Raises: ModelError."""
    return {tensor.name: int(np.prod(tensor.shape)) for tensor in read_header(path).tensors}
