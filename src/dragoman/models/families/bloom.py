"""BLOOM: attention fades with distance, and embeddings are normed."""

from __future__ import annotations

from dragoman.models.blocks.step import StepInputs
from dragoman.models.config import Config
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import ALIASES, Gpt, Names, alibi_slopes
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Bloom(Gpt):
    """BLOOM and BLOOMZ. Their context has no limit; `seq_length` is that of the training."""

    architectures = ("BloomForCausalLM",)
    aliases = ALIASES | {"seq_length": "max_position_embeddings"}
    layouts = (Layout("transformer", "lm_head"), Layout("", "lm_head"))
    table = "word_embeddings"
    names = Names(
        "input_layernorm",
        ("self_attention.query_key_value",),
        "self_attention.dense",
        "post_attention_layernorm",
        "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h",
    )

    def read(self, config: Config) -> None:
        config.assume(max_position_embeddings=2048)
        config.expect(apply_residual_connection_post_layernorm=False, hidden_act="gelu_new")
        # keys about training, and the order of sums in other libraries
        config.skip(
            "bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi"
        )
        config.skip("attention_softmax_in_fp32", "pretraining_tp", "slow_but_exact")
        self.alibi = alibi_slopes(config.count("num_attention_heads"))

    def embed(self, body: Weights, step: StepInputs) -> Node:
        return self.norm(super().embed(body, step), body.at("word_embeddings_layernorm"))
