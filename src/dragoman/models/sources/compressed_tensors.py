"""compressed-tensors: matrices as llm-compressor writes them, packed integers, bytes, or 8-bit floats, by config groups.

Neither 4-bit floats, sparsity, nor transforms of activations.
Source: compressed-tensors' documentation (github.com/vllm-project/compressed-tensors) and checkpoints.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman.models.config import Config, ModelError, shown
from dragoman.models.sources.base import Array, PackedMatrix
from dragoman.models.sources.fp8 import FP8_TYPES, quantised_fp8
from dragoman.models.sources.integers import WORD_BITS, along_columns, flipped, unpacked_words, words_of
from dragoman.models.sources.layout import (
    FLOATS,
    Headers,
    Quantised,
    Tensors,
    block_size,
    check_shape,
    column_order,
    columns_in_group,
    group_parts,
    header,
)

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_ALL_FORMATS = (*_FORMATS, "mixed-precision", "dense")
_STRATEGIES = ("tensor", "channel", "group", "block")
_WORDS, _SCALES, _ZEROS, _GROUPS, _SHAPE = "_packed", "_scale", "_zero_point", "_g_idx", "_shape"
_WEIGHT = ".weight"
_REGEX = "re:"


class Scheme:
    def __init__(self, config: Config) -> None:
        self.is_float = config.choice("type", ("int", "float"), "int") == "float"
        self.bits = config.count("num_bits", 8)
        if self.bits not in ((8,) if self.is_float else (4, 8)):
            raise config.error("num_bits", "8" if self.is_float else "4 or 8")
        self.is_symmetric = config.flag("symmetric", True)
        size = config.value("group_size")
        assumed = "tensor" if size is None else "channel" if size == -1 else "group"
        self.strategy = config.choice("strategy", _STRATEGIES, assumed)
        self.group_size = config.count("group_size") if self.strategy == "group" else -1
        self.block = block_size(config, "block_structure") if self.strategy == "block" else None
        config.expect(dynamic=False)
        # tensors tell it; or about the search for scales
        config.skip(
            "group_size", "actorder", "block_structure", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"
        )
        config.refuse_unread()


class CompressedTensors:
    # Scales for activations, keys and values, which only other libraries round.
    unread = (r"\.(input|output|[qkv]|prob)_(scale|zero_point)$", r"\.weight_shape$")

    def __init__(self, config: Config) -> None:
        config.choice("format", _ALL_FORMATS, "dense")
        config.choice("quantization_status", ("compressed", "frozen"), "compressed")
        sparsity, transform = config.part("sparsity_config"), config.part("transform_config")
        if sparsity is not None and sparsity.value("format", "dense") != "dense":
            raise config.error("sparsity_config", 'one of format "dense"')
        if transform is not None and transform.value("config_groups"):
            raise config.error("transform_config", "one without config_groups")
        # keys and values have a precision of our own; tensors tell which matrices are packed
        config.skip("kv_cache_scheme", "global_compression_ratio", "ignore", "version", "run_compressed", "dequantize")
        groups = config.part("config_groups")
        self._schemes = [] if groups is None else [_read_group(groups, key) for key in config.value("config_groups")]
        if not self._schemes:
            raise config.error("config_groups", "at least one group with weights")
        kinds = {f"{'fp' if scheme.is_float else 'int'}{scheme.bits}" for _, scheme in self._schemes}
        self.label = "compressed-tensors " + " and ".join(sorted(kinds))
        config.refuse_unread()

    def find(self, headers: Headers) -> dict[str, Quantised]:
        found = {}
        for name, tensor in headers.items():
            if name.endswith(_WEIGHT + _WORDS):
                matrix = name.removesuffix(_WORDS)
                found[matrix] = _packed(headers, matrix, self._scheme(matrix))
            elif name.endswith(_WEIGHT) and tensor.type_name == "I8":
                found[name] = _bytes(headers, name, self._scheme(name))
            elif name.endswith(_WEIGHT) and tensor.type_name in FP8_TYPES:
                scheme = self._scheme(name)
                block = (1, scheme.group_size) if scheme.strategy == "group" else scheme.block
                found[name] = quantised_fp8(headers, name, block)
        return found

    def _scheme(self, name: str) -> Scheme:
        module = name.removesuffix(_WEIGHT)
        for rank in (operator.eq, _is_described, lambda _module, target: not target.startswith(_REGEX)):
            for targets, scheme in self._schemes:
                if any(rank(module, target) for target in targets):
                    return scheme
        raise ModelError(f"quantization_config config_groups has no group for the packed matrix {name!r}")


def _is_described(module: str, target: str) -> bool:
    if not target.startswith(_REGEX):
        return False
    try:
        return re.match(target.removeprefix(_REGEX), module) is not None
    except re.error as error:
        raise ModelError(
            f"quantization_config config_groups target {shown(target)} is not a pattern: {error}"
        ) from error


def _read_group(groups: Config, key: str) -> tuple[Sequence[str], Scheme]:
    group = groups.part(key)
    weights = None if group is None else group.part("weights")
    targets: Any = None if group is None else group.value("targets", ["Linear"])
    if group is None or weights is None:
        raise groups.error(key, "an object with weights")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise group.error("targets", "a list of names")
    if "format" in group:
        group.choice("format", _ALL_FORMATS)
    group.skip("input_activations", "output_activations")  # kernels here round activations in their own way
    group.refuse_unread()
    return targets, Scheme(weights)


def _packed(headers: Headers, name: str, scheme: Scheme) -> Quantised:
    bits, in_word = scheme.bits, WORD_BITS // scheme.bits
    num_rows, num_words = header(headers, name + _WORDS, "I32").shape
    num_groups = header(headers, name + _SCALES, *FLOATS).shape[1]
    check_shape(headers, name + _SCALES, (num_rows, num_groups))
    num_columns = scheme.group_size * num_groups if scheme.strategy == "group" else num_words * in_word
    if -(-num_columns // in_word) != num_words:
        raise ModelError(
            f"tensor {name + _WORDS!r} has {num_words} words of {bits} bits in a row, "
            f"but scales of {num_groups} groups of {scheme.group_size}"
        )
    parts = [name + _WORDS, name + _SCALES, *group_parts(headers, name + _GROUPS, num_columns)]
    if name + _SHAPE in headers:
        header(headers, name + _SHAPE, "I64", "I32", rank=1)
        check_shape(headers, name + _SHAPE, (2,))
        parts.append(name + _SHAPE)
    if not scheme.is_symmetric:
        header(headers, name + _ZEROS, "I32")
        check_shape(headers, name + _ZEROS, (-(-num_rows // in_word), num_groups))
    if name + _ZEROS in headers:
        parts.append(name + _ZEROS)
    size = columns_in_group(name, num_columns, num_groups, scheme.group_size)

    def read(tensors: Tensors) -> PackedMatrix:
        if name + _SHAPE in headers and (shape := tensors.stored(name + _SHAPE).tolist()) != [num_rows, num_columns]:
            raise ModelError(f"tensor {name + _SHAPE!r} holds {shape}, the others imply {[num_rows, num_columns]}")
        order = zeros = None
        if name + _GROUPS in headers and (groups := tensors.stored(name + _GROUPS)).min() >= 0:  # -1: it has none
            order = column_order(name + _GROUPS, groups, num_groups)
        if scheme.is_symmetric:
            _check_zeros(headers, name, tensors)
        else:
            words = words_of(tensors.stored(name + _ZEROS))
            zeros = np.ascontiguousarray(unpacked_words(words.T, bits)[:, :num_rows].T)
        words = words_of(tensors.stored(name + _WORDS))
        values = along_columns(words, bits, num_columns, is_signed=scheme.is_symmetric, order=order)
        return PackedMatrix(values, tensors.stored(name + _SCALES), zeros, bits, order)

    return Quantised((num_rows, num_columns), tuple(parts), read, size, bits, not scheme.is_symmetric)


def _bytes(headers: Headers, name: str, scheme: Scheme) -> Quantised:
    num_rows, num_columns = header(headers, name, "I8").shape
    scales, zeros = name + _SCALES, name + _ZEROS
    if scales not in headers:
        raise ModelError(f"tensor {name!r} has elements of type I8, but no {scales!r}")
    found = headers[scales]
    num_groups = found.shape[1] if len(found.shape) == 2 else 1
    one_for_all = (num_rows > 1 or num_columns > 0) and found.shape in ((), (1,), (1, 1))
    if found.type_name not in FLOATS or not (one_for_all or found.shape in ((num_rows,), (num_rows, num_groups))):
        raise ModelError(
            f"tensor {scales!r} is {found.type_name} of shape {list(found.shape)}, allowed: "
            f"floating-point numbers, one for all, for each of {num_rows} rows, or for each group of their columns"
        )
    size = columns_in_group(name, num_columns, max(num_groups, 1), scheme.group_size)
    parts = [scales, name]
    if not scheme.is_symmetric:
        if headers.get(zeros) is None or headers[zeros].type_name != "I8":
            raise ModelError(f"the checkpoint has no tensor {zeros!r} of type I8, which the quantised matrix needs")
        check_shape(headers, zeros, found.shape)
    if zeros in headers:
        parts.append(zeros)

    def of_rows(values: Array) -> Array:
        return np.broadcast_to(values.reshape(-1, num_groups), (num_rows, num_groups))

    def read(tensors: Tensors) -> PackedMatrix:
        factors, values = of_rows(tensors.stored(scales)), tensors.stored(name)
        if scheme.is_symmetric:
            _check_zeros(headers, name, tensors)
            return PackedMatrix(values, factors)
        points = np.asarray(flipped(np.ascontiguousarray(of_rows(tensors.stored(zeros)))))
        return PackedMatrix(flipped(values), factors, points)

    return Quantised((num_rows, num_columns), tuple(parts), read, size, 8, not scheme.is_symmetric)


def _check_zeros(headers: Headers, name: str, tensors: Tensors) -> None:
    """Raises: ModelError if zero points of a symmetric matrix, which early versions wrote, are not zero."""
    if name + _ZEROS in headers and tensors.stored(name + _ZEROS).any():
        raise ModelError(f"tensor {name + _ZEROS!r} holds zero points, but quantization_config says symmetric")
