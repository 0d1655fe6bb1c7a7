"""Runs a compiled graph on one sequence, step by step, for tests that look at models without an engine around them.

Does: feed every input that `StepInputs` describes, with the same blocks for all kinds of caches. Does not: batch sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov

from dragoman.models.loader import LoadedModel, cache_ports

Array = np.ndarray[Any, Any]


class GraphSteps:
    """One sequence of at most `max_tokens` tokens; `is_long`: in the regime that long sequences have."""

    def __init__(self, loaded: LoadedModel, max_tokens: int, *, is_long: bool = False) -> None:
        self._block_size = loaded.profile.block_size
        num_blocks = -(-max_tokens // self._block_size)
        self._request = loaded.compiled.create_infer_request()
        self._names = {name for port in loaded.compiled.inputs for name in port.get_names()}
        self._is_long = is_long
        self._num_past = 0
        for port in cache_ports(loaded.compiled):
            shape = [num_blocks, *(dimension.get_length() for dimension in list(port.get_partial_shape())[1:])]
            self._request.set_tensor(port, ov.Tensor(port.get_element_type(), ov.Shape(shape)))

    def step(self, token_ids: Sequence[int]) -> Array:
        """Append these tokens; logits f32 [tokens, vocab] of each."""
        begin, end = self._num_past, self._num_past + len(token_ids)
        num_blocks = -(-end // self._block_size)
        inputs = {
            "input_ids": np.array(token_ids, dtype=np.int64),
            "position_ids": np.arange(begin, end, dtype=np.int64),
            "subsequence_begins": np.array([0, end - begin], dtype=np.int32),
            "past_lens": np.array([begin], dtype=np.int32),
            "block_indices": np.arange(num_blocks, dtype=np.int32),
            "block_indices_begins": np.array([0, num_blocks], dtype=np.int32),
            "max_context_len": np.array(end, dtype=np.int32),
            "sampled_tokens_indices": np.arange(end - begin, dtype=np.int64),
            "rotary_regime": np.full(end - begin, int(self._is_long), dtype=np.int64),
        }
        for name in self._names:
            kind = name.split(".")[0]  # "past_lens.1" is that of another kind of cache
            if kind in inputs:
                self._request.set_tensor(name, ov.Tensor(inputs[kind]))
        self._request.infer()
        self._num_past = end
        logits: Array = self._request.get_output_tensor(0).data.copy()
        return logits
