"""Qwen 3.5 with experts, and Qwen3-Next: gated delta rules, gated attention, experts everywhere. Source: their releases."""

from __future__ import annotations

import numpy as np

from dragoman.models.config import Config
from dragoman.models.facts import DeltaFacts
from dragoman.models.families.llama import Llama
from dragoman.models.families.qwen3_5 import DeltaWeights, Qwen35
from dragoman.models.families.qwen_experts import WithSharedExpert
from dragoman.models.sources.base import Array
from dragoman.models.weights import Weights


class Qwen3Next(Qwen35, WithSharedExpert):
    """Qwen3-Next 80B-A3B."""

    architectures = ("Qwen3NextForCausalLM",)
    read_slides = Llama.read_slides

    def __init__(self, config: Config) -> None:
        config.expect(use_sliding_window=False)
        config.assume(norm_topk_prob=True)
        super().__init__(config)

    def delta_weights(self, weights: Weights, facts: DeltaFacts) -> DeltaWeights:
        """Parts of two tensors, in which each key's head lies together with the values' heads that read by it.

        GGUF files have the first one in two: queries, keys and values of all heads below each other, and the gate.
        """
        num_readers = facts.num_heads // facts.num_key_heads
        narrow = weights.at("in_proj_ba")
        parts, fades = (
            narrow.rows(rows, 2 * facts.num_heads) for rows in _parts(facts.num_key_heads, (num_readers,) * 2)
        )
        if "in_proj_qkv.weight" in weights:
            return DeltaWeights(weights.at("in_proj_qkv"), weights.at("in_proj_z"), parts, fades)
        q, k, v, z = _parts(facts.num_key_heads, (facts.key_size,) * 2 + (num_readers * facts.value_size,) * 2)
        wide, num_wide = weights.at("in_proj_qkvz"), 2 * (facts.key_width + facts.value_width)
        return DeltaWeights(wide.rows(np.concatenate((q, k, v)), num_wide), wide.rows(z, num_wide), parts, fades)


class Qwen35Experts(Qwen3Next):
    """Qwen 3.5 35B-A3B, 122B-A10B, 397B-A17B."""

    architectures = ("Qwen3_5MoeForCausalLM",)
    delta_weights = Qwen35.delta_weights

    def __init__(self, config: Config) -> None:
        config.expect(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
        super().__init__(config)


def _parts(num_groups: int, sizes: tuple[int, ...]) -> list[Array]:
    """The rows of each part, in a tensor that has one piece of every part for each group."""
    rows = np.arange(num_groups * sum(sizes)).reshape(num_groups, -1)
    return [part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)]
