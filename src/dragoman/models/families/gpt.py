"""The common part of decoders from before Llama: layer norms, an MLP without a gate, often one matrix of q, k and v."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

from dragoman.models.blocks.attention import Projections, attend, by_group, queries_keys_values
from dragoman.models.blocks.embeddings import embedding
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, plain_mlp
from dragoman.models.blocks.nodes import add, split_heads
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, LayerFacts, MlpFacts
from dragoman.models.families.base import Family
from dragoman.models.families.llama import head_counts, head_size
from dragoman.models.rotary import RotaryReading
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

ALIASES = {
    "n_embd": "hidden_size",
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
    "layer_norm_eps": "layer_norm_epsilon",
}
"""Keys of config.json that most of these families spell otherwise than Llama."""


class Names(NamedTuple):
    """The names of a layer's parts. `qkv`: one matrix, or three. Norms of one name are one norm for attention and MLP."""

    attention_norm: str
    qkv: tuple[str, ...]
    output: str
    mlp_norm: str
    up: str
    down: str


class Gpt(Family):
    """A decoder like GPT. `positions`: the table of positions, empty = there is none; `first_position`: its first row.

    `is_parallel`: the MLP does not see what attention has added.
    """

    aliases: ClassVar[dict[str, str]] = ALIASES
    table = "wte"
    layers = "h"
    names: Names
    final_norm = "ln_f"
    has_layer_norms = True
    positions: ClassVar[str] = ""
    first_position: ClassVar[int] = 0
    unread: tuple[str, ...] = (r"\.att(n|ention)\.(masked_)?bias$", r"\.rotary_emb\.inv_freq$")  # masks and frequencies

    is_tied = True
    is_parallel = False
    has_qkv_bias = has_output_bias = has_mlp_bias = True
    rotary: RotaryReading | None = None
    alibi: tuple[float, ...] = ()

    def __init__(self, config: Config) -> None:
        config.rename(self.aliases)
        # n_ctx repeats n_positions; the others are for training
        config.skip("n_ctx", "activation_dropout", "attn_pdrop", "dropout", "init_std", "layerdrop")
        self.norm_epsilon = config.number("layer_norm_epsilon", 1e-5)
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.read(config)
        context = self.rotary.max_position if self.rotary else config.count("max_position_embeddings")
        layers = (
            LayerFacts(self.attention_facts(config, index), self.mlp_facts(config))
            for index in range(config.count("num_hidden_layers"))
        )
        self.facts = self.read_ends(config, layers, context, self.rotary.long_context_from if self.rotary else None)

    # --- config.json --------------------------------------------------------------------------------------------------

    def read(self, config: Config) -> None: ...

    def head_counts(self, config: Config) -> tuple[int, int]:
        return head_counts(config)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        num_heads, num_kv_heads = self.head_counts(config)
        size = head_size(config)
        rule = self.rotary.rule if self.rotary else None
        return AttentionFacts(num_heads, num_kv_heads, size, size, size**-0.5, rotary=rule, alibi_slopes=self.alibi)

    def mlp_facts(self, config: Config) -> MlpFacts:
        inner_size = config.count("intermediate_size", 4 * config.count("hidden_size"))
        return MlpFacts(inner_size, config.choice("hidden_act", ACTIVATIONS, "gelu_new"))

    # --- the graph ----------------------------------------------------------------------------------------------------

    def embed(self, body: Weights, step: StepInputs) -> Node:
        x = super().embed(body, step)
        return add(x, self.embed_positions(body, step)) if self.positions else x

    def embed_positions(self, body: Weights, step: StepInputs) -> Node:
        """Shape: [T, 1, hidden]."""
        size, skipped = self.facts.max_position, self.first_position
        rows = body.at(self.positions).rows(slice(skipped, None), skipped + size)
        return embedding(step.positions, rows, size, self.facts.hidden_size)

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        names = self.names
        normed = self.norm(x, weights.at(names.attention_norm))
        attended = self.attention(normed, weights, layer)
        before = layer.keep(x)
        after = add(before, attended)
        if names.mlp_norm == names.attention_norm:
            inside = layer.keep(normed)
        else:
            inside = self.norm(before if self.is_parallel else after, weights.at(names.mlp_norm))
        return add(after, self.mlp(inside, weights, layer))

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = layer.attention
        q, k, v = self.queries_keys_values(x, weights, facts)
        q, k = self.heads(split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads), weights)
        attended = attend(q, k, v, layer)
        return linear(attended, weights.at(self.names.output), self.facts.hidden_size, bias=self.has_output_bias)

    def queries_keys_values(self, x: Node, weights: Weights, facts: AttentionFacts) -> list[Node]:
        """Shapes: [T, 1, hidden] -> three of [T, 1, heads * size]."""
        parts = [weights.at(name) for name in self.names.qkv]
        projections = self.cut(parts[0], facts) if len(parts) == 1 else (parts[0], parts[1], parts[2])
        return queries_keys_values(x, projections, facts, bias=self.has_qkv_bias)

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        return by_group(fused, facts)

    def heads(self, q: Node, k: Node, weights: Weights) -> tuple[Node, Node]:
        """Queries and keys by heads, which a family may norm. Shape: [T, heads, 1, size]."""
        return q, k

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, MlpFacts)
        up, down = weights.at(self.names.up), weights.at(self.names.down)
        return plain_mlp(x, up, down, facts.inner_size, facts.activation, bias=self.has_mlp_bias)


def alibi_slopes(num_heads: int, largest_exponent: float = 8.0) -> tuple[float, ...]:
    """Each head's deduction from a score per token of distance, 2 ** -(exponent / heads) to 2 ** -exponent.

    Without a power of two heads have every second slope of the next one, then those between. Source: ALiBi,
    arXiv:2108.12409.
    """
    size = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** (-largest_exponent * (i + 1) / size) for i in range(size)]
    return tuple(slopes if size == num_heads else (slopes[1::2] + slopes[::2])[:num_heads])
