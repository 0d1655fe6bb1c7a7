"""The names that the tensors of a GGUF file have in a checkpoint: the family's class tells them, the row adds others.

Called by the source of weights and by the reader of adapters, on any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dragoman.gguf.architecture_row import Architecture, Names
from dragoman.models.families import find_family
from dragoman.models.families.base import Family
from dragoman.models.families.experts import ChosenWithBias, WithExperts
from dragoman.models.families.llama import Llama

_CUTS = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps")}


class TensorNames(NamedTuple):
    """Names by those in a file. `outer`: outside the layers; `layer`: in a layer, below `layers` and its number.

    `cuts`: of tensors that `layer` may not name, those that they are here, below each other.
    """

    outer: Names
    layers: str
    layer: Names
    cuts: Mapping[str, tuple[str, ...]]


def tensor_names(row: Architecture) -> TensorNames:
    family = find_family(row.hugging_face)
    assert isinstance(family, type)
    assert issubclass(family, Family)
    body, head = family.layouts[0]
    outer = {"token_embd": f"{body}.{family.table}", "output_norm": f"{body}.{family.final_norm}", "output": head}
    layer = (_of_layer(family) if issubclass(family, Llama) else {}) | row.layer
    cuts = {
        whole: tuple(layer[part] for part in parts)
        for whole, parts in _CUTS.items()
        if all(part in layer for part in parts)
    }
    return TensorNames(outer | row.outer, f"{body}.{family.layers}", layer, cuts)


def _of_layer(family: type[Llama]) -> Names:
    norms, attention, mlp = family.layer_norms, family.attention_name, family.mlp_name
    names = {
        "attn_norm": norms.before_attention,
        "post_attention_norm": norms.after_attention,
        "ffn_norm": norms.before_mlp,
        "post_ffw_norm": norms.after_mlp,
        "attn_output": f"{attention}.{family.output_name}",
        **{f"attn_{part}": f"{attention}.{part}_proj" for part in "qkv"},
        **{f"attn_{part}_norm": f"{attention}.{name}" for part, name in zip("qk", family.head_norm_names, strict=True)},
        **_of_mlp(family, mlp, ""),
    }
    if family.qkv_name:
        names["attn_qkv"] = f"{attention}.{family.qkv_name}"
    if issubclass(family, WithExperts):
        names["ffn_gate_inp"] = _below(mlp, family.router_name)
        names |= _of_mlp(family, _below(mlp, "experts.{expert}"), "_exps")
        names |= _of_mlp(family, _below(mlp, family.shared_name), "_shexp")
    if issubclass(family, ChosenWithBias):
        names["exp_probs_b.bias"] = _below(mlp, family.bias_name)
    return {part: name for part, name in names.items() if name}


def _of_mlp(family: type[Llama], place: str, ending: str) -> Names:
    parts = ("ffn_gate", "ffn_up", "ffn_down")[-len(family.mlp_names) :]
    return {f"{part}{ending}": _below(place, name) for part, name in zip(parts, family.mlp_names, strict=True)}


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
