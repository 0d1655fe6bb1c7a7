"""MPT: attention fades with distance, nothing has a bias."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from dragoman.models.blocks.attention import Projections, in_turn
from dragoman.models.blocks.nodes import clamped
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, MlpFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt, Names, alibi_slopes
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Mpt(Gpt):
    """MPT 7B and 30B. Their context has no limit; `max_seq_len` is that of the training."""

    architectures = ("MPTForCausalLM", "MptForCausalLM")
    aliases: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
    }
    layouts = (Layout("transformer", "lm_head"),)
    layers = "blocks"
    names = Names("norm_1", ("attn.Wqkv",), "attn.out_proj", "norm_2", "ffn.up_proj", "ffn.down_proj")
    final_norm = "norm_f"
    has_norm_bias = has_qkv_bias = has_output_bias = has_mlp_bias = False

    def read(self, config: Config) -> None:
        config.expect(no_bias=True)
        config.choice("norm_type", ("low_precision_layernorm", "layernorm"), "low_precision_layernorm")
        # a table of positions is only for attention that does not fade; the other keys are for training
        config.skip("learned_pos_emb", "embedding_fraction", "emb_pdrop", "init_config", "init_device", "verbose")
        config.skip("tokenizer_name")
        described = config.part("attn_config") or Config({})
        described.expect(alibi=True, attn_type="multihead_attention", qk_ln=False, prefix_lm=False)
        described.expect(attn_uses_sequence_id=False)
        described.skip("attn_impl", "attn_pdrop")
        self.clip = described.number("clip_qkv", 0.0)
        self.scale = described.number("softmax_scale", 0.0)
        self.alibi = alibi_slopes(config.count("num_attention_heads"), described.number("alibi_bias_max", 8.0))
        described.refuse_unread()

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        facts = super().attention_facts(config, index)
        return replace(facts, scale=self.scale or facts.scale)

    def mlp_facts(self, config: Config) -> MlpFacts:
        return MlpFacts(config.count("expansion_ratio", 4) * config.count("hidden_size"), "gelu")

    def queries_keys_values(self, x: Node, weights: Weights, facts: AttentionFacts) -> list[Node]:
        return [clamped(part, self.clip) for part in super().queries_keys_values(x, weights, facts)]

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        return in_turn(fused, facts)
