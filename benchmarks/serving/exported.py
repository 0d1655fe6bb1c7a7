"""Writes a Llama of random weights as an OpenVINO directory, as optimum-intel exports one: for what its loading takes.

Does: the graph with states that such exports have, weights as int8, int4 or f16. Does not: compress well, as times do not
depend on values. Called by `benchmarks.starts`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from benchmarks.serving.model import Array, BenchShape, model_config, weight_shapes

FORMS = ("int8", "int4", "f16")
_GROUP_SIZE = 128  # of int4, as optimum-intel has it


def write_exported(directory: Path, shape: BenchShape, form: str) -> Path:
    """Write the directory with weights in one of FORMS; returns it."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(model_config(shape)), encoding="utf-8")
    ov.save_model(_Export(shape, form).graph(), directory / "openvino_model.xml", compress_to_fp16=False)
    return directory


class _Export:
    """Builds the graph."""

    def __init__(self, shape: BenchShape, form: str) -> None:
        self._shape, self._form = shape, form
        self._shapes = weight_shapes(shape)
        self._sinks: list[Any] = []
        self._stream = np.random.default_rng(0)
        self._tokens, self._mask, self._positions = (
            _input(name, [-1, -1]) for name in ("input_ids", "attention_mask", "position_ids")
        )
        self._beams = _input("beam_idx", [-1], ov.Type.i32)

    def graph(self) -> Any:
        """The graph, with its states."""
        x = ops.gather(self._weight("model.embed_tokens.weight"), ops.convert(self._tokens, "i32"), _i64(0))
        turning, causal = self._turning(), self._causal()
        for layer in range(self._shape.num_layers):
            prefix = f"model.layers.{layer}"
            x = ops.add(x, self._attention(self._normed(x, f"{prefix}.input_layernorm"), prefix, turning, causal))
            x = ops.add(x, self._mlp(self._normed(x, f"{prefix}.post_attention_layernorm"), prefix))
        logits = ops.result(self._product(self._normed(x, "model.norm"), "lm_head"))
        logits.output(0).get_tensor().set_names({"logits"})
        return ov.Model([logits], self._sinks, [self._tokens, self._mask, self._positions, self._beams], "llama")

    # --- layers ---------------------------------------------------------------------------------------------------

    def _attention(self, x: Any, prefix: str, turning: tuple[Any, Any], causal: Any) -> Any:
        shape, size = self._shape, self._shape.head_size
        heads = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
        found = {}
        for name, count in heads.items():
            apart = ops.reshape(
                self._product(x, f"{prefix}.self_attn.{name}_proj"), _i64(0, 0, count, size), special_zero=True
            )
            found[name] = ops.transpose(apart, _i64(0, 2, 1, 3))
        query, key = (_turned(found[name], turning, size) for name in "qk")
        kept = [self._kept(key, f"{prefix}.key"), self._kept(found["v"], f"{prefix}.value")]
        attended = ops.scaled_dot_product_attention(query, *kept, causal)
        side_by_side = ops.reshape(
            ops.transpose(attended, _i64(0, 2, 1, 3)), _i64(0, 0, shape.num_heads * size), special_zero=True
        )
        return self._product(side_by_side, f"{prefix}.self_attn.o_proj")

    def _kept(self, new: Any, name: str) -> Any:
        """What a state keeps and the new rows, for as many heads as the queries have."""
        shape, size = self._shape, self._shape.head_size
        num_sequences = ops.gather(ops.shape_of(self._tokens), _i64(0), _one(0))
        sizes = ops.concat([num_sequences, _i64(shape.num_kv_heads, 0, size)], 0)
        empty = ops.broadcast(ops.constant(np.float32(0)), sizes)
        state = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, shape.num_kv_heads, -1, size]))
        rows = ops.concat([ops.gather(state, self._beams, _i64(0)), new], -2)
        self._sinks.append(ops.assign(rows, name))
        share = shape.num_heads // shape.num_kv_heads
        if share == 1:
            return rows
        apart = ops.unsqueeze(rows, _i64(2))
        wide = ops.broadcast(apart, _i64(1, 1, share, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, _i64(0, shape.num_heads, -1, size), special_zero=True)

    def _mlp(self, x: Any, prefix: str) -> Any:
        gate = ops.swish(self._product(x, f"{prefix}.mlp.gate_proj"))
        return self._product(ops.multiply(gate, self._product(x, f"{prefix}.mlp.up_proj")), f"{prefix}.mlp.down_proj")

    def _normed(self, x: Any, name: str) -> Any:
        (size,) = self._shapes[f"{name}.weight"]
        mean = ops.reduce_mean(ops.power(x, _f32(2)), _i64(-1), keep_dims=True)
        inverse = ops.divide(_f32(1), ops.sqrt(ops.add(mean, _f32(1e-5))))
        return ops.multiply(ops.constant(np.ones((1, 1, size), np.float32)), ops.multiply(x, inverse))

    def _product(self, x: Any, name: str) -> Any:
        return ops.matmul(x, self._weight(f"{name}.weight"), False, True)

    # --- inputs ---------------------------------------------------------------------------------------------------

    def _turning(self) -> tuple[Any, Any]:
        """Cosines and sines of the positions. Shapes: [sequences, 1, tokens, head size]."""
        size = self._shape.head_size
        steps = (10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32).reshape(1, -1, 1)
        places = ops.convert(ops.unsqueeze(self._positions, _i64(1)), "f32")
        angles = ops.transpose(ops.matmul(ops.constant(steps), places, False, False), _i64(0, 2, 1))
        both = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(both), _i64(1)), ops.unsqueeze(ops.sin(both), _i64(1))

    def _causal(self) -> Any:
        """Which of the kept rows each token sees, and all that the mask says: [sequences, 1, tokens, rows]."""
        num_rows, num_tokens = (ops.gather(ops.shape_of(x), _one(1), _one(0)) for x in (self._mask, self._tokens))
        rows = ops.range(_one(0), num_rows, _one(1), "i64")
        tokens = ops.range(ops.subtract(num_rows, num_tokens), num_rows, _one(1), "i64")
        earlier = ops.less_equal(ops.unsqueeze(rows, _i64(0, 1, 2)), ops.unsqueeze(tokens, _i64(0, 1, 3)))
        there = ops.convert(ops.unsqueeze(self._mask, _i64(1, 2)), "boolean")
        return ops.select(ops.logical_and(earlier, there), _f32(0), _f32(-65504))

    # --- weights --------------------------------------------------------------------------------------------------

    def _weight(self, name: str) -> Any:
        """A matrix as f32, over a constant in the form."""
        rows, columns = self._shapes[name]
        if self._form == "f16":
            values = self._stream.standard_normal((rows, columns), dtype=np.float32) * (0.5 / columns**0.5)
            return ops.convert(ops.constant(values.astype(np.float16)), "f32")
        if self._form == "int8" or name.startswith(("lm_head", "model.embed")):
            return self._in_groups(rows, columns, columns, ov.Type.u8)
        return self._in_groups(rows, columns, _GROUP_SIZE, ov.Type.u4)

    def _in_groups(self, rows: int, columns: int, size: int, kind: ov.Type) -> Any:
        grouped = [rows, columns] if size == columns else [rows, columns // size, size]
        per_group = [*grouped[:-1], 1]
        most = 255 if kind == ov.Type.u8 else 15
        num_bytes = rows * columns if kind == ov.Type.u8 else rows * columns // 2
        zeros = np.full(per_group, (most + 1) // 2, np.uint8)
        shifted = ops.subtract(
            ops.convert(_packed(self._stream.integers(0, 256, num_bytes, np.uint8), grouped, kind), "f16"),
            ops.convert(ops.constant(zeros), "f16"),
        )
        scales = np.full(per_group, 2 / most / columns**0.5, np.float16)
        scaled = ops.multiply(shifted, ops.constant(scales))
        flat = scaled if size == columns else ops.reshape(scaled, _i64(rows, columns), special_zero=False)
        return ops.convert(flat, "f32")


def _input(name: str, sizes: list[int], kind: ov.Type = ov.Type.i64) -> Any:
    node = ops.parameter(sizes, kind)
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


def _turned(x: Any, turning: tuple[Any, Any], size: int) -> Any:
    """Heads, turned by their positions."""
    cosines, sines = turning
    first, second = (ops.slice(x, _i64(begin), _i64(end), _i64(1), _i64(3)) for begin, end in _halves(size))
    other = ops.concat([ops.multiply(second, _f32(-1)), first], -1)
    return ops.add(ops.multiply(x, cosines), ops.multiply(other, sines))


def _halves(size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, size // 2), (size // 2, size)


def _packed(values: Array, shape: list[int], kind: ov.Type) -> Any:
    """A constant whose bytes these are."""
    tensor = ov.Tensor(kind, ov.Shape(shape))
    tensor.data.reshape(-1)[:] = values
    return ov.op.Constant(tensor, shared_memory=False)


def _i64(*values: int) -> Any:
    return ops.constant(np.array(values, dtype=np.int64))


def _one(value: int) -> Any:
    return ops.constant(np.int64(value))


def _f32(value: float) -> Any:
    return ops.constant(np.float32(value))
