"""Writes a GGUF's rule for positions, keys and factors for single pairs of dimensions, as rope_scaling of config.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from dragoman.errors import ModelError
from dragoman.gguf.files import GgufModel

_MOST_FACTORS = 4096  # more than a head has

_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def rope_keys() -> tuple[str, ...]:
    names = {*_YARN.values(), "type", "attn_factor", "finetuned"}
    return tuple(f"rope.scaling.{name}" for name in sorted(names))


def rope_rule(model: GgufModel) -> dict[str, Any]:
    """The values of rope_scaling, empty if positions are not scaled. Raises: ModelError."""
    prefix, values = f"{model.architecture}.rope.scaling", model.metadata
    kind = values.text(f"{prefix}.type", "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise values.error(f"{prefix}.type", "none, linear, yarn or longrope")
    if "rope_factors_long.weight" in model.tensors:
        factors_of = {f"{name}_factor": _factors(model, f"rope_factors_{name}.weight") for name in ("short", "long")}
        grown = values.number(f"{prefix}.attn_factor")
        return {"rope_type": "longrope", **factors_of} | ({"attention_factor": grown} if grown else {})
    if "rope_freqs.weight" in model.tensors:
        factors = _factors(model, "rope_freqs.weight")
        return {"rope_type": "factors", "factors": factors} if any(factor != 1.0 for factor in factors) else {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": values.number(f"{prefix}.factor")}
    if kind == "yarn":
        rule = {key: values.number(f"{prefix}.{name}") for key, name in _YARN.items()}
        return {"rope_type": "yarn"} | {key: value for key, value in rule.items() if value is not None}
    return {}


def _factors(model: GgufModel, name: str) -> list[float]:
    tensor = model.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{model.path} has no tensor {name!r}")
    if tensor.type_name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MOST_FACTORS:
        raise ModelError(
            f"{model.path} tensor {name!r} is {tensor.type_name} {list(tensor.shape)}, allowed: up to {_MOST_FACTORS} of F32"
        )
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.begin)
            values: list[float] = np.frombuffer(file.read(tensor.size), dtype="<f4").tolist()
    except (OSError, ValueError) as error:
        raise ModelError(f"{tensor.path} cannot be read: {error}") from error
    return values
