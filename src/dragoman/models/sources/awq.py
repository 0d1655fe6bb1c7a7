"""AWQ: 4-bit integers in words of eight neighbouring rows, with a zero point and a scale for each group of columns.

Only the layout that AutoAWQ calls gemm. Sources: AutoAWQ's documentation and checkpoints; AWQ, arXiv:2306.00978.
"""

from __future__ import annotations

import numpy as np

from dragoman.models.config import Config
from dragoman.models.sources.base import PackedMatrix
from dragoman.models.sources.integers import along_rows, unpacked_words, words_of
from dragoman.models.sources.layout import (
    FLOATS,
    Headers,
    Quantised,
    Tensors,
    check_shape,
    columns_in_group,
    group_size,
    header,
    refuse_other_keys,
)

_BITS = 4
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each of eight rows in a word
_MIDDLE = 8  # the zero of values without zero points
_WORDS, _SCALES, _ZEROS = ".qweight", ".scales", ".qzeros"


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
