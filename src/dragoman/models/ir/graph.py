"""Brings an exported graph into the form that the engine runs: paged attention, logits of some rows, known inputs.

The runtime's transformation replaces the graph's states by the caches and tables of `blocks.step.StepInputs`. It drops
the attention's mask, so a graph whose mask it did not understand must not pass: then states or inputs are left over.
Called once per start, on any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from dragoman.kernels.graph import attention
from dragoman.models.blocks.attention import attention_layout
from dragoman.models.blocks.nodes import parameter
from dragoman.models.blocks.step import PICTURE_EMBEDDINGS, PICTURE_ROWS, cache_parameter
from dragoman.models.config import ModelError
from dragoman.models.facts import AttentionFacts

ATTENTION = "PagedAttentionExtension"
ROWS = "sampled_tokens_indices"
PAST_LENS, BLOCKS, BLOCKS_BEGIN = "past_lens", "block_indices", "block_indices_begins"
TABLES = {PAST_LENS: 5, BLOCKS: 7, BLOCKS_BEGIN: 8}
"""The inputs by which attention finds sequences, and their places among its inputs."""

_CACHES = ("key_cache.", "value_cache.")
_STATE_TABLE = re.compile(r"\w+_state_table\.\d+")
_OF_STATES = {  # the transformation's names of inputs for states -> those of `StepInputs`
    "la.block_indices": "state_blocks",
    "la.block_indices_begins": "state_blocks_begins",
    "la.cache_interval": "state_interval",
}
_STATE_CACHE = "state_cache."
_STATES_PAST = "la.past_lens"
_PLACES = "cache_position"
_TO_POSITIONS = ("Subtract", "Convert", "Add", "Unsqueeze")
_TOKENS, _EMBEDDINGS = "input_ids", "inputs_embeds"
_KNOWN = {
    _TOKENS: ov.Type.i64,
    "position_ids": ov.Type.i64,
    "subsequence_begins": ov.Type.i32,
    "max_context_len": ov.Type.i32,
    **dict.fromkeys((*TABLES, *_OF_STATES.values()), ov.Type.i32),
}
_LEFT = ("ReadValue", "Assign")


def read_graph(path: Path) -> Any:
    """The graph in the file; its weights stay mapped in the other file. Raises: ModelError."""
    try:
        return ov.Core().read_model(path, path.with_suffix(".bin"))
    except RuntimeError as error:
        raise ModelError(f"{path} cannot be read: {reason(error)}") from error


def only_result(graph: Any, named: str, *ends: int) -> Any:
    """The output of a graph with one result, of rank 3. `ends`: its last lengths. `named`: the graph in errors."""
    results = graph.get_results()
    if len(results) != 1:
        raise ModelError(f"{named} has {len(results)} outputs, allowed: one")
    value = results[0].input_value(0)
    refuse_other_shape(value, named, *ends)
    return value


def refuse_other_shape(value: Any, named: str, *ends: int) -> None:
    """Raises: ModelError, naming what is `named`, unless the value has rank 3 and these last lengths."""
    first = 3 - len(ends)
    shape, wanted = value.get_partial_shape(), ov.PartialShape([-1] * first + list(ends))
    if shape.rank != wanted.rank or list(shape)[first:] != list(wanted)[first:]:
        raise ModelError(f"{named} gives {shape}, allowed: {wanted}" + (", as config.json says" if ends else ""))


def reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def embed_texts(graph: Any, table: Any) -> Any:
    """The output of `table`, which now feeds a graph that reads embeddings. Raises: ModelError."""
    embeddings, tokens = inputs_by_name(graph).get(_EMBEDDINGS), list(table.get_parameters())
    if embeddings is None or len(tokens) != 1:
        raise ModelError(f"the exported graph has no input {_EMBEDDINGS}, or that of texts not one input")
    [ids] = tokens
    ids.set_friendly_name(_TOKENS)
    ids.output(0).set_names({_TOKENS})
    vectors = only_result(table, "the graph that embeds texts")
    for target in embeddings.output(0).get_target_inputs():
        target.replace_source_output(vectors)
    graph.remove_parameter(embeddings)
    graph.add_parameters([ids])
    return vectors


def embed_pictures(graph: Any, vectors: Any, hidden_size: int) -> None:
    """Give a graph with paged attention the inputs of `StepInputs` for pictures. `vectors`: of texts, [T, 1, hidden]."""
    refuse_other_shape(vectors, "the graph that embeds texts", hidden_size)
    targets = vectors.get_target_inputs()
    rows = parameter(PICTURE_ROWS, -1, dtype=ov.Type.i64)
    embeddings = parameter(PICTURE_EMBEDDINGS, -1, hidden_size)
    apart = ops.unsqueeze(embeddings, ops.constant(np.int64(1)))
    mixed = ops.scatter_update(vectors, rows, apart, ops.constant(np.int64(0)))
    for target in targets:
        target.replace_source_output(mixed.output(0))
    graph.add_parameters([rows, embeddings])
    graph.validate_nodes_and_infer_types()


def paged(graph: Any) -> None:
    """Replace states by caches and tables, and logits by f32 [R, vocab] of the wanted rows. Raises: ModelError."""
    if not any(node.get_type_name() == "ReadValue" for node in graph.get_ops()):
        raise ModelError("the exported graph has no states: export it with its cache (task text-generation-with-past)")
    try:
        paged_attention_transformation(graph)
    except RuntimeError as error:
        raise ModelError(f"the exported graph cannot be run with paged attention: {reason(error)}") from error
    info = graph.get_rt_info()
    if "runtime_options" in info:  # the export's settings would go before the profile's
        del info["runtime_options"]
    _give_positions(graph)
    _name_states(graph)
    _check_inputs(graph)
    left = sorted({node.get_type_name() for node in graph.get_ops()} & set(_LEFT))
    if left or not attentions(graph):
        named = " and ".join(left) or "no attention"
        raise ModelError(f"the exported graph has an unknown form of attention at {named}")
    _gather_rows(graph)
    graph.validate_nodes_and_infer_types()


def attentions(graph: Any) -> dict[int, Any]:
    """The attention operations by the layer of their caches, in the order of layers. Raises: ModelError."""
    found: dict[int, Any] = {}
    for node in graph.get_ordered_ops():
        if node.get_type_name() == ATTENTION:
            layer = int(_cache_name(node).rpartition(".")[2])
            if layer in found:
                raise ModelError(f"the exported graph has two attentions on the cache of layer {layer}, allowed: one")
            found[layer] = node
    return dict(sorted(found.items()))


def inputs_by_name(graph: Any) -> dict[str, Any]:
    return {sorted(node.output(0).get_names())[0]: node for node in graph.get_parameters()}


def states(graph: Any) -> list[Any]:
    named = {name: node for name, node in inputs_by_name(graph).items() if name.startswith(_STATE_CACHE)}
    return [named[name] for name in sorted(named, key=lambda name: int(name.removeprefix(_STATE_CACHE)))]


def give_tables(graph: Any, nodes: list[Any], number: int) -> None:
    """Give these attentions tables of their own: inputs with that number at the end of their names."""
    for name, place in TABLES.items():
        table = parameter(f"{name}.{number}", -1, dtype=ov.Type.i32)
        graph.add_parameters([table])
        for node in nodes:
            node.input(place).replace_source_output(table.output(0))


def attend_ourselves(
    graph: Any, layers: Mapping[int, AttentionFacts], cache_type: str, sinks: Mapping[int, Any]
) -> None:
    """Put the library's attention in the place of the runtime's. `sinks`: f32 [heads], by layer."""
    positions = inputs_by_name(graph)["position_ids"].output(0)
    for index, node in attentions(graph).items():
        facts = layers[index]
        layout = attention_layout(facts, cache_type)
        old = [node.input_value(place).get_node() for place in (3, 4)]
        names = [_cache_name(node), _cache_name(node).replace("key", "value")]
        caches = [cache_parameter(name, shape) for name, shape in zip(names, layout.block_shapes, strict=True)]
        graph.add_parameters(caches)
        qkv = [node.input_value(place) for place in range(3)]
        number = qkv[0].get_element_type()
        if number != ov.Type.f32:
            qkv = [ops.convert(value, ov.Type.f32).output(0) for value in qkv]
        where = [node.input_value(place) for place in (TABLES[PAST_LENS], 6, TABLES[BLOCKS], TABLES[BLOCKS_BEGIN])]
        slopes = np.array(facts.alibi_slopes, np.float32) if facts.alibi_slopes else None
        keys, values = (cache.output(0) for cache in caches)
        attended = attention(qkv, (keys, values), positions, where, layout, sinks.get(index), slopes)
        if number != ov.Type.f32:
            attended = ops.convert(attended, number).output(0)
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(attended)
        for cache in old:
            graph.remove_parameter(cache)
    context = inputs_by_name(graph).get("max_context_len")
    if context is not None and not _readers(context):
        graph.remove_parameter(context)
    graph.validate_nodes_and_infer_types()


def _cache_name(node: Any) -> str:
    return str(next(iter(node.input_value(3).get_node().output(0).get_names())))


def _give_positions(graph: Any) -> None:
    """Give a graph that counts positions itself those of the input: sequences differ. Older exports count places."""
    inputs = inputs_by_name(graph)
    positions, places = inputs.get("position_ids"), inputs.get(_PLACES)
    is_counted = positions is not None and not positions.output(0).get_target_inputs()
    for node in (inputs.get("max_context_len"), places):
        counted = _counted(node) if is_counted and node is not None else None
        if counted is not None and positions is not None:
            columns = ops.unsqueeze(positions.output(0), ops.constant(np.int64(1))).output(0)
            for target in counted.get_target_inputs():
                target.replace_source_output(columns)
    if places is not None and not _readers(places):
        graph.remove_parameter(places)


def _counted(node: Any) -> Any:
    """Positions of one sequence, i64 [1, places], made of an input alone; None if they are not."""
    counting = [target for target in _readers(node) if target.get_type_name() != ATTENTION]
    while len(counting) == 1 and counting[0].get_type_name() in _TO_POSITIONS:
        output = counting[0].output(0)
        shape = output.get_partial_shape()
        if output.get_element_type() == ov.Type.i64 and len(shape) == 2 and shape[0] == 1:
            return output
        counting = _readers(counting[0])
    return None


def _readers(node: Any) -> list[Any]:
    found = [target.get_node() for target in node.output(0).get_target_inputs()]
    return [reader for reader in found if reader.get_type_name() == "Result" or _is_read(reader)]


def _is_read(node: Any) -> bool:
    return any(output.get_target_inputs() for output in node.outputs())


def _name_states(graph: Any) -> None:
    """Give the names of `StepInputs` to states, which come behind the caches, and to their tables."""
    inputs = inputs_by_name(graph)
    tables = sorted((name for name in inputs if _STATE_TABLE.fullmatch(name)), key=_by_number)
    for number, name in enumerate(tables, start=len(attentions(graph))):
        inputs[name].output(0).set_names({f"{_STATE_CACHE}{number}"})
    for name, known in _OF_STATES.items():
        if name in inputs:
            inputs[name].output(0).set_names({known})
    if _STATES_PAST in inputs:
        for target in inputs[_STATES_PAST].output(0).get_target_inputs():
            target.replace_source_output(inputs[PAST_LENS].output(0))
        graph.remove_parameter(inputs[_STATES_PAST])


def _by_number(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(".")
    return kind, int(number)


def _check_inputs(graph: Any) -> None:
    for name, node in inputs_by_name(graph).items():
        output = node.output(0)
        if name.startswith((*_CACHES, _STATE_CACHE)):
            continue
        if name not in _KNOWN:
            raise ModelError(f"the exported graph has the input {name}, which is unknown; known: {', '.join(_KNOWN)}")
        rank = output.get_partial_shape().rank
        if output.get_element_type() != _KNOWN[name] or (rank.is_static and rank.get_length() > 1):
            shown = f"{output.get_element_type().get_type_name()}{output.get_partial_shape()}"
            wanted = f"{_KNOWN[name].get_type_name()}[?]"
            raise ModelError(f"the exported graph has the input {name} of {shown}, allowed: {wanted}")


def _gather_rows(graph: Any) -> None:
    """Gather the wanted rows before the head, and drop the batch's axis of the logits."""
    result = graph.get_results()[0]
    head = _head(result)
    place = 0 if _is_computed(head.input_value(0)) else 1
    rows = parameter(ROWS, -1, dtype=ov.Type.i64)
    graph.add_parameters([rows])
    hidden = head.input_value(place)
    axis = ops.constant(np.int64(0))
    head.input(place).replace_source_output(ops.gather(hidden, rows, axis).output(0))
    logits = result.input_value(0)
    names = logits.get_names()
    vocab = logits.get_partial_shape()[-1]
    shape = ops.constant(np.array([-1, vocab.get_length()], dtype=np.int64))
    flat = ops.reshape(logits, shape, special_zero=False)
    logits.set_names(set())
    flat.output(0).set_names(names | {"logits"})
    result.input(0).replace_source_output(flat.output(0))
    for other in graph.get_results()[1:]:  # hidden states, say, which are not read
        graph.remove_result(other)


def _head(result: Any) -> Any:
    """The product of the logits, behind which numbers are only scaled, capped or shifted. Raises: ModelError."""
    node = result.input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        computed = [value for value in node.input_values() if _is_computed(value)]
        if len(computed) != 1:
            kind = node.get_type_name()
            raise ModelError(f"the exported graph has no product with the head's matrix before its logits, but {kind}")
        node = computed[0].get_node()
    return node


def _is_computed(value: Any) -> bool:
    return bool(value.get_partial_shape().is_dynamic)
