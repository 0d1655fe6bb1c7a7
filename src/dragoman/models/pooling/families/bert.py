"""BERT and its relatives with norms behind: RoBERTa and XLM-RoBERTa, DistilBERT, MPNet.

Sources: arXiv:1810.04805, arXiv:1907.11692, arXiv:1911.02116, arXiv:1910.01108, arXiv:2004.09297.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.whole_texts import WholeTexts
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import AttentionFacts
from dragoman.models.pooling.facts import TextFacts
from dragoman.models.pooling.families.base import (
    LayerNames,
    PostNormLayer,
    ScoreHead,
    TextFamily,
    WordHead,
    embedded_tokens,
    post_norm_layer,
)
from dragoman.models.sources.base import Array, PackedMatrix
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights

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
