"""OPT: a table of positions whose first two rows are for padding, norms before or after."""

from __future__ import annotations

from dragoman.models.blocks.embeddings import embedding
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import add
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import ALIASES, Gpt, Names
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Opt(Gpt):
    """OPT and Galactica. Tables of embeddings may be narrower than the layers, as in OPT 350M."""

    architectures = ("OPTForCausalLM",)
    aliases = ALIASES | {"ffn_dim": "intermediate_size"}
    layouts = (Layout("model.decoder", "lm_head"), Layout("decoder", "lm_head"))
    table = "embed_tokens"
    layers = "layers"
    names = Names(
        "self_attn_layer_norm",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attn.out_proj",
        "final_layer_norm",
        "fc1",
        "fc2",
    )
    final_norm = "final_layer_norm"
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
        has_bias = config.flag("enable_bias", True)
        self.has_qkv_bias = self.has_output_bias = self.has_mlp_bias = has_bias

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
        attended = self.attention(x, weights, layer)
        x = self.norm(add(layer.keep(x), attended), weights.at(self.names.attention_norm))
        return self.norm(add(x, self.mlp(x, weights, layer)), weights.at(self.names.mlp_norm))

    def last_norm(self, x: Node, body: Weights) -> Node:
        x = super().last_norm(x, body) if self.has_final_norm else x
        if self.embedding_size == self.facts.hidden_size:
            return x
        return linear(x, body.at("project_out"), self.embedding_size)
