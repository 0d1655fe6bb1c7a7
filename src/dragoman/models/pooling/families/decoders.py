"""Decoders of the text families as networks over whole texts, without steps and caches: Qwen3-Embedding and its kin."""

from __future__ import annotations

from typing import Any, cast

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import add, reshape, scaled
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.blocks.whole_texts import WholeTexts
from dragoman.models.config import ModelError
from dragoman.models.families.base import Family, Layout
from dragoman.models.pooling.facts import TextFacts
from dragoman.models.pooling.families.base import TextFamily
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Decoder(TextFamily):
    """A decoder's last hidden states, or its answer about a pair. `sees_behind`: tokens see later ones as well.

    `answer_ids`: the tokens that a score compares, () = the checkpoint has a head that scores, or none is wanted.
    """

    def __init__(
        self,
        family: Family,
        *,
        scores: bool,
        is_causal: bool = True,
        sees_behind: bool = False,
        answer_ids: tuple[int, ...] = (),
    ) -> None:
        facts, reach = family.facts, 0
        attentions = facts.attention_layers
        odd = [
            attention
            for attention in attentions.values()
            if attention.softcap or attention.has_sinks or attention.alibi_slopes or attention.growth
        ]
        if odd or len(attentions) < len(facts.layers) or facts.convolution_layers or facts.pictures is not None:
            raise ModelError(f"architecture {facts.architecture} can generate text, not embed it")
        windows = [attention.window for attention in attentions.values() if attention.window]
        if sees_behind:  # a window lies half before a token, half behind it
            reach, windows = min(windows, default=0) // 2, []
        longest = min([facts.long_context_from or facts.max_position, facts.max_position, *windows])
        self.family = family
        self.scores = scores
        self.answer_ids = answer_ids
        self.facts = TextFacts(
            architecture=facts.architecture,
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            num_layers=len(facts.layers),
            max_tokens=longest,  # behind it, layers with windows would see less
            is_causal=is_causal and not sees_behind,
            window_reach=reach,
        )

    def build(self, weights: Weights) -> Any:
        family = self.family
        family.layouts = (*family.layouts, Layout("", "lm_head"))
        self.unread = (*family.unread, *self.unread, *([] if self.answer_ids else [r"^lm_head\."]))  # type: ignore[misc]
        return super().build(weights)

    def hidden(self, texts: WholeTexts, body: Weights) -> Node:
        family = self.family
        layout = family._layout(body)
        whole = body.at(layout.body)
        step = cast(StepInputs, _Batch(texts, family))
        x = family.begin(family.embed(whole, step), whole, step)
        for index in range(self.facts.num_layers):
            x = family.layer(x, whole.at(f"{family.layers}.{index}"), _Layer(step, index, texts))
        return reshape(family.last_norm(x, whole), -1, self.facts.hidden_size)

    def score(self, hidden: Node, weights: Weights) -> Node:
        """The difference of two tokens' logits, or the head's output."""
        if not self.answer_ids:
            return linear(hidden, weights.at("score").careful(), self.num_scores)
        family, facts = self.family, self.facts
        head = family._head_weights(weights, family._layout(weights)).careful()
        rows = [head.rows([token], facts.vocab_size) for token in self.answer_ids]  # type: ignore[arg-type]
        answers = [linear(hidden, row, 1) for row in rows]
        return answers[0] if len(answers) == 1 else add(answers[0], scaled(answers[1], -1.0))


class _Batch:
    def __init__(self, texts: WholeTexts, family: Family) -> None:
        self.facts = family.facts
        self.token_ids = texts.token_ids
        self.angles = texts.angles
        self.handed_on: dict[str, tuple[Node, ...]] = {}


class _Layer(LayerInputs):
    def __init__(self, step: StepInputs, index: int, texts: WholeTexts) -> None:
        super().__init__(step, index)
        self.whole_texts = texts

    def keep(self, x: Node) -> Node:
        assert self.whole_texts is not None
        return self.whole_texts.keep(x) if self._is_last else x
