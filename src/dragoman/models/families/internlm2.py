"""InternLM2 and 2.5: Llama with names of its own, and one matrix for queries, keys and values."""

from __future__ import annotations

from dragoman.models.blocks.attention import Projections, by_group
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.llama import LayerNorms, Llama
from dragoman.models.weights import Weights


class InternLM2(Llama):
    """InternLM2 and InternLM2.5 of 1.8B, 7B and 20B."""

    architectures = ("InternLM2ForCausalLM",)
    layouts = (Layout("model", "output"),)
    table = "tok_embeddings"
    layer_norms = LayerNorms("attention_norm", "ffn_norm")
    attention_name = "attention"
    output_name = "wo"
    mlp_name = "feed_forward"
    mlp_names = ("w1", "w3", "w2")
    qkv_bias = output_bias = ("bias", True)

    def __init__(self, config: Config) -> None:
        config.expect(rope_pos_id_version="default")  # otherwise pictures' tokens advance by less than one position
        config.skip("rope_pos_id_stride")
        super().__init__(config)

    def projections(self, weights: Weights, facts: AttentionFacts) -> Projections:
        return by_group(weights.at("wqkv"), facts)
