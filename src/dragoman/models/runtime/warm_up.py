"""Runs a compiled graph once, so that the first request does not wait for kernels to be chosen and weights packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

from dragoman.models.adapters.inputs import ADAPTER_INPUTS, MASK
from dragoman.models.blocks.step import PICTURE_EMBEDDINGS, PICTURE_ROWS, ROTARY_POSITIONS, TOKEN_TYPES
from dragoman.models.profile import BLOCK_SIZE

CACHES = ("key_cache.", "value_cache.", "state_cache.", "rows_cache.")
"""The begins of names of inputs that are caches, before the number of their layer."""

NUM_TOKENS = 8  # more than 4: kernels for fewer rows pack the weights in another way


def warm_up(compiled: Any, num_tokens: int = NUM_TOKENS) -> None:
    """Compute a step of `num_tokens` in a cache of its own.

    Without tokens the plugin only makes what nodes need: enough where weights are packed, since a step reads all of
    them.
    """
    request = compiled.create_infer_request()
    values = {
        "input_ids": np.zeros(num_tokens, dtype=np.int64),
        "position_ids": np.arange(num_tokens, dtype=np.int64),
        "past_lens": np.zeros(1, dtype=np.int32),
        "subsequence_begins": np.array([0, num_tokens], dtype=np.int32),
        "block_indices": np.zeros(1, dtype=np.int32),
        "block_indices_begins": np.array([0, 1], dtype=np.int32),
        "max_context_len": np.array(num_tokens, dtype=np.int32),
        PICTURE_ROWS: np.zeros(0, dtype=np.int64),
        TOKEN_TYPES: np.zeros(num_tokens, dtype=np.int32),
        ROTARY_POSITIONS: np.zeros((3, num_tokens), dtype=np.int64),
        "rotary_regime": np.zeros(num_tokens, dtype=np.int64),
        "state_blocks": np.zeros(2, dtype=np.int32),  # for exported graphs with states: read one, write one
        "state_blocks_begins": np.array([0, 2], dtype=np.int32),
        "state_interval": np.array([BLOCK_SIZE], dtype=np.int32),
        "sampled_tokens_indices": np.array([num_tokens - 1] if num_tokens else [], dtype=np.int64),
    }
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(CACHES):
            request.set_tensor(port, _one_block(port))
        elif name == MASK:
            request.set_tensor(port, ov.Tensor(np.zeros((num_tokens, 0), dtype=np.float32)))
        elif name == PICTURE_EMBEDDINGS or name.startswith(ADAPTER_INPUTS):
            request.set_tensor(port, _rows(port, 0))
        else:
            request.set_tensor(port, ov.Tensor(values[name.partition(".")[0]]))  # "past_lens.1" as "past_lens"
    request.infer()


def _one_block(port: Any) -> Any:
    dimensions = list(port.get_partial_shape())[1:]
    tensor = ov.Tensor(port.get_element_type(), ov.Shape([1, *(dimension.get_length() for dimension in dimensions)]))
    if port.get_any_name().startswith("state_cache."):  # is read before it is written
        tensor.data[...] = 0
    return tensor


def _rows(port: Any, count: int) -> Any:
    tensor = ov.Tensor(port.get_element_type(), ov.Shape([count, port.get_partial_shape()[1].get_length()]))
    tensor.data[...] = 0
    return tensor
