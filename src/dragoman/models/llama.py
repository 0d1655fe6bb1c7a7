"""Builds the graph of a Llama-family decoder straight from config.json and safetensors.

Does: one function per block of the architecture. Does not: compile, run or sample.
Called by models.loader through the registry, once per start.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.config import LlamaConfig, inverse_frequencies
from dragoman.models.layers import (
    AttentionShape,
    PagedInputs,
    apply_rotary,
    cache_parameter,
    embedding,
    gather_rows,
    linear,
    merge_heads,
    paged_attention,
    rms_norm,
    rotary_angles,
    split_heads,
)
from dragoman.models.stored_weights import Array, Node, WeightStorage
from dragoman.models.weights import Checkpoint


class LlamaBuilder:
    """Builds one graph; used once and thrown away.

    Inputs (T tokens, S sequences): input_ids i64 [T], position_ids i64 [T], past_lens i32 [S], subsequence_begins
    i32 [S+1], block_indices i32 [B], block_indices_begins i32 [S+1], max_context_len i32 [], sampled_tokens_indices
    i64 [R], key_cache.N and value_cache.N. Output: logits f32 [R, vocab].
    """

    def __init__(self, config: LlamaConfig, checkpoint: Checkpoint, storage: WeightStorage) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._storage = storage
        self._parameters: list[Any] = []

    def build(self) -> ov.Model:
        """The graph; its weights are complete when the storage's parts have finished.

        Raises: ModelError if the checkpoint lacks a tensor or its shape differs.
        """
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
            is_last = layer == config.num_layers - 1
            x = self._layer(x, layer, angles, paged, sampled if is_last else None)
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
        return embedding(token_ids, table, self._storage)

    def _head(self, x: Node) -> Node:
        config = self._config
        tied = config.tie_word_embeddings or "lm_head.weight" not in self._checkpoint
        name = "model.embed_tokens.weight" if tied else "lm_head.weight"
        logits = linear(x, self._tensor(name, config.vocab_size, config.hidden_size), self._storage)
        flat = ops.reshape(logits, ops.constant(np.array([-1, config.vocab_size], dtype=np.int64)), special_zero=False)
        flat.output(0).set_names({"logits"})
        return flat.output(0)

    def _layer(self, x: Node, layer: int, angles: tuple[Node, Node], paged: PagedInputs, rows: Node | None) -> Node:
        """`rows`: the only ones that anybody needs; the others end where their keys and values are known. None = all."""
        config, prefix = self._config, f"model.layers.{layer}"
        weight = self._tensor(f"{prefix}.input_layernorm.weight", config.hidden_size)
        attended = self._attention(rms_norm(x, weight, config.rms_norm_eps), layer, angles, paged)
        if rows is not None:
            x, attended = gather_rows(x, rows), gather_rows(attended, rows)
        width = config.num_heads * config.head_size
        name = f"{prefix}.self_attn.o_proj"
        x = ops.add(x, self._projection(attended, name, config.hidden_size, width, config.attention_bias)).output(0)
        weight = self._tensor(f"{prefix}.post_attention_layernorm.weight", config.hidden_size)
        mlp = self._mlp(rms_norm(x, weight, config.rms_norm_eps), f"{prefix}.mlp")
        return ops.add(x, mlp).output(0)

    def _attention(self, x: Node, layer: int, angles: tuple[Node, Node], paged: PagedInputs) -> Node:
        config, prefix = self._config, f"model.layers.{layer}.self_attn"
        size = config.head_size
        widths = [config.num_heads * size, config.num_kv_heads * size, config.num_kv_heads * size]
        names = [f"{prefix}.{name}_proj" for name in "qkv"]
        fused = self._storage.format.fuses_attention
        q, k, v = self._projections(x, names, widths, has_bias=config.attention_bias, fused=fused)
        q = apply_rotary(split_heads(q, config.num_heads, size), *angles, size)
        k = apply_rotary(split_heads(k, config.num_kv_heads, size), *angles, size)
        caches = (cache_parameter(f"key_cache.{layer}"), cache_parameter(f"value_cache.{layer}"))
        self._parameters.extend(caches)
        shape = AttentionShape(config.num_heads, config.num_kv_heads, size)
        heads = [merge_heads(part, width) for part, width in zip((q, k, v), widths, strict=True)]
        attended = paged_attention((heads[0], heads[1], heads[2]), caches, paged, shape)
        return ops.unsqueeze(attended, ops.constant(np.array(1, dtype=np.int64))).output(0)

    def _mlp(self, x: Node, prefix: str) -> Node:
        config = self._config
        size = config.intermediate_size
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        fused = self._storage.format.fuses_mlp
        gate, up = self._projections(x, names, [size, size], has_bias=config.mlp_bias, fused=fused)
        activated = ops.multiply(ops.swish(gate), up).output(0)
        return self._projection(activated, f"{prefix}.down_proj", config.hidden_size, size, config.mlp_bias)

    def _projection(self, x: Node, name: str, width: int, columns: int, has_bias: bool) -> Node:
        bias = self._tensor(f"{name}.bias", width) if has_bias else None
        return linear(x, self._tensor(f"{name}.weight", width, columns), self._storage, bias)

    def _projections(self, x: Node, names: list[str], widths: list[int], *, has_bias: bool, fused: bool) -> list[Node]:
        columns = self._config.hidden_size
        if not fused:
            return [
                self._projection(x, name, width, columns, has_bias) for name, width in zip(names, widths, strict=True)
            ]
        pairs = list(zip(names, widths, strict=True))
        weight = np.concatenate([self._tensor(f"{name}.weight", width, columns) for name, width in pairs])
        bias = np.concatenate([self._tensor(f"{name}.bias", width) for name, width in pairs]) if has_bias else None
        joined = linear(x, weight, self._storage, bias)
        axis, lengths = np.array(-1, dtype=np.int64), np.array(widths, dtype=np.int64)
        split = ops.variadic_split(joined, ops.constant(axis), ops.constant(lengths))
        return [split.output(i) for i in range(len(names))]
