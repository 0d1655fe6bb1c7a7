"""The base of families of text networks, and parts that several of them have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.fusing import fuse
from dragoman.models.blocks.linear import embedding, linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, reshape, scalar, split_heads, unsqueeze
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.rotary import apply_rotary
from dragoman.models.blocks.whole_texts import WholeTexts
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import AttentionFacts
from dragoman.models.pooling.facts import Kept, SparseRule, TextFacts
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights

HIDDEN, SCORES, WORDS = "hidden", "scores", "words"


class WordHead(NamedTuple):
    """Names of the parts that turn hidden states into logits of words. `matrix`: if it is not stored, the table's."""

    dense: str
    norm: str
    matrix: str
    bias: str
    activation: str
    epsilon: float
    has_bias: bool = True  # of the dense layer
    has_norm_bias: bool = True
    has_word_bias: bool = True


class ScoreHead(NamedTuple):
    """Names of the layers of a head that scores. `is_in_body`: the first one lies below the body's prefix."""

    dense: str = "pooler.dense"
    out: str = "classifier"
    activation: Callable[[Node], Any] = ops.tanh
    is_in_body: bool = True


class TextFamily(ABC):
    """One network of a family, made from its config.json. `prefixes`: of its tensors; the first with `table` counts.

    `kept`, `scores`, `num_scores`: set before `build`; the graph then gives what the checkpoint's scoring head gives.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("",)
    table: ClassVar[str] = "embeddings.word_embeddings"
    unread: ClassVar[tuple[str, ...]] = (r"position_ids$", r"inv_freq$", r"^cls\.", r"^lm_head\.", r"pooler\.")

    score_head: ClassVar[ScoreHead] = ScoreHead()
    facts: TextFacts
    scores: bool = False
    num_scores: int = 1
    kept: Kept = "all"
    scores_mean: bool = False  # the head reads the mean of a text's hidden states

    @abstractmethod
    def __init__(self, config: Config, *, scores: bool) -> None: ...

    @abstractmethod
    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        """Shape: [R, hidden], of the kept tokens."""

    def score(self, hidden: Node, weights: Weights) -> Node:
        """The head's outputs for one row of each text. Shapes: [S, hidden] -> [S, scores]."""
        head, body = self.score_head, weights.at(self._prefix(weights))
        dense = (body if head.is_in_body else weights).at(head.dense).careful()
        pooled = head.activation(linear(hidden, dense, self.facts.hidden_size, bias=True)).output(0)
        return linear(pooled, weights.at(head.out).careful(), self.num_scores, bias=True)

    def word_head(self) -> WordHead:
        raise ModelError(f"{self.facts.architecture} is not supported for weights of words (pooling splade)")

    def build_words(self, weights: Weights, rule: SparseRule) -> Any:
        """The graph of the head for words. Shapes: hidden f32 [R, hidden] -> words f32 [1, vocabulary]."""
        head, facts = self.word_head(), self.facts
        hidden = ops.parameter(ov.PartialShape([-1, facts.hidden_size]), ov.Type.f32, name=HIDDEN)
        dense = linear(hidden.output(0), weights.at(head.dense).careful(), facts.hidden_size, bias=head.has_bias)
        normed = layer_norm(
            ACTIVATIONS[head.activation](dense), weights.at(head.norm), head.epsilon, bias=head.has_norm_bias
        )
        matrix = head.matrix
        if matrix not in weights:
            matrix = weights.at(self._prefix(weights)).at(self.table).name()
        words = weights.renamed(weight=matrix, bias=head.bias).careful()
        result = linear(normed, words, facts.vocab_size, bias=head.has_word_bias)
        if rule.sums:
            result = ops.relu(result).output(0)
            for _ in range(rule.logarithms):
                result = ops.log(add(result, scalar(1.0))).output(0)
        reduced = (ops.reduce_sum if rule.sums else ops.reduce_max)(result, np.array([0]), True).output(0)
        reduced.set_names({WORDS})
        graph = ov.Model([reduced], [hidden], f"{facts.architecture} words")
        fuse(graph, weights.storage)
        return graph

    def build(self, weights: Weights) -> Any:
        """The graph of `WholeTexts`; its output is hidden f32 [R, hidden], or scores f32 [S, scores]. Raises: ModelError."""
        facts = self.facts
        texts = WholeTexts(
            is_causal=facts.is_causal,
            has_types=facts.num_types > 1,
            has_windows=bool(facts.window_reach),
            has_distances=bool(facts.num_distances),
            keeps=self.kept != "all",
            num_task_columns=facts.num_tasks * facts.task_rank,
        )
        hidden = self.hidden(texts, weights.at(self._prefix(weights)))
        result, name = hidden, HIDDEN
        if self.scores:
            result, name = self.score(texts.means(hidden) if self.scores_mean else hidden, weights), SCORES
        result.set_names({name})
        weights.refuse_unread(self.unread)
        graph = ov.Model([result], texts.parameters, facts.architecture)
        fuse(graph, weights.storage)
        return graph

    def _prefix(self, weights: Weights) -> str:
        return next((name for name in self.prefixes if f"{self.table}.weight" in weights.at(name)), self.prefixes[0])


class LayerNames(NamedTuple):
    """Names of a layer's parts. `qkv`: three matrices, or one of all. `mlp`: of up and down; if it is gated, of gate, up
    and down, or of up and gate in one, and down.
    """

    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    mlp: tuple[str, ...] = ("intermediate.dense", "output.dense")
    mlp_norm: str = "output.LayerNorm"


def attended(
    x: Node,
    parts: Sequence[Weights],
    facts: AttentionFacts,
    texts: WholeTexts,
    *,
    bias: bool,
    is_windowed: bool = False,
) -> Node:
    """Attention within texts. `parts`: of queries, keys and values. Shapes: x [T, hidden] -> [T, heads * size]."""
    size = facts.query_width
    q, k, v = linears(x, parts, [size] * 3, bias=bias, is_fused=True)
    if facts.rotary is not None:
        angles, heads = texts.angles(facts.rotary), facts.num_heads
        q, k = (reshape(apply_rotary(split_heads(unsqueeze(part, 1), heads), angles), -1, size) for part in (q, k))
    return texts.attend(q, k, v, facts, is_windowed=is_windowed)


def embedded_tokens(texts: WholeTexts, tables: Weights, facts: TextFacts, num_positions: int = 0) -> Node:
    """The sum of the tables' rows, [T, hidden]; `num_positions` 0 = there is no table of positions."""
    size = facts.hidden_size
    x = rows_of(texts.token_ids, tables.at("word_embeddings"), facts.vocab_size, size)
    if num_positions:
        x = add(x, rows_of(texts.positions, tables.at("position_embeddings"), num_positions, size))
    types = tables.at("token_type_embeddings")
    if texts.token_types is not None:
        x = add(x, rows_of(texts.token_types, types, facts.num_types, size))
    elif facts.num_types:  # all tokens are of the only type
        x = add(x, constant(np.asarray(types.matrix(1, size), dtype=np.float32)))
    return x


def rows_of(ids: Node, weights: Weights, num_rows: int, size: int) -> Node:
    return reshape(embedding(ids, weights, num_rows, size), -1, size)
