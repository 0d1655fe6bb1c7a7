"""Writes a Llama of random weights in the formats in which models lie on disk: for what the loading of each takes.

Does: name the formats, write one. Does not: compress well, or hold different numbers in each layer; times and sizes do not
depend on values, and a matrix of each shape that is packed once is soon written. Called by `benchmarks.starts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.serving.exported import write_exported
from benchmarks.serving.model import Array, BenchShape, model_config, weight_shapes
from tests.support.gguf_writer import Writing, write_tensors
from tests.support.packed_layouts import AWQ, CHANNEL, FP8, GPTQ, compressed
from tests.support.packers import Packer, awq, fp8, gptq, int_quantized, is_packed, pack_quantized

_GROUP_SIZE = 128
_MATRIX = "m.weight"  # what a matrix is called while it is packed

Write = Callable[[Path, BenchShape], Path]
"""Writes a model under a directory, which is new, and returns what is to be loaded."""


@dataclass(frozen=True, slots=True)
class Format:
    """What is measured: files in one format, loaded with some `dtypes`. `name`: for people."""

    name: str
    write: Write
    dtypes: tuple[str, ...] = ("int8",)


def made_weights(shape: BenchShape) -> dict[str, Array]:
    """Every tensor, in bf16; those of one shape are one array."""
    stream, made = np.random.default_rng(0), dict[tuple[int, ...], Array]()
    for dimensions in weight_shapes(shape).values():
        if dimensions not in made:
            values = stream.standard_normal(dimensions, np.float32) * np.float32(0.5 / dimensions[-1] ** 0.5)
            made[dimensions] = (values if len(dimensions) > 1 else np.ones(dimensions)).astype(ml_dtypes.bfloat16)
    return {name: made[dimensions] for name, dimensions in weight_shapes(shape).items()}


def _write_checkpoint(
    directory: Path, shape: BenchShape, packer: Packer | None = None, described: dict[str, Any] | None = None
) -> Path:
    """A directory with safetensors. `described`: the quantization_config that goes with what the packer packs."""
    directory.mkdir(parents=True)
    tensors, packed = dict[str, Array](), dict[int, dict[str, Array]]()
    for name, values in made_weights(shape).items():
        if packer is None or not is_packed(name, values):
            tensors[name] = values
            continue
        if id(values) not in packed:
            packed[id(values)] = packer(_MATRIX, values.astype(np.float32))[0]
        stem, own = name.removesuffix(".weight"), _MATRIX.removesuffix(".weight")
        tensors |= {stem + part.removeprefix(own): found for part, found in packed[id(values)].items()}
    config = model_config(shape) | ({} if described is None else {"quantization_config": described})
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, directory / "model.safetensors")
    return directory


def _write_gguf(directory: Path, shape: BenchShape, type_name: str) -> Path:
    """A file whose matrices are all of the type; those of types that are slow to compute have random blocks."""
    directory.mkdir(parents=True)
    made = made_weights(shape)
    numbers = {id(values): values.astype(np.float32) for values in made.values()}
    tensors = {name: numbers[id(values)] for name, values in made.items()}
    return write_tensors(
        model_config(shape),
        tensors,
        directory / f"model-{type_name}.gguf",
        type_name,
        Writing(random_blocks=type_name not in ("F16", "BF16")),
    )


def _packed(packer: Packer, described: dict[str, Any]) -> Write:
    return partial(_write_checkpoint, packer=packer, described=described)


FORMATS: dict[str, Format] = {
    "bf16": Format("bf16 safetensors", _write_checkpoint, ("int8", "int4", "bf16", "f32")),
    "w4a16": Format(
        "compressed-tensors W4A16",
        _packed(
            pack_quantized(4, _GROUP_SIZE, symmetric=False),
            compressed("pack-quantized", symmetric=False, group_size=_GROUP_SIZE),
        ),
    ),
    "w8a8": Format(
        "compressed-tensors W8A8", _packed(int_quantized(), compressed("int-quantized", num_bits=8, **CHANNEL))
    ),
    "awq": Format("AWQ", _packed(awq(_GROUP_SIZE), AWQ | {"group_size": _GROUP_SIZE})),
    "gptq": Format("GPTQ", _packed(gptq(4, _GROUP_SIZE), GPTQ | {"group_size": _GROUP_SIZE})),
    "fp8": Format("fp8 in blocks", _packed(fp8((128, 128)), FP8)),
    **{
        f"gguf-{type_name}": Format(f"GGUF {type_name}", partial(_write_gguf, type_name=type_name))
        for type_name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "F16", "BF16")
    },
    **{
        f"ir-{form}": Format(f"OpenVINO IR, {form}", partial(write_exported, form=form))
        for form in ("int8", "int4", "f16")
    },
}
