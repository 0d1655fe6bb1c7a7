"""BERT and its relatives: RoBERTa and XLM-RoBERTa, DistilBERT, MPNet, and Nomic's, GTE's and Jina's, which rotate heads.

Sources: arXiv:1810.04805, arXiv:1907.11692, arXiv:1911.02116, arXiv:1910.01108, arXiv:2004.09297; of those that rotate
arXiv:2402.01613, arXiv:2407.19669, arXiv:2409.10173; "ntk" scaling: https://kexue.fm/archives/9706, equation 6.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import in_turn
from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS, gated_mlp, plain_mlp
from dragoman.models.blocks.nodes import add, multiply
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.whole_texts import WholeTexts
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import AttentionFacts, RotaryRule
from dragoman.models.pooling.facts import TextFacts
from dragoman.models.pooling.families.base import (
    LayerNames,
    ScoreHead,
    TextFamily,
    WordHead,
    attended,
    embedded_tokens,
)
from dragoman.models.pooling.task_adapters import TaskAdapters
from dragoman.models.sources.base import Array, PackedMatrix
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights, halves

_UNUSED = (
    "dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "vocab_files", "directionality",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    "output_past", "model_name", "tie_weights_", "tie_word_embeddings", "initializer_factor", "embedding_size",
)  # fmt: skip


class PostNorm(TextFamily):
    """An encoder whose norms come behind attention and MLP. `embedding_norm`: behind the sum of the tables' rows.

    `has_bias`: of attention. `is_gated`: the MLP is, and has no biases but `has_down_bias`. `num_positions`: rows of the
    table of positions, 0 = there is none. Source: arXiv:1810.04805.
    """

    architecture: ClassVar[str]
    names: ClassVar[LayerNames] = LayerNames()
    layers: ClassVar[str] = "encoder.layer"
    embedding_norm: ClassVar[str] = "embeddings.LayerNorm"
    has_bias: ClassVar[bool] = True
    is_gated: ClassVar[bool] = False
    has_down_bias: ClassVar[bool] = True
    default_epsilon: ClassVar[float] = 1e-12
    default_activation: ClassVar[str] = "gelu"
    default_types: ClassVar[int]
    num_positions: int = 0

    def __init__(self, config: Config, *, scores: bool) -> None:
        self.scores = scores
        self.epsilon = config.positive("layer_norm_eps", self.default_epsilon)
        self.attention = self.read_attention(config)
        self.inner_size = config.count("intermediate_size")
        self.activation = config.choice("hidden_act", ACTIVATIONS, self.default_activation)
        self.facts = TextFacts(
            architecture=self.architecture,
            vocab_size=config.count("vocab_size"),
            hidden_size=config.count("hidden_size"),
            num_layers=config.count("num_hidden_layers"),
            max_tokens=self.read_longest(config),
            num_types=config.count("type_vocab_size", self.default_types, least=0) if self.default_types else 0,
        )

    @abstractmethod
    def read_attention(self, config: Config) -> AttentionFacts: ...

    def read_longest(self, config: Config) -> int:
        return config.count("max_position_embeddings")

    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        x = layer_norm(self.embedded(texts, body.at("embeddings")), body.at(self.embedding_norm), self.epsilon)
        for index in range(self.facts.num_layers):
            is_last = index == self.facts.num_layers - 1
            x = self._layer(x, body.at(f"{self.layers}.{index}"), texts, is_last=is_last)
        return x

    def embedded(self, texts: WholeTexts, tables: Weights) -> Node:
        return embedded_tokens(texts, tables, self.facts, self.num_positions)

    def _layer(self, x: Node, weights: Weights, texts: WholeTexts, *, is_last: bool) -> Node:
        """Shapes: x [T, hidden] -> the same; of the last layer the kept rows."""
        names, parts = self.names, [weights.at(name) for name in self.names.qkv]
        parts = parts if len(parts) > 1 else list(in_turn(parts[0], self.attention))
        read = attended(x, parts, self.attention, texts, bias=self.has_bias)
        if is_last:
            read, x = texts.keep(read), texts.keep(x)
        mixed = linear(read, weights.at(names.output), self.facts.hidden_size, bias=self.has_bias)
        x = layer_norm(add(x, mixed), weights.at(names.attention_norm), self.epsilon)
        return layer_norm(add(x, self._mlp(x, weights)), weights.at(names.mlp_norm), self.epsilon)

    def _mlp(self, x: Node, weights: Weights) -> Node:
        first, *second, down = (weights.at(name) for name in self.names.mlp)
        if not self.is_gated:
            return plain_mlp(x, first, down, self.inner_size, self.activation)
        gate, up = (first, second[0]) if second else halves(first, self.inner_size)[::-1]
        if not self.has_down_bias:
            return gated_mlp(x, gate, up, down, self.inner_size, self.activation)
        gated, raised = linears(x, [gate, up], [self.inner_size] * 2, is_fused=False)
        return linear(multiply(ACTIVATIONS[self.activation](gated), raised), down, self.facts.hidden_size, bias=True)


class Bert(PostNorm):
    """BERT: a table of positions. Of relatives these begin at `offset`, and the table has as many more rows."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "bert")
    unread: ClassVar[tuple[str, ...]] = (*TextFamily.unread, r"^linear\.weight$")  # ColBERT's is read as a Dense module
    architecture: ClassVar[str] = "BertModel"
    default_types: ClassVar[int] = 2

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.expect(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
        config.skip(*_UNUSED)
        self.num_positions, self.offset = config.count("max_position_embeddings"), self.read_offset(config)
        super().__init__(config, scores=scores)
        self.facts = replace(self.facts, first_position=self.offset)

    def read_attention(self, config: Config) -> AttentionFacts:
        size, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
        if size % num_heads:
            raise ModelError(
                f"config.json hidden_size is {size}, allowed: a multiple of num_attention_heads {num_heads}"
            )
        head = size // num_heads
        return AttentionFacts(num_heads, num_heads, head, head, head**-0.5)

    def read_offset(self, config: Config) -> int:
        return 0

    def read_longest(self, config: Config) -> int:
        return self.num_positions - self.offset

    def word_head(self) -> WordHead:
        at = "cls.predictions"
        names = f"{at}.transform.dense", f"{at}.transform.LayerNorm", f"{at}.decoder.weight", f"{at}.bias"
        return WordHead(*names, self.activation, self.epsilon)


class Roberta(Bert):
    """RoBERTa, XLM-RoBERTa and CamemBERT: positions begin behind the padding's."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "roberta")
    architecture: ClassVar[str] = "XLMRobertaModel"
    score_head: ClassVar[ScoreHead] = ScoreHead("classifier.dense", "classifier.out_proj", is_in_body=False)

    def read_offset(self, config: Config) -> int:
        return config.count("pad_token_id", 1, least=0) + 1

    def word_head(self) -> WordHead:
        names = "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight", "lm_head.bias"
        return WordHead(*names, "gelu", self.epsilon)


class DistilBert(Bert):
    """DistilBERT: BERT by other names, without types of tokens."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "distilbert")
    layers: ClassVar[str] = "transformer.layer"
    default_types: ClassVar[int] = 0
    architecture: ClassVar[str] = "DistilBertModel"
    score_head: ClassVar[ScoreHead] = ScoreHead("pre_classifier", activation=ops.relu, is_in_body=False)
    unread: ClassVar[tuple[str, ...]] = (*TextFamily.unread, r"^vocab_")
    names: ClassVar[LayerNames] = LayerNames(
        ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.out_lin",
        "sa_layer_norm",
        ("ffn.lin1", "ffn.lin2"),
        "output_layer_norm",
    )

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.rename(
            {
                "dim": "hidden_size",
                "n_heads": "num_attention_heads",
                "n_layers": "num_hidden_layers",
                "hidden_dim": "intermediate_size",
                "activation": "hidden_act",
            }
        )
        super().__init__(config, scores=scores)

    def word_head(self) -> WordHead:
        names = "vocab_transform", "vocab_layer_norm", "vocab_projector.weight", "vocab_projector.bias"
        return WordHead(*names, self.activation, self.epsilon)


_BUCKETS, _FARTHEST = 32, 128  # MPNet's config.json does not say them


class MPNet(Roberta):
    """MPNet: RoBERTa with biases by distance, the same in all layers, and without types of tokens."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "mpnet")
    default_types: ClassVar[int] = 0
    architecture: ClassVar[str] = "MPNetModel"
    names: ClassVar[LayerNames] = LayerNames(
        ("attention.attn.q", "attention.attn.k", "attention.attn.v"), "attention.attn.o", "attention.LayerNorm"
    )

    def __init__(self, config: Config, *, scores: bool) -> None:
        super().__init__(config, scores=scores)
        self.num_buckets = config.count("relative_attention_num_buckets", _BUCKETS)
        self.facts = replace(self.facts, num_distances=self.facts.max_tokens)

    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        table = body.at("encoder.relative_attention_bias").matrix(self.num_buckets, self.attention.num_heads)
        if isinstance(table, PackedMatrix):
            raise ModelError("the position biases are packed, allowed: plain numbers")
        most = self.facts.num_distances - 1
        distances = np.arange(-most, most + 1)
        texts.bias(constant(np.asarray(table, dtype=np.float32)[distance_buckets(distances, self.num_buckets)]))
        return super().hidden(texts, body)


def distance_buckets(distances: Array, num_buckets: int) -> Array:
    """The bucket of each distance, key minus query: exact near by, then as their logarithm. Source: arXiv:1910.10683."""
    half = num_buckets // 2
    exact = half // 2
    size = np.abs(distances)
    logarithm = np.log(np.maximum(size, 1).astype(np.float32) / exact) / np.float32(np.log(_FARTHEST / exact))
    far = exact + (logarithm * (half - exact)).astype(np.int64)
    buckets: Array = np.where(distances > 0, half, 0) + np.where(size < exact, size, np.minimum(far, half - 1))
    return buckets


_UNUSED_OF_TURNED = ("dropout", "tie_word_embeddings", "position_embedding_type", "use_flash_attn")


class TurnedBert(PostNorm):
    """Relatives of BERT whose positions turn heads, with one matrix of queries, keys and values."""

    theta: ClassVar[float]
    default_types: ClassVar[int] = 1

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.skip(*_UNUSED_OF_TURNED)
        super().__init__(config, scores=scores)

    def read_attention(self, config: Config) -> AttentionFacts:
        size, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
        head = config.count("head_dim", size // num_heads)
        if head * num_heads != size or head % 2:
            raise ModelError(
                f"config.json hidden_size is {size}, allowed: num_attention_heads {num_heads} times an even number"
            )
        return AttentionFacts(num_heads, num_heads, head, head, head**-0.5, rotary=self.read_rule(config, head))

    def read_rule(self, config: Config, head: int) -> RotaryRule:
        described = config.part("rope_parameters") or Config({})
        described.expect(rope_type="default")
        theta = described.positive("rope_theta", config.positive("rope_theta", self.theta))
        described.refuse_unread()
        shrinks = 1.0
        if (scaling := config.part("rope_scaling")) is not None:
            factor = self.read_ntk(scaling)
            if factor > 1:
                theta, shrinks = theta * factor, factor ** (2 / head)
        return RotaryRule(tuple(theta ** (-2.0 * i / head) / shrinks for i in range(head // 2)))

    def read_ntk(self, scaling: Config) -> float:
        """The growth of contexts beyond those of the training. Raises: ModelError for any other scaling."""
        raise scaling.error("type", "no rope_scaling")


class Nomic(TurnedBert):
    """Nomic Embed 1 and 1.5: without biases, with a SwiGLU."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "nomic_bert", "bert")
    architecture = "NomicBertModel"
    layers = "encoder.layers"
    embedding_norm = "emb_ln"
    names = LayerNames(("attn.Wqkv",), "attn.out_proj", "norm1", ("mlp.fc12", "mlp.fc11", "mlp.fc2"), "norm2")
    has_bias = has_down_bias = False
    is_gated = True
    theta = 1000.0
    default_types = 2
    default_activation = "silu"

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.rename(
            {
                "n_embd": "hidden_size",
                "n_head": "num_attention_heads",
                "n_layer": "num_hidden_layers",
                "n_inner": "intermediate_size",
                "n_positions": "max_position_embeddings",
                "layer_norm_epsilon": "layer_norm_eps",
                "rotary_emb_base": "rope_theta",
            }
        )
        config.expect(
            activation_function="swiglu", prenorm=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False,
            rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None,
            causal=False, parallel_block=False, parallel_block_tied_norm=False, use_rms_norm=False,
            scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, num_experts=0, moe_every_n_layers=0,
        )  # fmt: skip
        config.skip(
            "attn_pdrop", "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "pad_vocab_size_multiple",
            "reorder_and_upcast_attn", "use_xentropy", "resid_pdrop",
        )  # fmt: skip
        super().__init__(config, scores=scores)

    def read_longest(self, config: Config) -> int:
        """The length of the training: behind it the released code's angles change with the batch."""
        longest = super().read_longest(config)
        return min(longest, config.count("max_trained_positions", longest))


class Gte(TurnedBert):
    """GTE 1.5 and mGTE: biases in attention, a gated MLP."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "new", "gte")
    architecture = "GteModel"
    names = LayerNames(
        ("attention.qkv_proj",), "attention.o_proj", "attn_ln", ("mlp.up_gate_proj", "mlp.down_proj"), "mlp_ln"
    )
    is_gated = True
    theta = 160_000.0

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.expect(layer_norm_type="layer_norm", logn_attention_scale=False, pack_qkv=True)
        if config.value("position_embedding_type", "rope") != "rope":
            raise config.error("position_embedding_type", '"rope"')
        config.skip(
            "logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention", "padding_side",
        )  # fmt: skip
        super().__init__(config, scores=scores)

    def read_ntk(self, scaling: Config) -> float:
        kind = scaling.choice("type", ("ntk",), "ntk")
        factor = scaling.positive("factor")
        scaling.expect(mixed_b=None, rope_type=kind)
        scaling.refuse_unread()
        return factor

    def word_head(self) -> WordHead:
        names = "lm_head.dense", "lm_head.norm", "lm_head.decoder.weight", "lm_head.decoder.bias"
        return WordHead(*names, self.activation, self.epsilon)


class Jina(TurnedBert):
    """Jina Embeddings 3 without its adapters, as transformers writes it."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "roberta")
    architecture = "JinaEmbeddingsV3Model"
    layers = "encoder.layers"
    embedding_norm = "emb_ln"
    names = LayerNames(("mixer.Wqkv",), "mixer.out_proj", "norm1", ("mlp.fc1", "mlp.fc2"), "norm2")
    theta = 20_000.0
    default_epsilon = 1e-5

    def read_longest(self, config: Config) -> int:
        return super().read_longest(config) - 2


class JinaTasks(Jina):
    """Jina Embeddings 3 as it was released, with an adapter for each task. Its config.json is XLM-RoBERTa's and more."""

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.rename({"rotary_emb_base": "rope_theta"})
        if config.value("position_embedding_type") != "rotary":
            raise config.error("position_embedding_type", '"rotary"')
        config.expect(load_trained_adapters=True, use_reg_tokens=False, truncate_dim=None, emb_pooler="mean")
        config.skip(
            "lora_dropout_p", "lora_main_params_trainable", "matryoshka_dimensions", "task_instructions", "output_past",
        )  # fmt: skip
        super().__init__(config, scores=scores)
        tasks = config.value("lora_adaptations")
        assert isinstance(tasks, list)  # the recipe has checked it
        rank = config.count("lora_rank")
        self.scale = config.positive("lora_alpha") / rank
        self.facts = replace(self.facts, num_tasks=len(tasks), task_rank=rank)
        if self.facts.num_types != 1:
            raise config.error("type_vocab_size", "1")

    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        assert texts.tasks is not None
        facts = self.facts
        body.adapting = TaskAdapters(texts.tasks, body.root(), facts.num_tasks, facts.task_rank, self.scale)
        return super().hidden(texts, body)

    def embedded(self, texts: WholeTexts, tables: Weights) -> Node:
        x, size, adapters = super().embedded(texts, tables), self.facts.hidden_size, tables.adapting
        assert isinstance(adapters, TaskAdapters)
        words, types = (tables.at(f"{name}_embeddings").name() for name in ("word", "token_type"))
        x = adapters.of_rows(x, texts.token_ids, words, self.facts.vocab_size, size)
        return adapters.of_rows(x, None, types, 1, size)
