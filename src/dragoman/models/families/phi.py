"""Phi 1 to 2: one norm for attention and MLP side by side, positions turn a part of each head."""

from __future__ import annotations

from dragoman.models.blocks.norms import layer_norm
from dragoman.models.config import Config
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt, Names
from dragoman.models.families.llama import head_size
from dragoman.models.rotary import read_rotary
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Phi(Gpt):
    """Phi-1, Phi-1.5 and Phi-2."""

    architectures = ("PhiForCausalLM",)
    layouts = (Layout("model", "lm_head"),)
    table = "embed_tokens"
    layers = "layers"
    names = Names(
        "input_layernorm",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attn.dense",
        "input_layernorm",
        "mlp.fc1",
        "mlp.fc2",
    )
    final_norm = "final_layernorm"
    is_tied = False
    has_head_bias = True

    def read(self, config: Config) -> None:
        config.expect(tie_word_embeddings=False)
        self.has_query_key_norms = config.flag("qk_layernorm")
        self.rotary = read_rotary(config, head_size(config), part=0.5)

    def heads(self, q: Node, k: Node, weights: Weights) -> tuple[Node, Node]:
        if not self.has_query_key_norms:
            return q, k
        names = ("self_attn.q_layernorm", "self_attn.k_layernorm")
        q_weights, k_weights = (weights.at(name) for name in names)
        return layer_norm(q, q_weights, self.norm_epsilon), layer_norm(k, k_weights, self.norm_epsilon)
