"""A model that embeds, scores or classifies texts, from its directory to vectors and scores; does not tokenise.

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
from dragoman.models import memory
from dragoman.models.blocks import whole_texts as names
from dragoman.models.config import ModelError, read_config
from dragoman.models.pooling.facts import DenseModule, Kept, PoolingMode, Recipe, TextFacts
from dragoman.models.pooling.families import read_text_model
from dragoman.models.pooling.families.base import TextFamily
from dragoman.models.pooling.task_adapters import PlainNames
from dragoman.models.profile import KernelProfile, ModelOptions, keeps_file_types, kernel_profile, tell_library
from dragoman.models.sources.safetensors import SafetensorsWeights
from dragoman.models.stages import BUILDING, COMPILING, WARMING_UP
from dragoman.models.storage.constants import WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.stored.opening import read_ahead, stored_weights
from dragoman.models.weights import Weights
from dragoman.types import PooledText

Array = npt.NDArray[Any]

_HIDDEN = np.float32(-1e30)  # a hidden score: its exponential is 0, and no row is all hidden
_CHUNK = 64  # queries of a window's chunk: fewer repeat more keys, more have most masked


def graph_inputs(texts: Sequence[PooledText], facts: TextFacts, kept: Kept) -> dict[str, Array]:
    lengths = np.array([len(text.token_ids) for text in texts], dtype=np.int64)
    seen = np.array([text.num_seen or len(text.token_ids) for text in texts], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    longest, total = int(lengths.max()), int(lengths.sum())
    within = np.arange(total) - np.repeat(starts, lengths)  # each token's position in its text
    columns = np.arange(longest)
    is_there = columns < lengths[:, None]
    inputs: dict[str, Array] = {
        names.TOKENS: np.concatenate([np.asarray(text.token_ids, dtype=np.int64) for text in texts]),
        names.POSITIONS: within + facts.first_position,
        names.PLACES: np.where(is_there, starts[:, None] + columns, starts[:, None]),
        names.ROWS: within + np.repeat(np.arange(len(texts)) * longest, lengths),
    }
    if not facts.is_causal:
        inputs[names.MASK] = np.where(columns < seen[:, None], np.float32(0.0), _HIDDEN)[:, None, None]
    if facts.num_types > 1:
        seconds = np.array([text.second_from or len(text.token_ids) for text in texts])
        inputs[names.TOKEN_TYPES] = (within >= np.repeat(seconds, lengths)).astype(np.int64)
    if facts.window_reach:
        inputs |= _windows(lengths, seen, starts, facts.window_reach)
    if facts.num_distances:
        inputs[names.DISTANCES] = columns - columns[:, None] + (facts.num_distances - 1)
    if facts.num_tasks:
        columns_of = np.repeat(np.arange(facts.num_tasks), facts.task_rank)
        is_of = np.array([text.task for text in texts])[:, None] == columns_of
        inputs[names.TASKS] = np.repeat(is_of.astype(np.float32), lengths, axis=0)
    if kept != "all":
        is_kept = within == (0 if kept == "first" else np.repeat(lengths - 1, lengths))
        inputs[names.KEPT] = np.flatnonzero(is_kept | np.repeat([text.wants_tokens for text in texts], lengths))
    return inputs


def members(texts: Sequence[PooledText]) -> dict[str, Array]:
    lengths = np.array([len(text.token_ids) for text in texts], dtype=np.int64)
    owners = np.repeat(np.arange(len(texts)), lengths)
    return {
        names.MEMBERS: (owners == np.arange(len(texts))[:, None]).astype(np.float32),
        names.COUNTS: lengths[:, None].astype(np.float32),
    }


def _windows(lengths: Array, seen: Array, starts: Array, reach: int) -> dict[str, Array]:
    """Chunks of queries, and the keys that any of them may see; places outside of the text are masked."""
    counts = -(-lengths // _CHUNK)  # chunks of each text
    owners = np.repeat(np.arange(len(lengths)), counts)
    firsts = (np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)) * _CHUNK  # in the text
    queries = firsts[:, None] + np.arange(_CHUNK)
    keys = firsts[:, None] + np.arange(-reach, _CHUNK + reach)
    ends, begins = lengths[owners][:, None], starts[owners][:, None]
    has_key = (keys >= 0) & (keys < seen[owners][:, None])
    distance = np.abs(queries[:, :, None] - keys[:, None, :])
    # a query behind the text's end must see something; its result is not read
    sees = (has_key[:, None, :] & (distance <= reach)) | (queries >= ends)[:, :, None]
    within = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    first_chunks = np.repeat((np.cumsum(counts) - counts) * _CHUNK, lengths)
    return {
        names.WINDOW_QUERIES: begins + np.minimum(queries, ends - 1),
        names.WINDOW_KEYS: begins + np.clip(keys, 0, ends - 1),
        names.WINDOW_MASK: np.where(sees, np.float32(0.0), _HIDDEN)[:, None],
        names.WINDOW_ROWS: first_chunks + within,
    }


Vectors = npt.NDArray[np.float32]

WORD_WEIGHTS = np.dtype([("index", "<i4"), ("value", "<f4")])
"""A word of the vocabulary and its weight."""
_LOGITS = 1 << 23  # logits of words at once: 32 MB


@dataclass(frozen=True, slots=True)
class _Dense:
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
        self,
        compiled: Any,
        model: TextFamily,
        recipe: Recipe,
        denses: Sequence[_Dense],
        profile: KernelProfile,
        words: Any = None,
    ) -> None:
        self.facts: TextFacts = model.facts
        self.recipe = recipe
        self.profile = profile
        self._kept: Kept = model.kept
        self._has_members = model.scores and model.scores_mean
        self._denses = tuple(denses)
        self._request: Any = compiled.create_infer_request()
        self._words: Any = None if words is None else words.create_infer_request()

    @property
    def max_tokens(self) -> int:
        longest = self.recipe.max_tokens
        return self.facts.max_tokens if longest is None else min(longest, self.facts.max_tokens)

    @property
    def dimensions(self) -> int:
        """Of an embedding or a token's vector; the number of scores, or of words that may have weights."""
        if self.recipe.kind in ("score", "classify"):
            return max(len(self.recipe.labels), 1)
        if self.recipe.kind == "sparse":
            return self.facts.vocab_size
        if self._denses:
            return int(self._denses[-1].weight.shape[0])
        return self.facts.hidden_size * max(len(self.recipe.pooling), 1)

    def run(self, texts: Sequence[PooledText]) -> Any:
        """The vectors, not yet of length 1, or scores before the activation: f32 [dimensions] each.

        Tokens' vectors are f32 [tokens, size], weights of words `WORD_WEIGHTS` [words] above 0.
        """
        inputs = graph_inputs(texts, self.facts, self._kept)
        if self._has_members:
            inputs |= members(texts)
        self._request.infer(inputs, share_inputs=True)
        output: Vectors = self._request.get_output_tensor(0).data
        if self.recipe.kind in ("score", "classify"):
            return output.copy()
        rows = [self._row(hidden, text) for hidden, text in zip(self._rows_of(output, texts), texts, strict=True)]
        return np.stack(rows) if self.recipe.kind == "embed" and not any(text.wants_tokens for text in texts) else rows

    def close(self) -> None:
        self._request = self._words = None

    def _rows_of(self, output: Vectors, texts: Sequence[PooledText]) -> list[Vectors]:
        are_all = self._kept == "all"
        counts = [len(text.token_ids) if are_all or text.wants_tokens else 1 for text in texts]
        return np.split(output, np.cumsum(counts)[:-1])

    def _row(self, hidden: Vectors, text: PooledText) -> npt.NDArray[Any]:
        recipe = self.recipe
        if recipe.kind == "sparse":
            return self._weighed(hidden)
        if text.wants_tokens and recipe.kind == "embed":
            return hidden.copy()
        if recipe.kind == "tokens":
            made = hidden.copy()
        elif self._kept != "all":  # the pooled row stands at one end
            made = hidden[0 if self._kept == "first" else -1].copy()[None]
        else:
            made = pooled(hidden, recipe.pooling, 0 if recipe.includes_prompt else text.num_prompt_tokens)[None]
        for dense in self._denses:
            made = dense(made)
        made = np.ascontiguousarray(made, dtype=np.float32)
        return made if recipe.kind == "tokens" else made[0]

    def _weighed(self, hidden: Vectors) -> npt.NDArray[Any]:
        """The words of a text, as SPLADE weighs them; a few tokens at once, as each has a logit of every word."""
        rule = self.recipe.sparse
        assert rule is not None
        step, total = max(_LOGITS // self.facts.vocab_size, 1), None
        for begin in range(0, len(hidden), step):
            self._words.infer([np.ascontiguousarray(hidden[begin : begin + step])], share_inputs=True)
            part: Vectors = self._words.get_output_tensor(0).data[0]
            if total is None:
                total = part.copy()
            else:
                (np.add if rule.sums else np.maximum)(total, part, out=total)
        assert total is not None
        if not rule.sums:
            total = np.maximum(total, np.float32(0.0))
            for _ in range(rule.logarithms):
                total = np.log1p(total)
        found = np.flatnonzero(total > 0)
        row = np.empty(len(found), WORD_WEIGHTS)
        row["index"], row["value"] = found, total[found]
        return row


def pooled(hidden: Vectors, modes: Sequence[PoolingMode], num_skipped: int = 0) -> Vectors:
    """One vector, [size for each mode], of hidden [T, size]. Source: sentence-transformers' Pooling."""
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
    report = progress or (lambda _stage, _fraction: None)
    model = text_family(model_dir, recipe)
    stored = stored_weights(model_dir, keeps_rows=keeps_file_types(options))
    tell_library(options.kernels)
    profile = kernel_profile(options, smallest_group=stored.smallest_group)
    num_values = sum(prod(shape) for shape in stored.shapes().values())
    report(BUILDING, 0.0)
    read_ahead(stored.files)
    with (
        stored.open() as source,
        RowParts(progress=lambda done: report(BUILDING, min(done / num_values, 1.0))) as parts,
    ):
        named = PlainNames(source) if model.facts.num_tasks else source
        weights = Weights(named, WeightStorage(profile.weights, parts))
        words = None if recipe.sparse is None else model.build_words(weights, recipe.sparse)
        graph = model.build(weights)
        parts.finish()
    memory.bound_shared_cache()
    properties = dict(profile.properties) | memory.PROPERTIES
    if options.num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = options.num_threads
    if options.has_neighbours:
        properties |= memory.SHARED
    report(COMPILING, 0.0)
    core = runtime(has_operations=profile.kernels == "own")
    compiled = core.compile_model(graph, "CPU", properties)
    compiled_words = None if words is None else core.compile_model(words, "CPU", properties)
    del graph, words
    denses = [_read_dense(model_dir, module) for module in recipe.denses]
    pooler = LoadedPooler(compiled, model, recipe, denses, profile, compiled_words)
    report(WARMING_UP, 0.0)
    pooler.run([PooledText((0, 0))])
    report(WARMING_UP, 1.0)
    return pooler


def text_family(model_dir: Path, recipe: Recipe) -> TextFamily:
    scores = recipe.kind in ("score", "classify")
    model = read_text_model(read_config(model_dir), scores=scores, answer_ids=recipe.answer_ids)
    model.num_scores = max(len(recipe.labels), 1)
    model.kept = _kept(model, recipe)
    return model


def _kept(model: TextFamily, recipe: Recipe) -> Kept:
    if model.scores:
        return "all" if model.scores_mean else "last" if model.facts.is_causal else "first"
    if len(recipe.pooling) != 1 or not recipe.includes_prompt or model.facts.num_tasks:  # no pooling: all tokens count
        return "all"
    return {"cls": "first", "last": "last"}.get(recipe.pooling[0], "all")  # type: ignore[return-value]


def _read_dense(model_dir: Path, module: DenseModule) -> _Dense:
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
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)), dtype=np.float32)


_ACTIVATIONS: dict[str, Any] = {
    "identity": lambda x: x,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "gelu": _gelu,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
}
