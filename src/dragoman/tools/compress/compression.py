"""Compresses a checkpoint: scales, stores and writes its matrices. Called by `dragoman compress`, on its thread.

Factors follow samples of the matrices' inputs, which the model has when it reads a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models import LoadedModel, ModelError, ModelOptions
from dragoman.models.blocks.nodes import integers
from dragoman.models.config import read_config
from dragoman.models.families import read_model
from dragoman.models.families.base import Family
from dragoman.models.profile import kernel_profile
from dragoman.models.sources.base import PackedMatrix, WeightSource
from dragoman.models.storage.constants import WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.stored.opening import stored_weights
from dragoman.models.weights import Weights
from dragoman.tools.compress.checkpoint import CheckpointWriter, new_directory, packed_tensors, quantization_config
from dragoman.tools.compress.scaling import Packing, chosen_factors, importance_of, packed, shared
from dragoman.tools.compress.structure import Divided, InputGroup, Structure
from dragoman.tools.evaluate import Window, WindowReader, piece_tokens

Array = np.ndarray[Any, Any]
Progress = Callable[[str, float], None]

_WEIGHT = ".weight"
_SAMPLE_BYTES = 1 << 30  # of inputs, over all matrices
_LEAST_SAMPLES = 128
_INPUT = "matrix_input."  # before a group's number: the name of an output
NUM_SAMPLES = 4096  # sampled tokens


@dataclass(frozen=True, slots=True)
class Compressed:
    """The result. `num_scaled`: of the compressed matrices, those with scaled columns."""

    num_matrices: int
    num_scaled: int
    num_bytes: int


def compress(
    model_dir: Path, out: Path, packing: Packing, windows: Sequence[Window], skip: str | None, progress: Progress
) -> Compressed:
    """Write the compressed checkpoint. `windows`: text for calibration, may be empty. `skip`: a pattern of names.

    Raises: ModelError if the model cannot be read or has nothing to compress; OSError.
    """
    raw_config = read_config(model_dir)
    if raw_config.get("quantization_config") is not None:
        raise ModelError("config.json has a quantization_config, allowed: a checkpoint that is not compressed yet")
    model = read_model(raw_config)
    stored = stored_weights(model_dir)
    with new_directory(out) as directory, stored.open() as source:
        compression = _Compression(source, stored.shapes(), packing, progress)
        groups, samples = compression.read(model, skip, windows)
        compression.choose_factors(groups, samples)
        names = {name for group in groups for name in group.names}
        writer = CheckpointWriter(directory)
        compression.write(writer, names)
        entry = quantization_config(packing, compression.ignored(names))
        writer.finish(raw_config | {"quantization_config": entry}, model_dir)
        num_bytes = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return Compressed(len(names), len(compression.columns), num_bytes)


class _Compression:
    """One checkpoint's tensors and their changes by name: factors of columns, divisors of rows, importance of columns.

    `shapes`: of all its tensors.
    """

    def __init__(
        self, source: WeightSource, shapes: Mapping[str, tuple[int, ...]], packing: Packing, progress: Progress
    ) -> None:
        self._source, self._shapes, self._packing, self._progress = source, shapes, packing, progress
        self.columns: dict[str, Array] = {}
        self._rows: dict[str, tuple[Array, float]] = {}  # divisors with their offset
        self._importance: dict[str, Array] = {}

    def read(self, model: Family, skip: str | None, windows: Sequence[Window]) -> tuple[list[InputGroup], list[Array]]:
        """The matrices to compress, grouped by their input, with samples of it; none without windows.

        Raises: ModelError if there are none.
        """
        options, structure = ModelOptions("bf16", sees=False, kernels="openvino"), Structure()
        profile = kernel_profile(options, has_states=bool(model.facts.state_layers))
        model.facts = model.facts.without_caps()
        progress = self._progress
        with RowParts() as parts:
            progress("building the graph", 0.0)
            graph = model.build(Weights(self._source, WeightStorage(profile.weights, parts, structure)))
            groups = [group for group in structure.groups(model.layers) if self._is_wanted(group, skip)]
            parts.finish(lambda done, total: progress("building the graph", done / total))
        if not groups:
            raise ModelError("there is no matrix to compress: none of the selected ones has columns in whole groups")
        if not windows:
            return groups, []
        num_tokens = sum(len(window.token_ids) for window in windows)
        wanted = min(max(_SAMPLE_BYTES // (2 * sum(group.width for group in groups)), _LEAST_SAMPLES), NUM_SAMPLES)
        _add_outputs(graph, groups, max(num_tokens // wanted, 1))
        progress("compiling", 0.0)
        compiled = ov.Core().compile_model(graph, "CPU", dict(profile.properties))
        del graph
        return groups, _samples(LoadedModel(compiled, model.facts, options, profile), windows, len(groups), progress)

    def _is_wanted(self, group: InputGroup, skip: str | None) -> bool:
        skipped = skip is not None and any(re.search(skip, name) for name in group.names)
        matrices = all(name.endswith(_WEIGHT) and len(self._shapes[name]) == 2 for name in group.names)
        return group.width % self._packing.group_size == 0 and matrices and not skipped

    def choose_factors(self, groups: Sequence[InputGroup], samples: Sequence[Array]) -> None:
        """Note the changes that let the matrices lose least on the samples; none without samples."""
        for number, (group, kept) in enumerate(zip(groups, samples, strict=False)):
            self._progress("choosing factors", number / len(groups))
            read = kept.astype(np.float32)
            if not len(read) or not np.isfinite(read).all():
                continue
            factors = None if group.divided is None else self._factors(group, group.divided, read)
            if factors is not None:
                self.columns |= dict.fromkeys(group.names, factors)
            self._importance |= dict.fromkeys(group.names, importance_of(read, factors))

    def _factors(self, group: InputGroup, divided: Divided, samples: Array) -> Array | None:
        """The best factors of the group's columns, whose divisors are noted; None = none improve it."""
        sizes = np.abs(samples).mean(axis=0)
        if divided.num_heads:
            sizes = shared(sizes, divided.num_heads, divided.num_kv_heads)
        factors = chosen_factors([self._tensor(name) for name in group.names], samples, sizes, self._packing)
        return None if factors is None else self._divide(divided, factors)

    def _divide(self, divided: Divided, factors: Array) -> Array:
        """Note the divided tensors. Returns the factors that remain after these are rounded to their stored type."""
        divisors = factors
        if divided.num_heads:
            heads = factors.reshape(divided.num_kv_heads, divided.num_heads // divided.num_kv_heads, -1)
            divisors = heads[:, 0].reshape(-1)
        elif len(self._shapes[divided.names[0]]) == 1:
            weight = self._tensor(divided.names[0])
            full = weight.astype(np.float32) + np.float32(divided.offset)
            rounded = _divided(weight, divisors, divided.offset).astype(np.float32) + np.float32(divided.offset)
            is_known = (np.abs(full) > 0) & (np.abs(rounded) > 0)
            factors = np.where(is_known, full / np.where(is_known, rounded, 1.0), factors)
        offsets = {name: divided.offset if name.endswith(_WEIGHT) else 0.0 for name in divided.names}
        self._rows |= {name: (divisors, offset) for name, offset in offsets.items()}
        return factors

    def write(self, writer: CheckpointWriter, names: set[str]) -> None:
        """Write all tensors, `names` compressed."""
        for number, (name, shape) in enumerate(self._shapes.items()):
            self._progress("compressing", number / len(self._shapes))
            tensor = self._tensor(name)
            divisors, offset = self._rows.get(name, (None, 0.0))
            if len(shape) == 1 and divisors is not None:
                tensor = _divided(tensor, divisors, offset)
            elif name in names or divisors is not None:
                tensor = _changed(tensor, divisors, self.columns.get(name))
            if name in names:
                matrix = packed(np.asarray(tensor), self._packing, self._importance.get(name))
                for part, values in packed_tensors(name.removesuffix(_WEIGHT), matrix, self._packing.bits).items():
                    writer.add(part, values)
            else:
                writer.add(name, tensor)
        self._progress("compressing", 1.0)

    def ignored(self, names: set[str]) -> list[str]:
        """The modules whose weights are not among `names`."""
        weights = [name for name, shape in self._shapes.items() if name.endswith(_WEIGHT) and len(shape) > 1]
        return sorted({"lm_head", *(name.removesuffix(_WEIGHT) for name in weights if name not in names)})

    def _tensor(self, name: str) -> Array:
        tensor = self._source.tensor(name, self._shapes[name])
        if isinstance(tensor, PackedMatrix):
            raise ModelError(f"tensor {name!r} is packed, allowed: numbers, which can be compressed")
        return tensor


def _add_outputs(graph: Any, groups: Sequence[InputGroup], step: int) -> None:
    """Add outputs to the graph: each group's input at every `step`-th token."""
    results = []
    for number, group in enumerate(groups):
        flat = ops.reshape(group.node, integers(-1, group.width), special_zero=False)
        rows = ops.slice(flat, integers(0), integers(np.iinfo(np.int64).max), integers(step), integers(0))
        result = ops.result(ops.convert(rows, ov.Type.f32))
        result.output(0).set_names({f"{_INPUT}{number}"})
        results.append(result)
    graph.add_results(results)


def _samples(loaded: LoadedModel, windows: Sequence[Window], num_groups: int, progress: Progress) -> list[Array]:
    """The sampled inputs of each group, bf16 [samples, width]."""
    kept: list[list[Array]] = [[] for _ in range(num_groups)]
    longest = max(len(window.token_ids) for window in windows)
    with WindowReader(loaded, longest, piece_tokens(loaded.facts.vocab_size)) as reader:
        for number, window in enumerate(windows):
            progress("reading", number / len(windows))
            for _ in reader.read(window.token_ids):
                for place, rows in enumerate(kept):
                    rows.append(reader.output(f"{_INPUT}{place}").astype(ml_dtypes.bfloat16))
    progress("reading", 1.0)
    return [np.concatenate(rows) for rows in kept]


def _divided(tensor: Array, divisors: Array, offset: float) -> Array:
    values = (tensor.astype(np.float32) + np.float32(offset)) / divisors - np.float32(offset)
    return values.astype(tensor.dtype)


def _changed(matrix: Array, divisors: Array | None, factors: Array | None) -> Array:
    """A matrix with scaled rows and columns. Keeps its type unless columns change, as these are compressed next."""
    values = matrix.astype(np.float32)
    if divisors is not None:
        values /= divisors[:, None]
    if factors is not None:
        values *= factors
    return values
