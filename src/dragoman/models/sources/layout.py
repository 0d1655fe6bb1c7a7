"""The common part of layouts of quantised checkpoints, whose matrices lie in several tensors of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from dragoman.models.config import Config, ModelError
from dragoman.models.sources.base import Array, StoredTensor

FLOATS = ("F64", "F32", "F16", "BF16")

_SCALE_BYTES = 2  # as a graph holds a scale

# Keys about the making of a checkpoint, or about other libraries.
_OF_MAKING = """
    act_group_aware activation_scheme amp autoround_version backend batch_size block_name_to_quantize cache_block_outputs
    calibration damp_auto_increment damp_percent data_type dataset dequantize desc_act disable_exllama do_fuse
    enable_full_range enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config fuse_max_seq_len
    gradient_accumulate_steps hyb_act iters low_cpu_mem_usage low_gpu_mem_usage lr max_input_length meta minmax_lr
    model_file_base_name model_name_or_path model_seqlen module_name_preceding_first_block modules_in_block_to_quantize
    modules_to_fuse mse not_use_best_mse nsamples pad_token_id provider quantizer rotation sampler scale_dtype seqlen
    static_groups super_bits super_group_size tokenizer train_bs true_sequential use_cuda_fp16 use_exllama
"""
# Keys that tensors repeat: which matrices are packed, and how.
_OF_WHICH = """
    dynamic extra_config ignored_layers lm_head modules_to_convert modules_to_not_convert quant_lm_head to_quant_block_names
"""


@dataclass(frozen=True, slots=True)
class Header:
    type_name: str
    shape: tuple[int, ...]


Headers = Mapping[str, Header]
"""The tensors of a checkpoint by their names."""


class Tensors(Protocol):
    def stored(self, name: str) -> Array:
        """The tensor in its own type and shape, a view of its file."""
        ...


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix, or a stack, of several tensors, `parts`. `group_size`: columns that share a scale, 0 = a graph has numbers.

    `bits`: of each value and each zero point in the graph.
    """

    shape: tuple[int, ...]
    parts: tuple[str, ...]
    read: Callable[[Tensors], StoredTensor]
    group_size: int = 0
    bits: int = 8
    has_zero_points: bool = False

    @property
    def packed_bytes(self) -> int:
        of_group = _SCALE_BYTES + (self.bits / 8 if self.has_zero_points else 0)
        return int(prod(self.shape) * (self.bits / 8 + of_group / self.group_size))


def refuse_other_keys(config: Config) -> None:
    """Raises: ModelError naming unread keys that change what a matrix holds."""
    config.skip(*_OF_MAKING.split(), *_OF_WHICH.split())
    config.refuse_unread()


def group_size(config: Config) -> int | None:
    """The columns that share a scale; -1 = all of a row, None = config.json does not say. Raises: ModelError."""
    if config.value("group_size") == -1:
        return -1
    return config.count("group_size") if "group_size" in config else None


def block_size(config: Config, key: str) -> tuple[int, int]:
    rows, columns = config.numbers(key, 2, least=1)
    if not rows.is_integer() or not columns.is_integer():
        raise config.error(key, "whole numbers")
    return int(rows), int(columns)


def header(headers: Headers, name: str, *types: str, rank: int = 2) -> Header:
    """The tensor's header. Raises: ModelError if it is missing, or has another type or number of dimensions."""
    if name not in headers:
        raise ModelError(f"the checkpoint has no tensor {name!r}, which the quantised matrix needs")
    found = headers[name]
    if found.type_name not in types:
        raise ModelError(f"tensor {name!r} has elements of type {found.type_name}, allowed: {', '.join(types)}")
    if len(found.shape) != rank or not all(found.shape):
        raise ModelError(f"tensor {name!r} has shape {list(found.shape)}, allowed: {rank} dimensions of at least 1")
    return found


def check_shape(headers: Headers, name: str, shape: tuple[int, ...]) -> None:
    if headers[name].shape != shape:
        raise ModelError(
            f"tensor {name!r} has shape {list(headers[name].shape)}, the others of its matrix imply {list(shape)}"
        )


def columns_in_group(name: str, num_columns: int, num_groups: int, wanted: int | None) -> int:
    """The columns of a group. Raises: ModelError if groups are not alike, or not of the size that config.json says."""
    size, rest = divmod(num_columns, num_groups)
    if rest:
        raise ModelError(f"matrix {name!r} has {num_columns} columns, allowed: a multiple of its {num_groups} groups")
    expected = num_columns if wanted == -1 else wanted
    if expected is not None and size != expected:
        raise ModelError(
            f"matrix {name!r} has {num_groups} groups of its {num_columns} columns, "
            f"but quantization_config group_size is {wanted}"
        )
    return size


def group_parts(headers: Headers, name: str, num_columns: int) -> tuple[str, ...]:
    """The tensor that says each column's group, if there is one. Raises: ModelError."""
    if name not in headers:
        return ()
    header(headers, name, "I32", "I64", rank=1)
    check_shape(headers, name, (num_columns,))
    return (name,)


def column_order(name: str, groups: Array, num_groups: int) -> Array | None:
    """The columns in the order of their groups, None if they are. `groups`: i32 [in]. Raises: ModelError if sizes differ."""
    size = len(groups) // num_groups
    order = np.argsort(groups, kind="stable")
    if not np.array_equal(groups[order], np.repeat(np.arange(num_groups), size)):
        raise ModelError(
            f"tensor {name!r} makes groups of columns that differ in size, allowed: {num_groups} of {size}"
        )
    return None if np.array_equal(order, np.arange(len(order))) else order
