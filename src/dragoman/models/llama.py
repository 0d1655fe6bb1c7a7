"""Builds the graph of a Llama-family decoder straight from config.json and safetensors.

Does: one function per block of the architecture. Does not: compile, run or sample.
Called by models.loader through the registry, once per start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.config import LlamaConfig, inverse_frequencies
from dragoman.models.layers import (
    AttentionShape,
    Node,
    PagedInputs,
    StoredType,
    apply_rotary,
    cache_parameter,
    embedding,
    linear,
    merge_heads,
    paged_attention,
    rms_norm,
    rotary_angles,
    split_heads,
)
from dragoman.models.weights import Checkpoint

Array: TypeAlias = np.ndarray[Any, Any]
ProgressCallback = Callable[[int, int], None]  # layers done, layers in all


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How weights are stored in the graph. `max_columns`: those of a product, wider ones are summed up; None = no limit."""

    stored_type: StoredType
    max_columns: int | None = None

    @property
    def fuses_projections(self) -> bool:
        """One matmul for QKV and one for gate and up: pays for int4, where a lone sequence is bound by calls.

        For int8 it is no faster, and apart the plugin folds the activation into the gate's matmul.
        """
        return self.stored_type == "int4"


class LlamaBuilder:
    """Builds one graph; used once and thrown away.

    Inputs (T tokens, S sequences): input_ids i64 [T], position_ids i64 [T], past_lens i32 [S], subsequence_begins
    i32 [S+1], block_indices i32 [B], block_indices_begins i32 [S+1], max_context_len i32 [], sampled_tokens_indices
    i64 [R], key_cache.N and value_cache.N. Output: logits f32 [R, vocab].
    """

    def __init__(self, config: LlamaConfig, checkpoint: Checkpoint, options: BuildOptions) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._options = options
        self._parameters: list[Any] = []

    def build(self, progress: ProgressCallback | None = None) -> ov.Model:
        """The graph, weights compressed. Raises: ModelError if the checkpoint lacks a tensor or its shape differs."""
        config = self._config
        token_ids, position_ids = self._parameter("input_ids"), self._parameter("position_ids")
        paged = PagedInputs(
            past_lens=self._parameter("past_lens", ov.Type.i32),
            subsequence_begins=self._parameter("subsequence_begins", ov.Type.i32),
            block_indices=self._parameter("block_indices", ov.Type.i32),
            block_indices_begins=self._parameter("block_indices_begins", ov.Type.i32),
            max_context_len=self._parameter("max_context_len", ov.Type.i32, ov.PartialShape([])),
        )
        sampled = self._parameter("sampled_tokens_indices")
        angles = rotary_angles(position_ids, inverse_frequencies(config))
        x = self._embed(token_ids)
        for layer in range(config.num_layers):
            x = self._layer(x, layer, angles, paged)
            if progress is not None:
                progress(layer + 1, config.num_layers)
        x = ops.gather(x, sampled, ops.constant(np.array(0, dtype=np.int64))).output(
            0
        )  # before the head: saves its cost
        x = rms_norm(x, self._tensor("model.norm.weight", config.hidden_size), config.rms_norm_eps)
        return ov.Model([self._head(x)], self._parameters, config.architecture)

    def _parameter(self, name: str, dtype: Any = ov.Type.i64, shape: ov.PartialShape | None = None) -> Node:
        parameter = ops.parameter(ov.PartialShape([-1]) if shape is None else shape, dtype, name=name)
        parameter.output(0).set_names({name})
        self._parameters.append(parameter)
        return parameter.output(0)

    def _tensor(self, name: str, *shape: int) -> Array:
        return self._checkpoint.tensor(name, shape)

    def _embed(self, token_ids: Node) -> Node:
        table = self._tensor("model.embed_tokens.weight", self._config.vocab_size, self._config.hidden_size)
        return embedding(token_ids, table, self._options.stored_type)

    def _head(self, x: Node) -> Node:
        config = self._config
        tied = config.tie_word_embeddings or "lm_head.weight" not in self._checkpoint
        name = "model.embed_tokens.weight" if tied else "lm_head.weight"
        logits = self._linear(x, self._tensor(name, config.vocab_size, config.hidden_size))
        flat = ops.reshape(logits, ops.constant(np.array([-1, config.vocab_size], dtype=np.int64)), special_zero=False)
        flat.output(0).set_names({"logits"})
        return flat.output(0)

    def _layer(self, x: Node, layer: int, angles: tuple[Node, Node], paged: PagedInputs) -> Node:
        config, prefix = self._config, f"model.layers.{layer}"
        weight = self._tensor(f"{prefix}.input_layernorm.weight", config.hidden_size)
        attention = self._attention(rms_norm(x, weight, config.rms_norm_eps), layer, angles, paged)
        x = ops.add(x, attention).output(0)
        weight = self._tensor(f"{prefix}.post_attention_layernorm.weight", config.hidden_size)
        mlp = self._mlp(rms_norm(x, weight, config.rms_norm_eps), f"{prefix}.mlp")
        return ops.add(x, mlp).output(0)

    def _attention(self, x: Node, layer: int, angles: tuple[Node, Node], paged: PagedInputs) -> Node:
        config, prefix = self._config, f"model.layers.{layer}.self_attn"
        size = config.head_size
        widths = [config.num_heads * size, config.num_kv_heads * size, config.num_kv_heads * size]
        names = [f"{prefix}.{name}_proj" for name in "qkv"]
        q, k, v = self._projections(x, names, widths, has_bias=config.attention_bias)
        q = apply_rotary(split_heads(q, config.num_heads, size), *angles, size)
        k = apply_rotary(split_heads(k, config.num_kv_heads, size), *angles, size)
        caches = (cache_parameter(f"key_cache.{layer}"), cache_parameter(f"value_cache.{layer}"))
        self._parameters.extend(caches)
        shape = AttentionShape(config.num_heads, config.num_kv_heads, size)
        heads = [merge_heads(part, width) for part, width in zip((q, k, v), widths, strict=True)]
        attended = paged_attention((heads[0], heads[1], heads[2]), caches, paged, shape)
        attended = ops.unsqueeze(attended, ops.constant(np.array(1, dtype=np.int64))).output(0)
        return self._projection(attended, f"{prefix}.o_proj", config.hidden_size, widths[0], config.attention_bias)

    def _mlp(self, x: Node, prefix: str) -> Node:
        config = self._config
        size = config.intermediate_size
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        gate, up = self._projections(x, names, [size, size], has_bias=config.mlp_bias)
        activated = ops.multiply(ops.swish(gate), up).output(0)
        return self._projection(activated, f"{prefix}.down_proj", config.hidden_size, size, config.mlp_bias)

    def _projection(self, x: Node, name: str, width: int, columns: int, has_bias: bool) -> Node:
        bias = self._tensor(f"{name}.bias", width) if has_bias else None
        return self._linear(x, self._tensor(f"{name}.weight", width, columns), bias)

    def _linear(self, x: Node, weight: Array, bias: Array | None = None) -> Node:
        return linear(x, weight, self._options.stored_type, bias, self._options.max_columns)

    def _projections(self, x: Node, names: list[str], widths: list[int], *, has_bias: bool) -> list[Node]:
        columns = self._config.hidden_size
        if not self._options.fuses_projections:
            return [
                self._projection(x, name, width, columns, has_bias) for name, width in zip(names, widths, strict=True)
            ]
        pairs = list(zip(names, widths, strict=True))
        weight = np.concatenate([self._tensor(f"{name}.weight", width, columns) for name, width in pairs])
        bias = np.concatenate([self._tensor(f"{name}.bias", width) for name, width in pairs]) if has_bias else None
        joined = self._linear(x, weight, bias)
        axis, lengths = np.array(-1, dtype=np.int64), np.array(widths, dtype=np.int64)
        split = ops.variadic_split(joined, ops.constant(axis), ops.constant(lengths))
        return [split.output(i) for i in range(len(names))]
