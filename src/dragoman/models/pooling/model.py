"""A model that embeds or scores texts, from its directory to vectors and scores.

Does: load and compile, run a batch, pool its tokens. Does not: tokenise, choose batches, or bring vectors to length 1.
Loaded on any thread; `LoadedPooler.run` is the engine thread's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.kernels.graph import runtime
from dragoman.models.config import ModelError, read_config
from dragoman.models.pooling.arrays import graph_inputs, members
from dragoman.models.pooling.facts import DenseModule, Kept, PoolingMode, Recipe, TextFacts
from dragoman.models.pooling.families import read_text_model
from dragoman.models.pooling.families.base import TextFamily
from dragoman.models.profile import KernelProfile, ModelOptions, keeps_file_types, kernel_profile, tell_lack
from dragoman.models.runtime import kernel_threads, memory
from dragoman.models.sources.opening import stored_weights
from dragoman.models.sources.read_ahead import read_ahead
from dragoman.models.sources.safetensors import SafetensorsWeights
from dragoman.models.stages import BUILDING, COMPILING, WARMING_UP
from dragoman.models.storage.constants import WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.weights import Weights
from dragoman.types import PooledText

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Dense:
    """A module's numbers."""

    weight: Vectors
    bias: Vectors | None
    activation: str

    def __call__(self, x: Vectors) -> Vectors:
        result = x @ self.weight.T
        activated: Vectors = _ACTIVATIONS[self.activation](result if self.bias is None else result + self.bias)
        return activated


class LoadedPooler:
    """A compiled network with what is computed behind it. One thread runs it."""

    def __init__(
        self, compiled: Any, model: TextFamily, recipe: Recipe, denses: Sequence[_Dense], profile: KernelProfile
    ) -> None:
        self.facts: TextFacts = model.facts
        self.recipe = recipe
        self.profile = profile
        self._kept: Kept = model.kept
        self._has_members = model.scores and model.scores_mean
        self._denses = tuple(denses)
        self._request: Any = compiled.create_infer_request()

    @property
    def max_tokens(self) -> int:
        """Of one text or pair."""
        longest = self.recipe.max_tokens
        return self.facts.max_tokens if longest is None else min(longest, self.facts.max_tokens)

    @property
    def dimensions(self) -> int:
        """Of an embedding; 1 of a score."""
        if self.recipe.kind == "score":
            return 1
        if self._denses:
            return int(self._denses[-1].weight.shape[0])
        return self.facts.hidden_size * len(self.recipe.pooling)

    def run(self, texts: Sequence[PooledText]) -> Vectors:
        """The vector of each text as the modules make it, but not brought to length 1; or its score before the activation.

        Shape: f32 [texts, dimensions].
        """
        inputs = graph_inputs(texts, self.facts, self._kept)
        if self._has_members:
            inputs |= members(texts)
        self._request.infer(inputs, share_inputs=True)
        output: Vectors = self._request.get_output_tensor(0).data
        if self.recipe.kind == "score":
            return output.copy()
        return self._embedded(output, texts)

    def close(self) -> None:
        """Let the runtime go."""
        self._request = None

    def _embedded(self, output: Vectors, texts: Sequence[PooledText]) -> Vectors:
        if self._kept != "all":
            vectors = output.copy()
        else:
            lengths = [len(text.token_ids) for text in texts]
            ends = np.cumsum(lengths)
            skipped = [0 if self.recipe.includes_prompt else text.num_prompt_tokens for text in texts]
            vectors = np.stack(
                [
                    pooled(output[end - length : end], self.recipe.pooling, first)
                    for end, length, first in zip(ends, lengths, skipped, strict=True)
                ]
            )
        for dense in self._denses:
            vectors = dense(vectors)
        return np.ascontiguousarray(vectors, dtype=np.float32)


def pooled(hidden: Vectors, modes: Sequence[PoolingMode], num_skipped: int = 0) -> Vectors:
    """One vector of a text's. Shapes: hidden [T, size] -> [size for each mode]. `num_skipped`: first rows that do not count.

    Source: sentence-transformers' Pooling.
    """
    rows = hidden[min(num_skipped, len(hidden) - 1) :]
    return np.concatenate([_pooled(rows, mode, num_skipped) for mode in modes])


def _pooled(rows: Vectors, mode: PoolingMode, num_skipped: int) -> Vectors:
    match mode:
        case "cls":
            return np.asarray(rows[0])
        case "last":
            return np.asarray(rows[-1])
        case "max":
            return np.asarray(rows.max(axis=0))
        case "mean":
            return np.asarray(rows.sum(axis=0) / np.float32(len(rows)))
        case "mean_sqrt_len":
            return np.asarray(rows.sum(axis=0) / np.sqrt(np.float32(len(rows))))
        case "weightedmean":
            weights = np.arange(num_skipped + 1, num_skipped + len(rows) + 1, dtype=np.float32)
            return np.asarray(weights @ rows / weights.sum())


def load_pooler(model_dir: Path, recipe: Recipe, options: ModelOptions, progress: Any = None) -> LoadedPooler:
    """The compiled model of a directory. Raises: ModelError if it is no supported checkpoint."""
    report = progress or (lambda _stage, _fraction: None)
    model = text_family(model_dir, recipe)
    stored = stored_weights(model_dir, keeps_rows=keeps_file_types(options))
    if options.kernels == "auto":
        tell_lack()
    profile = kernel_profile(options, smallest_group=stored.smallest_group)
    num_values = sum(prod(shape) for shape in stored.shapes().values())
    report(BUILDING, 0.0)
    read_ahead(stored.files)
    with (
        stored.open() as source,
        RowParts(progress=lambda done: report(BUILDING, min(done / num_values, 1.0))) as parts,
    ):
        graph = model.build(Weights(source, WeightStorage(profile.weights, parts)))
        parts.finish()
    memory.bound_shared_cache()
    properties = dict(profile.properties) | memory.PROPERTIES
    if options.num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = options.num_threads
    if options.has_neighbours:
        properties |= kernel_threads.SHARED
    report(COMPILING, 0.0)
    compiled = runtime(has_operations=profile.kernels == "own").compile_model(graph, "CPU", properties)
    del graph
    denses = [_read_dense(model_dir, module) for module in recipe.denses]
    pooler = LoadedPooler(compiled, model, recipe, denses, profile)
    report(WARMING_UP, 0.0)
    pooler.run([PooledText((0, 0))])
    report(WARMING_UP, 1.0)
    return pooler


def text_family(model_dir: Path, recipe: Recipe) -> TextFamily:
    """The network of a directory, not built yet. Raises: ModelError."""
    model = read_text_model(read_config(model_dir), scores=recipe.kind == "score", answer_ids=recipe.answer_ids)
    model.kept = _kept(model, recipe)
    return model


def _kept(model: TextFamily, recipe: Recipe) -> Kept:
    """Of which tokens the last hidden states are wanted."""
    if model.scores:
        return "all" if model.scores_mean else "last" if model.facts.is_causal else "first"
    if len(recipe.pooling) > 1 or not recipe.includes_prompt:
        return "all"
    return {"cls": "first", "last": "last"}.get(recipe.pooling[0], "all")  # type: ignore[return-value]


def _read_dense(model_dir: Path, module: DenseModule) -> _Dense:
    """Raises: ModelError."""
    directory = model_dir / module.path
    if not (directory / "model.safetensors").is_file():
        raise ModelError(f"{directory} has no model.safetensors; a Dense module's numbers are read from it alone")
    with SafetensorsWeights(directory).open() as source:
        weight = np.asarray(source.tensor("linear.weight", (module.num_outputs, module.num_inputs)), dtype=np.float32)
        bias = None
        if module.has_bias:
            bias = np.asarray(source.tensor("linear.bias", (module.num_outputs,)), dtype=np.float32)
    return _Dense(weight.copy(), bias, module.activation)


def _gelu(x: Vectors) -> Vectors:
    from math import erf

    return np.asarray(x * 0.5 * (1.0 + np.vectorize(erf)(x / np.sqrt(2.0))), dtype=np.float32)


def sigmoid(x: Vectors) -> Vectors:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)), dtype=np.float32)


_ACTIVATIONS: dict[str, Any] = {
    "identity": lambda x: x,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "gelu": _gelu,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
}
