"""ModernBERT: norms before, turned queries and keys, most layers with a window, a gated MLP. Source: arXiv:2412.13663."""

from __future__ import annotations

from typing import ClassVar

from dragoman.models.blocks.attention import in_turn
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, gated_mlp
from dragoman.models.blocks.nodes import add
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.whole_texts import WholeTexts
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import AttentionFacts, RotaryRule
from dragoman.models.pooling.facts import TextFacts
from dragoman.models.pooling.families.base import TextFamily, WordHead, attended, rows_of
from dragoman.models.rotary import rotary_description
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights, halves

_FULL, _SLIDING = "full_attention", "sliding_attention"
_UNUSED = (
    "mlp_dropout", "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index",
    "reference_compile", "repad_logits_with_grad", "initializer_cutoff_factor", "cls_token_id", "layer_norm_eps",
    "position_embedding_type", "tie_word_embeddings", "max_position_embeddings", "classifier_activation", "classifier_bias",
    "classifier_pooling", "global_rope_theta", "local_rope_theta", "sliding_window", "global_attn_every_n_layers",
)  # fmt: skip


class ModernBert(TextFamily):
    prefixes: ClassVar[tuple[str, ...]] = ("", "model")
    table: ClassVar[str] = "embeddings.tok_embeddings"
    unread: ClassVar[tuple[str, ...]] = (*TextFamily.unread, r"^decoder\.", r"^head\.")

    def __init__(self, config: Config, *, scores: bool) -> None:
        config.skip(*_UNUSED)
        self.scores = scores
        self.epsilon = config.positive("norm_eps", 1e-5)
        self.has_bias, self.has_mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
        self.has_norm_bias = config.flag("norm_bias")
        size, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
        if size % num_heads or size // num_heads % 2:
            raise ModelError(
                f"config.json hidden_size is {size}, allowed: num_attention_heads {num_heads} times an even number"
            )
        self.head_size = size // num_heads
        self.num_heads = num_heads
        num_layers = config.count("num_hidden_layers")
        every = config.count("global_attn_every_n_layers", 3)
        kinds = config.choices("layer_types", (_FULL, _SLIDING), num_layers)
        self.slides = [kind == _SLIDING for kind in kinds] if kinds else [bool(i % every) for i in range(num_layers)]
        self.rules = self._rules(config)
        self.inner_size = config.count("intermediate_size")
        self.activation = config.choice("hidden_activation", ACTIVATIONS, "gelu")
        self.head_activation = config.choice("classifier_activation", ACTIVATIONS, "gelu")
        self.has_head_bias = config.flag("classifier_bias")
        self.has_word_bias = config.flag("decoder_bias", True)
        self.scores_mean = scores and config.choice("classifier_pooling", ("cls", "mean"), "cls") == "mean"
        self.facts = TextFacts(
            architecture="ModernBertModel",
            vocab_size=config.count("vocab_size"),
            hidden_size=size,
            num_layers=num_layers,
            max_tokens=config.count("max_position_embeddings", 8192),
            window_reach=config.count("local_attention", 128) // 2 if any(self.slides) else 0,
        )

    def _rules(self, config: Config) -> tuple[RotaryRule, RotaryRule]:
        described = rotary_description(config)
        rules = []
        for kind, key, usual in ((_FULL, "global_rope_theta", 160_000.0), (_SLIDING, "local_rope_theta", 10_000.0)):
            part = described.part(kind) or Config({})
            part.expect(rope_type="default")
            theta = part.positive("rope_theta", config.positive(key, usual))
            part.refuse_unread()
            size = self.head_size
            rules.append(RotaryRule(tuple(theta ** (-2.0 * i / size) for i in range(size // 2))))
        described.skip("rope_theta", "rope_type")
        return rules[0], rules[1]

    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        embeddings = body.at("embeddings")
        x = rows_of(texts.token_ids, embeddings.at("tok_embeddings"), self.facts.vocab_size, self.facts.hidden_size)
        x = self._norm(x, embeddings.at("norm"))
        for index in range(self.facts.num_layers):
            x = self._layer(x, body.at(f"layers.{index}"), texts, index)
        return self._norm(x, body.at("final_norm"))

    def _layer(self, x: Node, weights: Weights, texts: WholeTexts, index: int) -> Node:
        size, is_last = self.facts.hidden_size, index == self.facts.num_layers - 1
        slides = self.slides[index]
        facts = AttentionFacts(
            self.num_heads,
            self.num_heads,
            self.head_size,
            self.head_size,
            self.head_size**-0.5,
            rotary=self.rules[slides],
        )
        normed = x if index == 0 else self._norm(x, weights.at("attn_norm"))
        parts = in_turn(weights.at("attn.Wqkv"), facts)
        read = attended(normed, parts, facts, texts, bias=self.has_bias, is_windowed=slides)
        if is_last:
            read, x = texts.keep(read), texts.keep(x)
        x = add(x, linear(read, weights.at("attn.Wo"), size, bias=self.has_bias))
        gated, raised = halves(weights.at("mlp.Wi"), self.inner_size)
        inside = self._norm(x, weights.at("mlp_norm"))
        down = weights.at("mlp.Wo")
        return add(x, gated_mlp(inside, gated, raised, down, self.inner_size, self.activation, bias=self.has_mlp_bias))

    def score(self, hidden: Node, weights: Weights) -> Node:
        head = weights.at("head")
        dense = linear(hidden, head.at("dense").careful(), self.facts.hidden_size, bias=self.has_head_bias)
        normed = self._norm(ACTIVATIONS[self.head_activation](dense), head.at("norm"))
        return linear(normed, weights.at("classifier").careful(), self.num_scores, bias=True)

    def word_head(self) -> WordHead:
        names = "head.dense", "head.norm", "decoder.weight", "decoder.bias"
        biases = self.has_head_bias, self.has_norm_bias, self.has_word_bias
        return WordHead(*names, self.head_activation, self.epsilon, *biases)

    def _norm(self, x: Node, weights: Weights) -> Node:
        return layer_norm(x, weights, self.epsilon, bias=self.has_norm_bias)
