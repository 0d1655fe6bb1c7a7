"""BERT and its relatives: RoBERTa and XLM-RoBERTa, DistilBERT, MPNet, and Nomic's, GTE's and Jina's, which rotate heads.

Sources: arXiv:1810.04805, arXiv:1907.11692, arXiv:1911.02116, arXiv:1910.01108, arXiv:2004.09297; of those that rotate
arXiv:2402.01613, arXiv:2407.19669, arXiv:2409.10173; "ntk" scaling: https://kexue.fm/archives/9706, equation 6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

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
    PostNormLayer,
    ScoreHead,
    TextFamily,
    WordHead,
    attended,
    embedded_tokens,
    post_norm_layer,
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


class Bert(TextFamily):
    """BERT. `offset`: of positions; the table has as many more rows."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "bert")
    unread: ClassVar[tuple[str, ...]] = (*TextFamily.unread, r"^linear\.weight$")  # ColBERT's is read as a Dense module
    names: ClassVar[LayerNames] = LayerNames()
    layers: ClassVar[str] = "encoder.layer"
    default_epsilon: ClassVar[float] = 1e-12
    default_types: ClassVar[int] = 2
    architecture: ClassVar[str] = "BertModel"

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.expect(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
        config.skip(*_UNUSED)
        self.scores = scores
        self.epsilon = config.positive("layer_norm_eps", self.default_epsilon)
        size, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
        if size % num_heads:
            raise ModelError(
                f"config.json hidden_size is {size}, allowed: a multiple of num_attention_heads {num_heads}"
            )
        head = size // num_heads
        self.attention = AttentionFacts(num_heads, num_heads, head, head, head**-0.5)
        inner_size, activation = config.count("intermediate_size"), config.choice("hidden_act", ACTIVATIONS, "gelu")
        self.layer = PostNormLayer(self.names, self.attention, inner_size, activation, self.epsilon)
        self.num_positions = config.count("max_position_embeddings")
        self.offset = self.read_offset(config)
        self.facts = TextFacts(
            architecture=self.architecture,
            vocab_size=config.count("vocab_size"),
            hidden_size=size,
            num_layers=config.count("num_hidden_layers"),
            max_tokens=self.num_positions - self.offset,
            first_position=self.offset,
            num_types=config.count("type_vocab_size", self.default_types, least=0) if self.default_types else 0,
        )

    def read_offset(self, config: Config) -> int:
        return 0

    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        tables = body.at("embeddings")
        x = layer_norm(
            embedded_tokens(texts, tables, self.facts, self.num_positions), tables.at("LayerNorm"), self.epsilon
        )
        for index in range(self.facts.num_layers):
            is_last = index == self.facts.num_layers - 1
            x = post_norm_layer(x, body.at(f"{self.layers}.{index}"), self.layer, texts, is_last=is_last)
        return x

    def word_head(self) -> WordHead:
        at = "cls.predictions"
        names = f"{at}.transform.dense", f"{at}.transform.LayerNorm", f"{at}.decoder.weight", f"{at}.bias"
        return WordHead(*names, self.layer.activation, self.epsilon)


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
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm", "ffn.lin1",
        "ffn.lin2", "output_layer_norm",
    )  # fmt: skip

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
        return WordHead(*names, self.layer.activation, self.epsilon)


_BUCKETS, _FARTHEST = 32, 128  # MPNet's config.json does not say them


class MPNet(Roberta):
    """MPNet: RoBERTa with biases by distance, the same in all layers, and without types of tokens."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "mpnet")
    default_types: ClassVar[int] = 0
    architecture: ClassVar[str] = "MPNetModel"
    names: ClassVar[LayerNames] = LayerNames(
        "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm"
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


class Names(NamedTuple):
    """Names of a layer's parts. Without `up_gate` the matrices are stored alone; without `gate`, too, there is none."""

    layers: str
    embedding_norm: str
    qkv: str
    output: str
    attention_norm: str
    up_gate: str
    gate: str
    up: str
    down: str
    mlp_norm: str


class TurnedBert(TextFamily):
    architecture: ClassVar[str]
    names: ClassVar[Names]
    has_bias: ClassVar[bool]  # of attention
    has_down_bias: ClassVar[bool]
    theta: ClassVar[float]
    epsilon: ClassVar[float] = 1e-12
    num_types: ClassVar[int]
    activation: ClassVar[str]

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.skip(*_UNUSED_OF_TURNED)
        self.scores = scores
        size, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
        head = config.count("head_dim", size // num_heads)
        if head * num_heads != size or head % 2:
            raise ModelError(
                f"config.json hidden_size is {size}, allowed: num_attention_heads {num_heads} times an even number"
            )
        self.norm_epsilon = config.positive("layer_norm_eps", self.epsilon)
        self.inner_size = config.count("intermediate_size")
        self.act = config.choice("hidden_act", ACTIVATIONS, self.activation)
        self.attention = AttentionFacts(
            num_heads, num_heads, head, head, head**-0.5, rotary=self.read_rule(config, head)
        )
        self.facts = TextFacts(
            architecture=self.architecture,
            vocab_size=config.count("vocab_size"),
            hidden_size=size,
            num_layers=config.count("num_hidden_layers"),
            max_tokens=self.read_longest(config),
            num_types=config.count("type_vocab_size", self.num_types, least=0),
        )

    def read_longest(self, config: Config) -> int:
        return config.count("max_position_embeddings")

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

    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        facts, names = self.facts, self.names
        table = body.at("embeddings")
        x = self.embedded(texts, table)
        x = layer_norm(x, body.at(names.embedding_norm), self.norm_epsilon)
        for index in range(facts.num_layers):
            is_last = index == facts.num_layers - 1
            x = self._layer(x, body.at(f"{names.layers}.{index}"), texts, is_last=is_last)
        return x

    def embedded(self, texts: WholeTexts, table: Weights) -> Node:
        return embedded_tokens(texts, table, self.facts)

    def _layer(self, x: Node, weights: Weights, texts: WholeTexts, *, is_last: bool) -> Node:
        names, parts = self.names, in_turn(weights.at(self.names.qkv), self.attention)
        read = attended(x, parts, self.attention, texts, bias=self.has_bias)
        if is_last:
            read, x = texts.keep(read), texts.keep(x)
        mixed = linear(read, weights.at(names.output), self.facts.hidden_size, bias=self.has_bias)
        x = layer_norm(add(x, mixed), weights.at(names.attention_norm), self.norm_epsilon)
        return layer_norm(add(x, self._mlp(x, weights)), weights.at(names.mlp_norm), self.norm_epsilon)

    def _mlp(self, x: Node, weights: Weights) -> Node:
        names, down = self.names, weights.at(self.names.down)
        if not names.gate and not names.up_gate:
            return plain_mlp(x, weights.at(names.up), down, self.inner_size, self.act)
        if names.up_gate:
            up, gate = halves(weights.at(names.up_gate), self.inner_size)
        else:
            up, gate = weights.at(names.up), weights.at(names.gate)
        if not self.has_down_bias:
            return gated_mlp(x, gate, up, down, self.inner_size, self.act)
        gated, raised = linears(x, [gate, up], [self.inner_size] * 2, is_fused=False)
        return linear(multiply(ACTIVATIONS[self.act](gated), raised), down, self.facts.hidden_size, bias=True)


class Nomic(TurnedBert):
    """Nomic Embed 1 and 1.5: without biases, with a SwiGLU."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "nomic_bert", "bert")
    architecture = "NomicBertModel"
    names = Names(
        "encoder.layers",
        "emb_ln",
        "attn.Wqkv",
        "attn.out_proj",
        "norm1",
        "",
        "mlp.fc12",
        "mlp.fc11",
        "mlp.fc2",
        "norm2",
    )
    has_bias = False
    has_down_bias = False
    theta = 1000.0
    num_types = 2
    activation = "silu"

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
    names = Names(
        "encoder.layer", "embeddings.LayerNorm", "attention.qkv_proj", "attention.o_proj", "attn_ln", "mlp.up_gate_proj", "",
        "", "mlp.down_proj", "mlp_ln",
    )  # fmt: skip
    has_bias = True
    has_down_bias = True
    theta = 160_000.0
    num_types = 1
    activation = "gelu"

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
        return WordHead(*names, self.act, self.norm_epsilon)


class Jina(TurnedBert):
    """Jina Embeddings 3 without its adapters, as transformers writes it."""

    prefixes: ClassVar[tuple[str, ...]] = ("", "roberta")
    architecture = "JinaEmbeddingsV3Model"
    names = Names(
        "encoder.layers", "emb_ln", "mixer.Wqkv", "mixer.out_proj", "norm1", "", "", "mlp.fc1", "mlp.fc2", "norm2"
    )
    has_bias = True
    has_down_bias = True
    theta = 20_000.0
    epsilon = 1e-5
    num_types = 1
    activation = "gelu"

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

    def embedded(self, texts: WholeTexts, table: Weights) -> Node:
        x, size, adapters = super().embedded(texts, table), self.facts.hidden_size, table.adapting
        assert isinstance(adapters, TaskAdapters)
        words, types = (table.at(f"{name}_embeddings").name() for name in ("word", "token_type"))
        x = adapters.of_rows(x, texts.token_ids, words, self.facts.vocab_size, size)
        return adapters.of_rows(x, None, types, 1, size)
