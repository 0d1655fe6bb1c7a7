"""GPTQ and AWQ: integers in words, with zero points and scales for groups of columns.

GPTQ: 4 or 8 bits, words of neighbouring columns, groups of columns anywhere. Zero points are stored minus one (gptq), or
as they are (gptq_v2). AWQ: 4 bits, words of eight neighbouring rows, the layout that AutoAWQ calls gemm. Sources:
AutoGPTQ's, GPTQModel's and AutoAWQ's documentation and checkpoints; GPTQ, arXiv:2210.17323; AWQ, arXiv:2306.00978.
"""

from __future__ import annotations

import numpy as np

from dragoman.models.config import Config, ModelError
from dragoman.models.sources.base import Array, PackedMatrix
from dragoman.models.sources.integers import WORD_BITS, along_columns, along_rows, unpacked_words, words_of
from dragoman.models.sources.layout import (
    FLOATS,
    Headers,
    Quantised,
    Tensors,
    check_shape,
    column_order,
    columns_in_group,
    group_parts,
    group_size,
    header,
    refuse_other_keys,
)

_ALL_BITS = (4, 8)
_FORMATS = ("gptq", "gptq_v2")
_WORDS, _SCALES, _ZEROS, _GROUPS = ".qweight", ".scales", ".qzeros", ".g_idx"


class Gptq:
    unread: tuple[str, ...] = ()

    def __init__(self, config: Config) -> None:
        bits = config.count("bits")
        if bits not in _ALL_BITS:
            raise config.error("bits", "4 or 8")
        formats = {config.choice(key, _FORMATS, "gptq") for key in ("checkpoint_format", "format") if key in config}
        self._added = 0 if "gptq_v2" in formats else 1
        config.expect(pack_dtype="int32", is_marlin_format=False)
        self._group_size = group_size(config)
        if config.value("dynamic") or config.value("extra_config"):  # some matrices have other groups
            self._group_size = None
        config.skip("sym")  # zero points are stored in any case
        self.label = f"GPTQ int{bits}"
        refuse_other_keys(config)

    def find(self, headers: Headers) -> dict[str, Quantised]:
        stems = [name.removesuffix(_WORDS) for name in headers if name.endswith(_WORDS)]
        return {f"{stem}.weight": self._matrix(headers, stem) for stem in stems}

    def _matrix(self, headers: Headers, stem: str) -> Quantised:
        num_words, num_rows = header(headers, stem + _WORDS, "I32").shape
        num_groups, _ = header(headers, stem + _SCALES, *FLOATS).shape
        check_shape(headers, stem + _SCALES, (num_groups, num_rows))
        _, zero_words = header(headers, stem + _ZEROS, "I32").shape
        bits = zero_words * WORD_BITS // num_rows
        if bits not in _ALL_BITS:
            raise ModelError(f"tensor {stem + _ZEROS!r} has zero points of {bits} bits, allowed: 4 or 8")
        check_shape(headers, stem + _ZEROS, (num_groups, num_rows * bits // WORD_BITS))
        num_columns = num_words * WORD_BITS // bits
        groups_parts = group_parts(headers, stem + _GROUPS, num_columns)
        parts = (stem + _WORDS, stem + _SCALES, stem + _ZEROS, *groups_parts)
        size = columns_in_group(stem, num_columns, num_groups, self._group_size)

        def read(tensors: Tensors) -> PackedMatrix:
            groups = tensors.stored(stem + _GROUPS) if groups_parts else None
            order = None if groups is None else column_order(stem + _GROUPS, groups, num_groups)
            zeros = self._zero_points(tensors.stored(stem + _ZEROS), bits)
            words = words_of(tensors.stored(stem + _WORDS)).T
            values = along_columns(words, bits, num_columns, is_signed=zeros is None, order=order)
            return PackedMatrix(values, tensors.stored(stem + _SCALES).T, zeros, bits, order)

        return Quantised((num_rows, num_columns), parts, read, size, bits, has_zero_points=True)

    def _zero_points(self, words: Array, bits: int) -> Array | None:
        """As u8 [out, groups]; None if all are in the middle. One more than stored may need a bit more."""
        zeros = unpacked_words(words_of(words), bits).T.astype(np.uint16) + self._added
        if (zeros == 1 << (bits - 1)).all():
            return None
        if zeros.max() > np.iinfo(np.uint8).max:
            raise ModelError(f"a zero point of {bits} bits is {zeros.max()}, allowed: 0 to 255")
        return np.ascontiguousarray(zeros.astype(np.uint8))


_BITS = 4
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each of eight rows in a word
_MIDDLE = 8  # the zero of values without zero points


class Awq:
    label = "AWQ int4"
    unread: tuple[str, ...] = ()

    def __init__(self, config: Config) -> None:
        config.rename({"w_bit": "bits", "q_group_size": "group_size"})
        config.expect(bits=_BITS)
        for key in ("version", "format"):
            if str(config.value(key, "gemm")).lower() != "gemm":
                raise config.error(key, '"gemm"')
        if config.value("backend") == "llm-awq":
            raise config.error("backend", '"autoawq"')
        self._group_size = group_size(config)
        self._needs_zeros = config.flag("zero_point", True)
        config.skip("sym")  # follows from zero_point
        refuse_other_keys(config)

    def find(self, headers: Headers) -> dict[str, Quantised]:
        stems = [name.removesuffix(_WORDS) for name in headers if name.endswith(_WORDS)]
        return {f"{stem}.weight": self._matrix(headers, stem) for stem in stems}

    def _matrix(self, headers: Headers, stem: str) -> Quantised:
        num_columns, num_words = header(headers, stem + _WORDS, "I32").shape
        num_groups, num_rows = header(headers, stem + _SCALES, *FLOATS).shape
        check_shape(headers, stem + _SCALES, (num_groups, num_words * len(_PLACES)))
        size = columns_in_group(stem, num_columns, num_groups, self._group_size)
        parts = [stem + _WORDS, stem + _SCALES]
        has_zeros = self._needs_zeros or stem + _ZEROS in headers
        if has_zeros:
            header(headers, stem + _ZEROS, "I32")
            check_shape(headers, stem + _ZEROS, (num_groups, num_words))
            parts.append(stem + _ZEROS)

        def read(tensors: Tensors) -> PackedMatrix:
            zeros = None
            if has_zeros:
                zeros = unpacked_words(words_of(tensors.stored(stem + _ZEROS)), _BITS, _PLACES).T
                zeros = None if (zeros == _MIDDLE).all() else np.ascontiguousarray(zeros)
            values = along_rows(words_of(tensors.stored(stem + _WORDS)), _PLACES, is_signed=zeros is None)
            return PackedMatrix(values, tensors.stored(stem + _SCALES).T, zeros, _BITS)

        return Quantised((num_rows, num_columns), tuple(parts), read, size, _BITS, has_zeros)
