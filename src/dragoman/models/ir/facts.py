"""Reads the facts of an exported model from its graph, and from config.json where the graph lacks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.passes import ConstantFolding, Manager

from dragoman.models.config import Config, ModelError
from dragoman.models.facts import AttentionFacts, LayerFacts, MlpFacts, ModelFacts, StateFacts
from dragoman.models.ir.graph import attentions, inputs_by_name, states

_CONTEXT_KEYS = (  # of config.json, in the order in which OVMS looks for them
    "max_position_embeddings", "n_positions", "seq_len", "seq_length", "n_ctx", "max_seq_len", "max_sequence_length",
)  # fmt: skip
_SCALE, _WINDOW, _SLOPES, _SINKS = 9, 10, 11, 20  # indexes of the attention operation's inputs
_OF_POSITIONS = frozenset(("Convert", "Unsqueeze", "Squeeze", "Reshape", "Add", "Transpose", "Broadcast"))


def ir_facts(graph: Any, raw_config: Mapping[str, Any]) -> ModelFacts:
    """The facts of a graph with paged attention. Raises: ModelError if it says too little, or what cannot be right."""
    text = raw_config.get("text_config")  # of a model that sees
    config = Config(text if isinstance(text, dict) else raw_config)
    layers = {layer: _attention(node, config) for layer, node in attentions(graph).items()}
    if list(layers) != list(range(len(layers))):
        raise ModelError(
            f"the exported graph has caches of layers {', '.join(map(str, layers))}, allowed: 0, 1, 2, ..."
        )
    _check_positions(graph, layers, config)
    kept = [StateFacts(_lengths(table)) for table in states(graph)]  # a table of states is a layer here
    mixers: list[AttentionFacts | StateFacts] = [*layers.values(), *kept]
    inner = config.value("intermediate_size")
    mlp = MlpFacts(inner if isinstance(inner, int) else 0, "")
    logits = graph.output(0).get_partial_shape()
    context, departures = _context(graph, config)
    return ModelFacts(
        architecture=_architecture(raw_config),
        vocab_size=logits[1].get_length(),
        hidden_size=config.count("hidden_size", config.count("n_embd", config.count("d_model", 1))),
        max_position=context,
        layers=tuple(LayerFacts(mixer, mlp) for mixer in mixers),
        departures=(*departures, *_departures(layers, config)),
    )


def _lengths(table: Any) -> tuple[int, ...]:
    return tuple(dimension.get_length() for dimension in list(table.output(0).get_partial_shape())[1:])


def _architecture(raw_config: Mapping[str, Any]) -> str:
    named = raw_config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else "exported graph"


def _attention(node: Any, config: Config) -> AttentionFacts:
    """A layer's attention. The runtime's operation has no cap on scores, so config.json tells it."""
    info = node.get_rt_info()
    keys, values = info["k_head_size"].astype(int), info["v_head_size"].astype(int)
    slopes, sinks = _numbers(node, _SLOPES, "alibi slopes"), node.input_value(_SINKS).get_partial_shape()
    return AttentionFacts(
        num_heads=node.input_value(0).get_partial_shape()[1].get_length() // keys,
        num_kv_heads=info["num_k_heads"].astype(int),
        head_size=keys,
        value_size=values,
        scale=(_numbers(node, _SCALE, "scale") or (keys**-0.5,))[0],
        window=int((_numbers(node, _WINDOW, "window") or (0,))[0]),
        alibi_slopes=slopes,
        has_sinks=all(dimension.is_dynamic or dimension.get_length() for dimension in sinks),
        softcap=config.number("attn_logit_softcapping", 0.0),
    )


def attention_sinks(graph: Any) -> dict[int, Any]:
    found = {layer: _numbers(node, _SINKS, "sinks") for layer, node in attentions(graph).items()}
    return {layer: np.array(numbers, np.float32) for layer, numbers in found.items() if numbers}


def _numbers(node: Any, place: int, what: str) -> tuple[float, ...]:
    """The numbers of a constant input. Raises: ModelError if it depends on the step."""
    source = node.input_value(place).get_node()
    if source.get_type_name() != "Constant":
        source = _folded(node.input_value(place))
    if source is None:
        raise ModelError(f"the exported graph has attention whose {what} depends on the step, allowed: a constant")
    return tuple(float(number) for number in source.get_data().ravel())


def _folded(value: Any) -> Any:
    try:
        alone = ov.Model([ops.result(value)], [])
    except RuntimeError:  # it reads an input
        return None
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(alone)
    node = alone.get_results()[0].input_value(0).get_node()
    return node if node.get_type_name() == "Constant" else None


def _check_positions(graph: Any, layers: Mapping[int, AttentionFacts], config: Config) -> None:
    node = inputs_by_name(graph).get("position_ids")
    is_read = node is not None and bool(node.output(0).get_target_inputs())
    knows = all(attention.alibi_slopes for attention in layers.values())
    if not (is_read or knows or config.value("position_embedding_type") == "nope"):
        raise ModelError(
            "the exported graph does not read its input position_ids, so positions would be lost; export it "
            "again with a newer optimum-intel, or serve the checkpoint that it was exported from"
        )


def _context(graph: Any, config: Config) -> tuple[int, tuple[str, ...]]:
    """The context in tokens; only up to where other rotary factors follow, which graphs take for all sequences or never."""
    found = next((key for key in _CONTEXT_KEYS if config.value(key) is not None), None)
    if found is None:
        raise ModelError(f"config.json does not give the context length, allowed: one of {', '.join(_CONTEXT_KEYS)}")
    context, compares = config.count(found), _compares_positions(graph)
    rule = config.value("rope_scaling", config.value("rope_parameters", {}))
    rule = rule if isinstance(rule, dict) else {}
    if not compares and "long_factor" not in rule:
        return context, ()
    named = rule.get("original_max_position_embeddings")
    short = config.count("original_max_position_embeddings", named if isinstance(named, int) else context)
    if short >= context:
        return context, ()
    why = "turns all sequences of a step as its longest" if compares else "has the rotary factors of short ones alone"
    return short, (f"the context is {short} tokens, not {context}: the exported graph {why}",)


def _compares_positions(graph: Any) -> bool:
    start = inputs_by_name(graph).get("position_ids")
    waiting, seen = [start] if start is not None else [], set()
    while waiting:
        for target in waiting.pop().output(0).get_target_inputs():
            node = target.get_node()
            if node.get_type_name() == "ReduceMax":
                return True
            if node.get_type_name() in _OF_POSITIONS and node.get_friendly_name() not in seen:
                seen.add(node.get_friendly_name())
                waiting.append(node)
    return False


def _departures(layers: Mapping[int, AttentionFacts], config: Config) -> list[str]:
    found = []
    window = config.value("sliding_window")
    is_on = config.value("use_sliding_window", True) is not False
    if window and is_on and not any(attention.window for attention in layers.values()):
        found.append(f"no layer sees a window, though config.json has a sliding_window of {window}")
    return found
