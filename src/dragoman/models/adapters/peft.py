"""Reads an adapter as the PEFT library writes it: adapter_config.json and adapter_model.safetensors in a directory.

Called on any thread. Source: PEFT's LoraConfig and its checkpoint format (docs: developer_guides/checkpoint).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.models.adapters.low_rank import Adapter, LowRank
from dragoman.models.config import Config, ModelError, read_json, shown
from dragoman.models.sources.base import Array
from dragoman.models.sources.safetensors import file_tensors

CONFIG, WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
_SIDES = (".lora_A.weight", ".lora_B.weight")

# Keys about training, other libraries and the adapter's first values.
_HARMLESS_KEYS = """
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
    for module in _modules_of(tensors, path):
        modules[module] = settings.low_rank(module, *(tensors[f"{_PREFIX}{module}{side}"] for side in _SIDES))
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


def _modules_of(tensors: Mapping[str, Array], path: Path) -> list[str]:
    """The modules that have both matrices, in order. Raises: ModelError for any other tensor."""
    modules: dict[str, None] = {}
    for name in tensors:
        side = next((side for side in _SIDES if name.endswith(side)), None)
        if side is None or not name.startswith(_PREFIX):
            kinds = " and ".join(f"{_PREFIX}MODULE{side}" for side in _SIDES)
            raise ModelError(f"{path}: tensor {name!r} is not served, allowed: {kinds}")
        other = name.removesuffix(side) + _SIDES[1 - _SIDES.index(side)]
        if other not in tensors:
            raise ModelError(f"{path}: tensor {name!r} has no partner {other!r}")
        modules[name.removeprefix(_PREFIX).removesuffix(side)] = None
    return list(modules)


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
        config.skip(*_HARMLESS_KEYS.split())
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
        for side, tensor, axis in ((_SIDES[0], down, 0), (_SIDES[1], up, 1)):
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
        given: Any = self._config.value(key, {})
        is_pattern = isinstance(given, dict) and all(
            isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**31
            for value in given.values()
        )
        if not is_pattern:
            raise self._config.error(key, "an object of numbers above 0")
        for pattern in given:
            self._check_pattern(key, pattern)
        return dict(given)

    def _matched(self, pattern: Mapping[str, float], module: str, default: float) -> float:
        """The first pattern that is the end of the module's name, as in PEFT."""
        for key, value in pattern.items():
            if re.fullmatch(rf"(.*\.)?({key})", module):
                return value
        return default

    def _check_names(self, key: str) -> None:
        given = self._config.value(key)
        if isinstance(given, str):
            self._check_pattern(key, given)
        elif given is not None and not (isinstance(given, list) and all(isinstance(name, str) for name in given)):
            raise self._config.error(key, "a text or a list of texts")

    def _check_pattern(self, key: str, pattern: str) -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise self._config.error(key, f"regular expressions ({error})") from error


def _ends_with(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")
