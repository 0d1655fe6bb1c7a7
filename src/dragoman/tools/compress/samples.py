"""Runs a model over a text and samples the inputs of its matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models import LoadedModel
from dragoman.models.blocks.nodes import integers
from dragoman.tools.compress.structure import InputGroup
from dragoman.tools.evaluate.reader import WindowReader, piece_tokens
from dragoman.tools.evaluate.text import Window

Array = np.ndarray[Any, Any]
Progress = Callable[[str, float], None]

_NAME = "matrix_input."
NUM_SAMPLES = 4096  # sampled tokens


def add_outputs(graph: Any, groups: Sequence[InputGroup], step: int) -> None:
    """Add outputs to the graph: each group's input at every `step`-th token."""
    results = []
    for number, group in enumerate(groups):
        flat = ops.reshape(group.node, integers(-1, group.width), special_zero=False)
        rows = ops.slice(flat, integers(0), integers(np.iinfo(np.int64).max), integers(step), integers(0))
        result = ops.result(ops.convert(rows, ov.Type.f32))
        result.output(0).set_names({f"{_NAME}{number}"})
        results.append(result)
    graph.add_results(results)


def collect(loaded: LoadedModel, windows: Sequence[Window], num_groups: int, progress: Progress) -> list[Array]:
    """The sampled inputs of each group, bf16 [samples, width]."""
    kept: list[list[Array]] = [[] for _ in range(num_groups)]
    longest = max(len(window.token_ids) for window in windows)
    with WindowReader(loaded, longest, piece_tokens(loaded.facts.vocab_size)) as reader:
        for number, window in enumerate(windows):
            progress("reading", number / len(windows))
            for _ in reader.read(window.token_ids):
                for place, rows in enumerate(kept):
                    rows.append(reader.output(f"{_NAME}{place}").astype(ml_dtypes.bfloat16))
    progress("reading", 1.0)
    return [np.concatenate(rows) for rows in kept]
