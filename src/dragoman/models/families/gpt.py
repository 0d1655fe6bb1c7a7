"""Decoders from before Llama: layer norms, an MLP without a gate, often one matrix of queries, keys and values.

GPT-2, StarCoder 1, GPT-J, CodeGen, GPT-Neo, GPT-NeoX, OPT, BLOOM, MPT and Falcon; `Gpt` is their common part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dragoman.models.blocks.attention import Projections, by_group, in_turn
from dragoman.models.blocks.linear import embedding, linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, MlpFacts, RotaryRule
from dragoman.models.families.base import Layout
from dragoman.models.families.llama import Bias, LayerNorms, Llama, head_counts, head_size
from dragoman.models.rotary import RotaryReading, read_rotary
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


class Gpt(Llama):
    """A decoder like GPT. `positions`: the table of positions, empty = there is none; `first_position`: its first row.

    `turns`: positions rotate heads. `alibi`: each head's deduction by distance.
    """

    aliases: ClassVar[dict[str, str]] = ALIASES
    epsilon = ("layer_norm_epsilon", 1e-5)
    table = "wte"
    layers = "h"
    final_norm = "ln_f"
    layer_norms: LayerNorms = LayerNorms("ln_1", "ln_2")
    attention_name = "attn"
    output_name = "c_proj"
    mlp_names = ("c_fc", "c_proj")
    has_layer_norms = True
    has_gate = False
    qkv_bias: ClassVar[Bias] = True
    output_bias: ClassVar[Bias] = True
    mlp_bias: ClassVar[Bias] = True
    positions: ClassVar[str] = ""
    first_position: ClassVar[int] = 0
    turns: bool = False
    alibi: tuple[float, ...] = ()
    is_tied = True
    unread: tuple[str, ...] = (r"\.att(n|ention)\.(masked_)?bias$", r"\.rotary_emb\.inv_freq$")  # masks and frequencies

    def __init__(self, config: Config) -> None:
        config.rename(self.aliases)
        # n_ctx repeats n_positions; the others are for training
        config.skip("n_ctx", "activation_dropout", "attn_pdrop", "dropout", "init_std", "layerdrop")
        self.read(config)
        super().__init__(config)

    # --- config.json --------------------------------------------------------------------------------------------------

    def read(self, config: Config) -> None: ...

    def read_rotary(self, config: Config) -> RotaryReading:
        if self.turns:
            return super().read_rotary(config)
        return RotaryReading(RotaryRule(()), config.count("max_position_embeddings"))

    def is_turned(self, index: int) -> bool:
        return self.turns

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), alibi_slopes=self.alibi)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
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

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        return by_group(fused, facts)


# GPT-2: a table of positions, and matrices stored [in, out]; StarCoder 1 has one head of keys and values for all.
class Gpt2(Gpt):
    """GPT-2, DistilGPT2, DialoGPT and related models."""

    layouts = (Layout("transformer", "lm_head"), Layout("", "lm_head"))
    qkv_name = "c_attn"
    positions = "wpe"

    def read(self, config: Config) -> None:
        self.is_scaled = config.flag("scale_attn_weights", True)
        self.is_scaled_by_layer = config.flag("scale_attn_by_inverse_layer_idx")
        config.skip("reorder_and_upcast_attn")  # about the precision of scores; here they are f32
        config.skip(
            "n_special", "num_labels", "output_past", "predict_special_tokens"
        )  # from libraries before transformers

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        facts = super().attention_facts(config, index)
        scale = facts.scale if self.is_scaled else 1.0
        return replace(facts, scale=scale / (index + 1) if self.is_scaled_by_layer else scale)

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        return super().layer(x, weights.transposed(), layer)

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        return in_turn(fused, facts)


class GptBigCode(Gpt):
    """StarCoder 1, StarCoderBase, SantaCoder in this layout."""

    layouts = (Layout("transformer", "lm_head"),)
    qkv_name = "c_attn"
    positions = "wpe"

    def read(self, config: Config) -> None:
        config.assume(hidden_act="gelu_pytorch_tanh")
        self.is_scaled = config.flag("scale_attn_weights", True)
        # about other libraries: precision of scores (f32 here), caches and checks
        config.skip(
            "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "max_batch_size"
        )
        config.skip("max_sequence_length", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input")

    def head_counts(self, config: Config) -> tuple[int, int]:
        num_heads = config.count("num_attention_heads")
        num_kv_heads = 1 if config.flag("multi_query", True) else num_heads
        config.expect(num_key_value_heads=num_kv_heads)
        return num_heads, num_kv_heads

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        facts = super().attention_facts(config, index)
        return facts if self.is_scaled else replace(facts, scale=1.0)


# GPT-J and CodeGen: one norm for attention and MLP side by side, positions turn interleaved pairs.
class GptJ(Gpt):
    """GPT-J 6B and its derivatives."""

    layouts = (Layout("transformer", "lm_head"),)
    layer_norms = LayerNorms("ln_1", "ln_1")
    output_name = "out_proj"
    mlp_names = ("fc_in", "fc_out")
    qkv_bias = output_bias = False
    has_head_bias = True
    is_parallel = True
    is_tied = False
    turns = True

    def read(self, config: Config) -> None:
        config.expect(tie_word_embeddings=False, rotary=True, scale_attn_weights=True)

    def read_rotary(self, config: Config) -> RotaryReading:
        return read_rotary(config, config.count("rotary_dim"), is_interleaved=True)


_PARTS = 4  # in which queries, values and keys are stored


class CodeGen(GptJ):
    """CodeGen 1, and 2 of 1B to 16B: queries, values and keys are stored in four parts."""

    qkv_name = "qkv_proj"
    unread = (*GptJ.unread, r"\.attn\.causal_mask$")

    def head_counts(self, config: Config) -> tuple[int, int]:
        counts = super().head_counts(config)
        if counts[0] % _PARTS:
            raise config.error("num_attention_heads", f"a multiple of {_PARTS}")
        return counts

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        size = 3 * facts.query_width
        q, v, k = np.split(np.arange(size).reshape(_PARTS, 3, -1), 3, axis=1)
        return fused.rows(q.reshape(-1), size), fused.rows(k.reshape(-1), size), fused.rows(v.reshape(-1), size)


# GPT-Neo: a table of positions, scores that are not scaled, and a window in every other layer.
_KINDS = ("global", "local")


class GptNeo(Gpt):
    """GPT-Neo 125M, 1.3B and 2.7B, TinyStories."""

    aliases = ALIASES | {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
    layouts = (Layout("transformer", "lm_head"), Layout("", "lm_head"))
    attention_name = "attn.attention"
    output_name = "out_proj"
    positions = "wpe"
    qkv_bias = False

    def read(self, config: Config) -> None:
        config.skip("embed_dropout", "resid_dropout")
        num_layers = config.count("num_hidden_layers")
        pairs = config.value("attention_types", [[list(_KINDS), -(-num_layers // 2)]])
        kinds = _repeated(pairs, num_layers)
        if kinds is None or len(kinds) != num_layers or not set(kinds) <= set(_KINDS):
            raise config.error("attention_types", f"pairs of kinds (global, local) and counts, for {num_layers} layers")
        config.expect(attention_layers=kinds)
        window = config.count("window_size", 256)
        self.windows = [window if kind == "local" else 0 for kind in kinds]

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), scale=1.0, window=self.windows[index])


def _repeated(pairs: Any, most: int) -> list[str] | None:
    """The kind of each layer, of lists of kinds and how often they come; None if that is not what is told."""
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return None
    kinds: list[str] = []
    for group, count in pairs:
        if not isinstance(group, list) or not isinstance(count, int) or not 0 < count <= most:
            return None
        if not all(isinstance(kind, str) for kind in group):
            return None
        kinds += group * count
    return kinds


class WithQueryKeyValue(Gpt):
    """The names that GPT-NeoX, BLOOM and Falcon have in common."""

    layer_norms = LayerNorms()
    output_name = "dense"
    qkv_name = "query_key_value"
    mlp_names = ("dense_h_to_4h", "dense_4h_to_h")


# GPT-NeoX: attention and MLP side by side with a norm each, positions turn a part of each head.
class GptNeoX(WithQueryKeyValue):
    """GPT-NeoX 20B, Pythia, Dolly 2, RedPajama INCITE, the first StableLM."""

    aliases = ALIASES | {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    layouts = (Layout("gpt_neox", "embed_out"),)
    table = "embed_in"
    layers = "layers"
    attention_name = "attention"
    final_norm = "final_layer_norm"
    qkv_bias = output_bias = ("attention_bias", True)
    is_tied = False
    turns = True
    rotary_part = 0.25

    def read(self, config: Config) -> None:
        config.assume(hidden_act="gelu")
        config.skip("custom_pipelines")
        self.is_parallel = config.flag("use_parallel_residual", True)


# OPT: a table of positions whose first two rows are for padding, norms before or after.
class Opt(Gpt):
    """OPT and Galactica. Tables of embeddings may be narrower than the layers, as in OPT 350M."""

    aliases = ALIASES | {"ffn_dim": "intermediate_size"}
    layouts = (Layout("model.decoder", "lm_head"), Layout("decoder", "lm_head"))
    table = "embed_tokens"
    layers = "layers"
    layer_norms = LayerNorms("self_attn_layer_norm", "final_layer_norm")
    attention_name = "self_attn"
    output_name = "out_proj"
    mlp_name = ""
    mlp_names = ("fc1", "fc2")
    final_norm = "final_layer_norm"
    qkv_bias = output_bias = mlp_bias = ("enable_bias", True)
    positions = "embed_positions"
    first_position = 2

    def read(self, config: Config) -> None:
        config.assume(hidden_act="relu")
        # keys of Galactica's files
        config.expect(scale_embeddings=False, learned_embeddings=True)
        self.embedding_size = config.count("word_embed_proj_dim", config.count("hidden_size"))
        self.norms_before = config.flag("do_layer_norm_before", True)
        is_removed = config.flag("_remove_final_layer_norm")
        self.has_final_norm = self.norms_before and not is_removed
        self.has_norm_weights = config.flag("layer_norm_elementwise_affine", True)

    def norm(self, x: Node, weights: Weights) -> Node:
        return layer_norm(x, weights if self.has_norm_weights else None, self.norm_epsilon)

    def embed(self, body: Weights, step: StepInputs) -> Node:
        x = embedding(step.token_ids, body.at(self.table), self.facts.vocab_size, self.embedding_size)
        if self.embedding_size != self.facts.hidden_size:
            x = linear(x, body.at("project_in"), self.facts.hidden_size)
        return add(x, self.embed_positions(body, step))

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        if self.norms_before:
            return super().layer(x, weights, layer)
        mixed = self.mix(x, weights, layer)
        x = self.norm(add(layer.keep(x), mixed), weights.at(self.layer_norms.before_attention))
        return self.norm(add(x, self.mlp(x, weights, layer)), weights.at(self.layer_norms.before_mlp))

    def last_norm(self, x: Node, body: Weights) -> Node:
        x = super().last_norm(x, body) if self.has_final_norm else x
        if self.embedding_size == self.facts.hidden_size:
            return x
        return linear(x, body.at("project_out"), self.embedding_size)


# BLOOM: attention fades with distance, and embeddings are normed.
class Bloom(WithQueryKeyValue):
    """BLOOM and BLOOMZ. Their context has no limit; `seq_length` is that of the training."""

    aliases = ALIASES | {"seq_length": "max_position_embeddings"}
    layouts = (Layout("transformer", "lm_head"), Layout("", "lm_head"))
    table = "word_embeddings"
    attention_name = "self_attention"

    def read(self, config: Config) -> None:
        config.assume(max_position_embeddings=2048)
        config.expect(apply_residual_connection_post_layernorm=False, hidden_act="gelu_new")
        # keys about training, and the order of sums in other libraries
        config.skip(
            "bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi"
        )
        config.skip("attention_softmax_in_fp32", "slow_but_exact")
        self.alibi = alibi_slopes(config.count("num_attention_heads"))

    def embed(self, body: Weights, step: StepInputs) -> Node:
        return self.norm(super().embed(body, step), body.at("word_embeddings_layernorm"))


# MPT: attention fades with distance, nothing has a bias.
class Mpt(Gpt):
    """MPT 7B and 30B. Their context has no limit; `max_seq_len` is that of the training."""

    aliases: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
    }
    layouts = (Layout("transformer", "lm_head"),)
    layers = "blocks"
    layer_norms = LayerNorms("norm_1", "norm_2")
    output_name = "out_proj"
    qkv_name = "Wqkv"
    mlp_name = "ffn"
    mlp_names = ("up_proj", "down_proj")
    final_norm = "norm_f"
    has_norm_bias = qkv_bias = output_bias = mlp_bias = False

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

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        return MlpFacts(config.count("expansion_ratio", 4) * config.count("hidden_size"), "gelu")

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        return in_turn(fused, facts)


# Falcon: few heads of keys and values, attention and MLP side by side; the RW models are more like BLOOM.
class Falcon(WithQueryKeyValue):
    """Falcon RW 1B to 180B and Falcon 2. `RefinedWeb` was the 40B's model type before its layout had a key."""

    aliases = ALIASES | {
        "n_head_kv": "num_key_value_heads",
        "num_kv_heads": "num_key_value_heads",
        "activation": "hidden_act",
        "ffn_hidden_size": "intermediate_size",
    }
    layouts = (Layout("transformer", "lm_head"),)
    table = "word_embeddings"
    attention_name = "self_attention"
    qkv_bias = output_bias = mlp_bias = ("bias", False)

    def read(self, config: Config) -> None:
        config.assume(max_position_embeddings=2048, hidden_act="gelu")
        config.expect(apply_residual_connection_post_layernorm=False)
        self.is_new = config.flag("new_decoder_architecture", config.value("model_type") == "RefinedWeb")
        self.is_parallel = config.flag("parallel_attn", True)
        self.layer_norms = self._layer_norms(config)
        self.turns = not config.flag("alibi")
        if not self.turns:
            config.skip("rope_parameters", "rope_scaling", "rope_theta")  # transformers writes them all the same
            # the bias is added before scores are scaled
            slopes = alibi_slopes(config.count("num_attention_heads"))
            self.alibi = tuple(slope * head_size(config) ** -0.5 for slope in slopes)

    def _layer_norms(self, config: Config) -> LayerNorms:
        if self.is_new and not self.is_parallel:
            raise config.error("parallel_attn", "true with new_decoder_architecture")
        num_norms = config.count("num_ln_in_parallel_attn", 2 if self.is_new else 1)
        if num_norms > 1 + self.is_new:
            raise config.error("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture")
        if num_norms == 2:
            return LayerNorms("ln_attn", "ln_mlp")
        return LayerNorms(before_mlp="input_layernorm") if self.is_parallel else LayerNorms()

    def head_counts(self, config: Config) -> tuple[int, int]:
        num_heads, is_multi_query = config.count("num_attention_heads"), config.flag("multi_query", True)
        if self.is_new:
            return head_counts(config)
        if is_multi_query:
            config.skip("num_key_value_heads")  # checkpoints give the number of all heads there
            return num_heads, 1
        config.expect(num_key_value_heads=num_heads)
        return num_heads, num_heads

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        config.assume(intermediate_size=config.count("ff_factor", 4) * config.count("hidden_size"))
        return super().mlp_facts(config, index)


def alibi_slopes(num_heads: int, largest_exponent: float = 8.0) -> tuple[float, ...]:
    """Each head's deduction from a score per token of distance, 2 ** -(exponent / heads) to 2 ** -exponent.

    Without a power of two heads have every second slope of the next one, then those between. Source: ALiBi,
    arXiv:2108.12409.
    """
    size = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** (-largest_exponent * (i + 1) / size) for i in range(size)]
    return tuple(slopes if size == num_heads else (slopes[1::2] + slopes[::2])[:num_heads])
