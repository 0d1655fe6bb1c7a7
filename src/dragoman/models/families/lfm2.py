"""LFM2: most layers mix tokens by a short gated convolution, a few by attention. Source: Liquid AI's LFM2 release."""

from __future__ import annotations

from dragoman.models.blocks.attention import attend, queries_keys_values
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import gated_mlp
from dragoman.models.blocks.nodes import add, multiply, split, split_heads
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import AttentionFacts, ConvolutionFacts, LayerFacts, MlpFacts, ModelFacts
from dragoman.models.families.llama import Llama
from dragoman.models.sources.base import PackedMatrix
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_LAYER_TYPES = ("full_attention", "conv")
# About the first values of training, or names for what other keys say, too.
_UNUSED_KEYS = (
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "theta",
)


class Lfm2(Llama):
    """LFM2 and LFM2.5 of 350M to 2.6B."""

    architectures = ("Lfm2ForCausalLM",)

    def __init__(self, config: Config) -> None:
        config.skip(*_UNUSED_KEYS)
        config.expect(block_use_swiglu=True, use_pos_enc=True)
        self.norm_epsilon = config.number("norm_eps", 1e-5)
        self.is_tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
        self.has_convolution_bias = config.flag("conv_bias")
        if "rope_theta" not in config and "rope_parameters" not in config:
            raise ModelError("config.json has no rope_theta, allowed: a number")
        self.rotary = self.read_rotary(config)
        self.slides, self.window = self.read_slides(config), 0
        self.has_attention = _attention_layers(config)
        self.facts = self.read_facts(config)

    def read_facts(self, config: Config) -> ModelFacts:
        """See `Llama`."""
        mlp = MlpFacts(_inner_size(config), "silu")
        convolution = ConvolutionFacts(config.count("hidden_size"), config.count("conv_L_cache", 3, least=2))
        mixers = [
            self.attention_facts(config, index) if attends else convolution
            for index, attends in enumerate(self.has_attention)
        ]
        return ModelFacts(
            architecture=self.architectures[0],
            vocab_size=config.count("vocab_size"),
            hidden_size=config.count("hidden_size"),
            max_position=self.rotary.max_position,
            layers=tuple(LayerFacts(mixer, mlp) for mixer in mixers),
            long_context_from=self.rotary.long_context_from,
        )

    def last_norm(self, x: Node, body: Weights) -> Node:
        """See `Family`."""
        return self.norm(x, body.at("embedding_norm"))

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """See `Family`."""
        normed = self.norm(x, weights.at("operator_norm"))
        if self.has_attention[layer.index]:
            mixed = self.attention(normed, weights.at("self_attn"), layer)
        else:
            mixed = self.convolution(normed, weights.at("conv"), layer)
        x = add(layer.keep(x), mixed)
        return add(x, self.mlp(self.norm(x, weights.at("ffn_norm")), weights.at("feed_forward"), layer))

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """See `Llama`."""
        facts = layer.attention
        q, k, v = queries_keys_values(x, self.projections(weights, facts), facts)
        attended = attend(*self.heads(q, k, weights, facts), v, layer)
        return linear(attended, weights.at("out_proj"), self.facts.hidden_size)

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Each head's query and key normed."""
        q, k = split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads)
        return self.norm(q, weights.at("q_layernorm")), self.norm(k, weights.at("k_layernorm"))

    def convolution(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Convolved between two gates, all three made of x. Shapes: [T, 1, hidden] -> the same, of the rows kept."""
        facts, bias = self.facts.convolution_layers[layer.index], self.has_convolution_bias
        size = facts.width
        gate_in, gate_out, inner = split(linear(x, weights.at("in_proj"), 3 * size, bias=bias), [size] * 3)
        taps = weights.at("conv").tensor((size, 1, facts.length))
        if isinstance(taps, PackedMatrix):
            raise ModelError("the taps of a convolution are packed, allowed: numbers")
        shift = weights.at("conv").vector(size, "bias") if bias else None
        convolved = layer.convolve(multiply(gate_in, inner), taps.reshape(size, facts.length), shift)
        gated = multiply(layer.keep(gate_out), layer.keep(convolved))
        return linear(gated, weights.at("out_proj"), self.facts.hidden_size, bias=bias)

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """See `Llama`."""
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, MlpFacts)
        gate, down, up = (weights.at(name) for name in ("w1", "w2", "w3"))
        return gated_mlp(x, gate, up, down, facts.inner_size, facts.activation)


def _attention_layers(config: Config) -> tuple[bool, ...]:
    """Whether a layer attends, for each."""
    num_layers = config.count("num_hidden_layers")
    indices = config.value("full_attn_idxs", list(range(num_layers)))
    types = config.choices("layer_types", _LAYER_TYPES, num_layers)
    if types is not None:
        attends = tuple(kind == "full_attention" for kind in types)
    elif isinstance(indices, list):
        attends = tuple(index in indices for index in range(num_layers))
    else:
        raise config.error("full_attn_idxs", "a list of numbers of layers")
    if not any(attends):
        raise ModelError("config.json has no layer that attends, allowed: at least one")
    return attends


def _inner_size(config: Config) -> int:
    """The width of the MLPs, which checkpoints give before it is adjusted."""
    size = config.count("block_ff_dim", config.count("intermediate_size", 12_288))
    factor, multiple = config.number("block_ffn_dim_multiplier", 1.0), config.count("block_multiple_of", 256)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    return -(-int(factor * int(2 * size / 3)) // multiple) * multiple
