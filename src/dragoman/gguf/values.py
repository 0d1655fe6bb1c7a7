"""Reads and checks what a GGUF file says of its model, in keys of the metadata and in the shapes of tensors."""

from __future__ import annotations

from typing import Any

from dragoman.errors import ModelError
from dragoman.gguf.files import GgufModel

Config = dict[str, Any]


def head_size(model: GgufModel) -> int:
    name = model.architecture
    size = read_value(model, "attention.key_length")
    if not isinstance(size, int):
        size = model.metadata.count(f"{name}.embedding_length") // max(head_counts(model)[0], 1)
    if size < 1:
        key = "attention.key_length" if f"{name}.attention.key_length" in model.metadata else "embedding_length"
        raise model.metadata.error(f"{name}.{key}", "what makes heads of at least 1 dimension")
    return size


def head_counts(model: GgufModel) -> tuple[int, int]:
    """(heads, key/value heads). Raises: ModelError if they are not said."""
    heads = read_value(model, "attention.head_count")
    if not isinstance(heads, int):
        raise model.metadata.error(f"{model.architecture}.attention.head_count", "an integer")
    kv_heads = read_value(model, "attention.head_count_kv")
    return heads, kv_heads if isinstance(kv_heads, int) and kv_heads else heads


def value_heads(model: GgufModel) -> tuple[int, int, int]:
    """(heads of keys, heads of values, size of the latter) of layers that keep a state. Raises: ModelError."""
    name, values = model.architecture, model.metadata
    keys, heads, width = (values.count(f"{name}.ssm.{key}") for key in ("group_count", "time_step_rank", "inner_size"))
    if not keys:
        raise values.error(f"{name}.ssm.group_count", "an integer of at least 1")
    if not heads or heads % keys or width % heads:
        raise values.error(f"{name}.ssm.time_step_rank", f"a multiple of {keys} that divides {width}")
    return keys, heads, width // heads


def layer_counts(model: GgufModel) -> tuple[int, int]:
    """(layers, those after them that guess further tokens). Raises: ModelError if they are not said."""
    name, values = model.architecture, model.metadata
    both, guessing = values.count(f"{name}.block_count"), values.count(f"{name}.nextn_predict_layers", 0)
    if guessing >= max(both, 1):
        raise values.error(f"{name}.nextn_predict_layers", f"an integer below the {both} layers of {name}.block_count")
    return both - guessing, guessing


def read_value(model: GgufModel, name: str) -> Any:
    """The number or flag of a key, or of a list of equal ones for the layers. Raises: ModelError."""
    key = f"{model.architecture}.{name}"
    if not model.metadata.is_list(key):
        if name in _FLAGS:
            return model.metadata.flag(key, False) if key in model.metadata else None
        return model.metadata.number(key)
    listed = model.metadata.listed(key, float)
    if not all(type(value) in (int, float) for value in listed[:1]):  # all are of one type
        raise model.metadata.error(key, "a number, or one for each layer")
    values = {value for value in listed if value}
    if len(values) > 1 or (name not in _MAY_BE_ZERO and 0 in listed):
        raise model.metadata.error(key, "the same value for every layer")
    return next(iter(values), None)


_FLAGS = ("use_parallel_residual", "expert_weights_norm")
_MAY_BE_ZERO = ("attention.head_count_kv",)  # 0 in layers that do not attend


def has_part(model: GgufModel, name: str) -> bool:
    return any(tensor.startswith("blk.") and tensor.split(".", 2)[-1].startswith(name) for tensor in model.tensors)


def tensor_shape(model: GgufModel, name: str) -> tuple[int, ...]:
    if name not in model.tensors:
        raise ModelError(f"{model.path} has no tensor {name!r}")
    return model.tensors[name].shape


def layer_shape(model: GgufModel, name: str) -> tuple[int, ...]:
    found = next((tensor for key, tensor in model.tensors.items() if key.endswith(f".{name}")), None)
    if found is None:
        raise ModelError(f"{model.path} has no tensor 'blk.*.{name}'")
    return found.shape
