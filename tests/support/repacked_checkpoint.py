"""Recorded checkpoints in other layouts: the same numbers under other names, and some matrices in one.

Does: rename and join tensors as the layouts of InternLM2 and of OpenGVLab's InternVL have them. Does not: write files, or
know what is recorded. Used by the cases of tests/models that say which case they are made of:
    made_of   the case whose numbers, pictures and references are this one's, too
    layouts   what its tensors go through, of LAYOUTS, one after the other
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]

_INTERNVL_NAMES = (
    (r"^vision_tower\.", "vision_model."),
    (r"\.cls_token$", ".class_embedding"),
    (r"\.patch_embeddings\.projection\.", ".patch_embedding."),
    (r"\.position_embeddings$", ".position_embedding"),
    (r"^(vision_model\.encoder\.layer)\.", r"\1s."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"^(vision_model\..*)\.attention\.", r"\1.attn."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."),
)
_INTERNLM2_NAMES = (
    (r"\bembed_tokens\.", "tok_embeddings."),
    (r"\blm_head\.", "output."),
    (r"\.self_attn\.o_proj\.", ".attention.wo."),
    (r"\.self_attn\.", ".attention."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
)


def opengvlab(tensors: Tensors) -> Tensors:
    """An InternVL in OpenGVLab's own layout: the tower's queries, keys and values below each other."""
    found = _renamed(tensors, _INTERNVL_NAMES)
    return _joined(found, "vision_model.", "qkv", np.concatenate)


def internlm2(tensors: Tensors) -> Tensors:
    """A Llama of 4 heads and 2 of keys and values as an InternLM2: those of a group follow each other.

    If its queries have a bias, outputs get one of zeros.
    """
    found = _joined(_renamed(tensors, _INTERNLM2_NAMES), "", "wqkv", lambda parts: _by_group(parts, 2))
    biases = {name.replace(".wqkv.", ".wo."): name for name in found if name.endswith(".wqkv.bias")}
    for output in biases:
        found[output] = np.zeros_like(found[output.removesuffix("bias") + "weight"][:, 0])
    return found


def below_language_model(tensors: Tensors) -> Tensors:
    """A decoder as a part of a model that sees."""
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()}


LAYOUTS: Mapping[str, Callable[[Tensors], Tensors]] = {
    "below_language_model": below_language_model,
    "internlm2": internlm2,
    "opengvlab": opengvlab,
}


def _renamed(tensors: Tensors, rules: tuple[tuple[str, str], ...]) -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        new_name = name
        for pattern, replacement in rules:
            new_name = re.sub(pattern, replacement, new_name)
        found[new_name] = tensor
    return found


def _joined(tensors: Tensors, prefix: str, name: str, join: Callable[[list[Array]], Array]) -> Tensors:
    """The tensors with those of queries, keys and values below `prefix` as one of that name."""
    found = dict(tensors)
    for query in [each for each in tensors if each.startswith(prefix) and ".q_proj." in each]:
        names = [query.replace(".q_proj.", f".{part}_proj.") for part in "qkv"]
        found[query.replace(".q_proj.", f".{name}.")] = join([found.pop(each) for each in names])
    return found


def _by_group(parts: list[Array], num_groups: int) -> Array:
    """Of each group its queries, its keys and its values."""
    rows = [np.reshape(part, (num_groups, -1, *part.shape[1:])) for part in parts]
    grouped = np.concatenate(rows, axis=1)
    return grouped.reshape(-1, *grouped.shape[2:])
