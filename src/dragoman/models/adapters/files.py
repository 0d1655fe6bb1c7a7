"""Reads an adapter (LoRA) in either form, PEFT's directory or a GGUF file. Called when it is loaded, on any thread.

Matrices of a GGUF file lie as those of a GGUF model do: the architecture's row, inverted, says how. Sources: PEFT's
LoraConfig and its checkpoint format (docs: developer_guides/checkpoint); llama.cpp's convert_lora_to_gguf.py and
llama-adapter.cpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dragoman.gguf.architecture_row import Architecture
from dragoman.gguf.architectures import ARCHITECTURES, VARIANTS
from dragoman.gguf.header import GgufTensor, Metadata, read_header
from dragoman.models.config import Config, ModelError, read_json, shown
from dragoman.models.facts import AttentionFacts, DeltaFacts, ModelFacts
from dragoman.models.sources.base import Array
from dragoman.models.sources.gguf_rows import MappedFiles
from dragoman.models.sources.safetensors import file_tensors
from dragoman.models.stored.gguf_files import place_of, row_order, turns_order
from dragoman.models.stored.gguf_names import TensorNames, tensor_names


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's addition to one matrix: `up @ down`, the scale in `up`. Shapes: f32 [rank, in], f32 [out, rank]."""

    down: Array
    up: Array

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter by the names of the modules it changes, as a checkpoint has them. `path`: as messages name it."""

    path: Path
    files: tuple[Path, ...]
    modules: Mapping[str, LowRank]

    @property
    def rank(self) -> int:
        return max(change.rank for change in self.modules.values())

    @property
    def num_bytes(self) -> int:
        return sum(change.down.nbytes + change.up.nbytes for change in self.modules.values())


_SUFFIX = ".gguf"

T = TypeVar("T")


def read_adapter(path: Path, facts: ModelFacts) -> Adapter:
    """The adapter at that path, for a model with these facts. Raises: ModelError."""
    file = gguf_file(path)
    return read_peft_adapter(path) if file is None else read_gguf_adapter(file, facts)


def gguf_file(path: Path) -> Path | None:
    """The GGUF file at the path, or in a directory without PEFT's files. Raises: ModelError if there are several."""
    if path.is_file():
        if path.suffix.lower() != _SUFFIX:
            raise ModelError(
                f"{path} is not an adapter, allowed: a directory with {CONFIG} and {WEIGHTS}, or a GGUF file"
            )
        return path
    if (path / CONFIG).is_file() or not path.is_dir():
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == _SUFFIX and file.is_file())
    if len(files) > 1:
        named = ", ".join(file.name for file in files[:3]) + (", ..." if len(files) > 3 else "")
        raise ModelError(f"{path} holds {len(files)} GGUF files, allowed: one, or name the file: {named}")
    return files[0] if files else None


def most_numbers(path: Path) -> int:
    """The largest count of numbers that the adapter can have, without reading them. Raises: ModelError."""
    file = gguf_file(path)
    if file is not None:
        return sum(number_counts(file).values())
    weights = path / WEIGHTS
    return weights.stat().st_size // 2 if weights.is_file() else 0  # numbers have two bytes or more


def _pairs(
    path: Path, tensors: Mapping[str, T], sides: tuple[str, str], what: str, *, begin: str = "", end: str = ""
) -> dict[str, tuple[T, T]]:
    """Both matrices by the name of what they change, in order. Raises: ModelError for any other tensor.

    Names are `begin`, that name, `end` and one of `sides`. `what`: the kind of thing that is changed, for messages.
    """
    found: dict[str, tuple[T, T]] = {}
    for name in tensors:
        side = next((side for side in sides if name.endswith(side)), None)
        changed = name.removesuffix(side or "")
        if side is None or not changed.startswith(begin) or not changed.endswith(end):
            kinds = " and ".join(f"{begin}{what}{end}{side}" for side in sides)
            raise ModelError(f"{path}: tensor {name!r} is not served, allowed: {kinds}")
        other = changed + sides[1 - sides.index(side)]
        if other not in tensors:
            raise ModelError(f"{path}: tensor {name!r} has no partner {other!r}")
        found[changed.removeprefix(begin)] = tensors[changed + sides[0]], tensors[changed + sides[1]]
    return found


# --- PEFT's: a directory ----------------------------------------------------------------------------------------------

CONFIG, WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
_PEFT_SIDES = (".lora_A.weight", ".lora_B.weight")

# Keys about training, other libraries and the adapter's first values.
_PEFT_HARMLESS = """
    arrow_config auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config inference_mode
    init_lora_weights loftq_config lora_dropout lora_ga_config megatron_core monteclora_config peft_version
    qalora_group_size revision runtime_config
"""

# Keys that ask for something else than W + B A; harmless if empty.
_REFUSED_KEYS = """
    alora_invocation_tokens layer_replication lora_bias megatron_config modules_to_save target_parameters
    trainable_token_indices use_bdlora use_dora use_qalora velora_config
"""


def read_peft_adapter(directory: Path) -> Adapter:
    """Raises: ModelError naming the file, key or tensor that is wrong or not served."""
    settings = _Settings(directory)
    path = directory / WEIGHTS
    if not path.is_file():
        if (directory / _PICKLE).exists():
            raise ModelError(
                f"{directory / _PICKLE} is a pickle, which could run any code; allowed: {WEIGHTS} "
                "(PEFT writes it: load the adapter there and save it with save_pretrained)"
            )
        raise ModelError(f"{path} does not exist; an adapter needs {CONFIG} and {WEIGHTS}")
    tensors = _read_tensors(path)
    modules = {}
    for module, (down, up) in _pairs(path, tensors, _PEFT_SIDES, "MODULE", begin=_PREFIX).items():
        modules[module] = settings.low_rank(module, down, up)
    if not modules:
        raise ModelError(f"{path} has no tensors, allowed: a lora_A and a lora_B for each module that it changes")
    settings.check_targets(modules)
    return Adapter(directory, (directory / CONFIG, path), modules)


def _read_tensors(path: Path) -> dict[str, Array]:
    tensors = {}
    for name, tensor in file_tensors(path).items():
        if tensor.dtype == np.uint8:
            raise ModelError(f"{path}: tensor {name!r} has elements of type U8, allowed: floating-point numbers")
        with np.errstate(over="ignore"):  # checked below
            tensors[name] = tensor.astype(np.float32)
        if not np.isfinite(tensors[name]).all():
            raise ModelError(f"{path}: tensor {name!r} holds numbers that are not finite")
    return tensors


class _Settings:
    def __init__(self, directory: Path) -> None:
        path = directory / CONFIG
        if not directory.is_dir():
            raise ModelError(
                f"{directory} is not a directory; an adapter is one with {CONFIG} and {WEIGHTS}, or a GGUF file"
            )
        config = self._config = Config(read_json(path), str(path))
        self._path = path
        config.choice("peft_type", ("LORA",))
        if config.value("task_type", "CAUSAL_LM") not in ("CAUSAL_LM", ""):
            raise config.error("task_type", "CAUSAL_LM")
        config.expect(bias="none")
        for key in _REFUSED_KEYS.split():
            if config.value(key):
                raise config.error(key, "null or false: only W + B A is supported")
        config.flag("fan_in_fan_out")  # the base's storage of matrices: the model's family knows it
        config.skip(*_PEFT_HARMLESS.split())
        self._rank, self._alpha = config.count("r"), config.number("lora_alpha", 8)
        self._is_stabilised = config.flag("use_rslora")
        self._ranks, self._alphas = self._pattern("rank_pattern"), self._pattern("alpha_pattern")
        self._targets = config.value("target_modules")
        self._excluded = config.value("exclude_modules")
        self._layers, self._layers_name = config.value("layers_to_transform"), config.value("layers_pattern")
        for key in ("target_modules", "exclude_modules", "layers_pattern"):
            self._check_names(key)
        config.refuse_unread()

    def low_rank(self, module: str, down: Array, up: Array) -> LowRank:
        rank = int(self._matched(self._ranks, module, self._rank))
        for side, tensor, axis in ((_PEFT_SIDES[0], down, 0), (_PEFT_SIDES[1], up, 1)):
            if tensor.ndim != 2 or tensor.shape[axis] != rank:
                wanted = "[rank, in]" if axis == 0 else "[out, rank]"
                raise ModelError(
                    f"{self._path.parent / WEIGHTS}: tensor {_PREFIX + module + side!r} has shape {list(tensor.shape)}, "
                    f"allowed: {wanted} with rank {rank}, as {CONFIG} says"
                )
        alpha = float(self._matched(self._alphas, module, self._alpha))
        scale = alpha / (math.sqrt(rank) if self._is_stabilised else rank)
        return LowRank(np.ascontiguousarray(down), np.ascontiguousarray(up * np.float32(scale)))

    def check_targets(self, modules: Mapping[str, LowRank]) -> None:
        """Raises: ModelError if a module is none of the targets, or a target has no module."""
        for module in modules:
            if not self._is_target(module):
                raise ModelError(
                    f"{self._path.parent / WEIGHTS} changes module {module!r}, which is not among target_modules "
                    f"{shown(self._targets)} in {CONFIG}"
                )
        for target in self._targets if isinstance(self._targets, list) else ():
            if not any(_ends_with(module, target) for module in modules):
                raise ModelError(f"{self._path} target_modules has {target!r}, for which {WEIGHTS} has no tensors")

    def _is_target(self, module: str) -> bool:
        if self._targets is None or self._targets == "all-linear":
            is_named = True
        elif isinstance(self._targets, str):
            is_named = re.fullmatch(self._targets, module) is not None
        else:
            is_named = any(_ends_with(module, target) for target in self._targets)
        if isinstance(self._excluded, str):
            is_named = is_named and re.fullmatch(self._excluded, module) is None
        elif self._excluded:
            is_named = is_named and not any(_ends_with(module, target) for target in self._excluded)
        return is_named and self._is_in_layers(module)

    def _is_in_layers(self, module: str) -> bool:
        if self._layers is None:
            return True
        wanted = self._layers if isinstance(self._layers, list) else [self._layers]
        numbers = [int(part) for part in module.split(".") if part.isdigit()]
        return bool(numbers) and numbers[0] in wanted

    def _pattern(self, key: str) -> Mapping[str, float]:
        written: Any = self._config.value(key, {})
        is_pattern = isinstance(written, dict) and all(
            isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**31
            for value in written.values()
        )
        if not is_pattern:
            raise self._config.error(key, "an object of numbers above 0")
        for pattern in written:
            self._check_pattern(key, pattern)
        return dict(written)

    def _matched(self, pattern: Mapping[str, float], module: str, default: float) -> float:
        """The first pattern that is the end of the module's name, as in PEFT."""
        for key, value in pattern.items():
            if re.fullmatch(rf"(.*\.)?({key})", module):
                return value
        return default

    def _check_names(self, key: str) -> None:
        written = self._config.value(key)
        if isinstance(written, str):
            self._check_pattern(key, written)
        elif written is not None and not (isinstance(written, list) and all(isinstance(name, str) for name in written)):
            raise self._config.error(key, "a text or a list of texts")

    def _check_pattern(self, key: str, pattern: str) -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise self._config.error(key, f"regular expressions ({error})") from error


def _ends_with(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


# --- llama.cpp's: a GGUF file -----------------------------------------------------------------------------------------

_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
_GGUF_HARMLESS = r"general\..*|GGUF\..*|adapter\.(type|lora\.(alpha|task_name|prompt_prefix))"
_GGUF_SIDES = (".lora_a", ".lora_b")

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
    row = _find_architecture(path, header.metadata, facts)
    names = _Names(path, row, tensor_names(row), facts)
    alpha = float(header.metadata.number(_ALPHA) or 0)
    if alpha < 0:
        raise header.metadata.error(_ALPHA, "a number of at least 0")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    files = MappedFiles()
    modules: dict[str, LowRank] = {}
    try:
        for name, (down, up) in _pairs(path, tensors, _GGUF_SIDES, "TENSOR", end=".weight").items():
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
    unknown = sorted(key for key in metadata if not re.fullmatch(_GGUF_HARMLESS, key))
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
    names: TensorNames
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
        joined = {part for parts in self.row.joined.values() for part in parts}
        named = self.names.layer.get(stem)
        targets = (named,) if named else self.names.cuts.get(stem, ())
        if stem in joined or part in joined or any("{expert}" in target for target in targets):
            raise ModelError(
                f"{self.path} changes {name!r}, which is part of a larger matrix here, or spans several experts; allowed: "
                "matrices that the model stores separately"
            )
        if not targets:
            raise self._unknown(name)
        prefix = f"{self.names.layers}.{place}."
        if len(targets) == 1:
            yield prefix + targets[0], self._ordered(name, stem, place, change)
            return
        ends = np.cumsum([0, *self._sizes(name, place, len(change.up), len(targets))])
        stems = ("attn_q", "attn_k", "attn_v") if len(targets) > 2 else ("", "")
        for target, source, (begin, end) in zip(targets, stems, pairwise(ends), strict=True):
            rows = LowRank(change.down, np.ascontiguousarray(change.up[begin:end]))
            yield prefix + target, self._ordered(name, source, place, rows)

    def _outer(self, name: str, stem: str) -> str:
        if stem != "output":
            raise self._unknown(name)
        return self.names.outer[stem]

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
