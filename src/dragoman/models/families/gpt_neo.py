"""GPT-Neo: a table of positions, scores that are not scaled, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import ALIASES, Gpt, Names

_KINDS = ("global", "local")
_QKV = ("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj")


class GptNeo(Gpt):
    """GPT-Neo 125M, 1.3B and 2.7B, TinyStories."""

    architectures = ("GPTNeoForCausalLM",)
    aliases: ClassVar[dict[str, str]] = {
        **ALIASES,
        "num_heads": "num_attention_heads",
        "num_layers": "num_hidden_layers",
    }
    layouts = (Layout("transformer", "lm_head"), Layout("", "lm_head"))
    names = Names("ln_1", _QKV, "attn.attention.out_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    positions = "wpe"
    has_qkv_bias = False

    def read(self, config: Config) -> None:
        config.skip("embed_dropout", "resid_dropout")
        num_layers = config.count("num_hidden_layers")
        told = config.value("attention_types", [[list(_KINDS), -(-num_layers // 2)]])
        kinds = _repeated(told, num_layers)
        if kinds is None or len(kinds) != num_layers or not set(kinds) <= set(_KINDS):
            raise config.error("attention_types", f"pairs of kinds (global, local) and counts, for {num_layers} layers")
        config.expect(attention_layers=kinds)
        window = config.count("window_size", 256)
        self.windows = [window if kind == "local" else 0 for kind in kinds]

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), scale=1.0, window=self.windows[index])


def _repeated(told: Any, most: int) -> list[str] | None:
    """The kind of each layer, of lists of kinds and how often they come; None if that is not what is told."""
    if not isinstance(told, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in told):
        return None
    kinds: list[str] = []
    for group, count in told:
        if not isinstance(group, list) or not isinstance(count, int) or not 0 < count <= most:
            return None
        if not all(isinstance(kind, str) for kind in group):
            return None
        kinds += group * count
    return kinds
