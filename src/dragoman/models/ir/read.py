"""Reads an exported graph and makes one that can be compiled, with the model's facts and its profile.

Facts come from the graph, and from config.json where the graph lacks them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.passes import ConstantFolding, Manager

from dragoman.models.config import Config, ModelError, read_json
from dragoman.models.facts import AttentionFacts, LayerFacts, MlpFacts, ModelFacts, PictureFacts, StateFacts
from dragoman.models.ir.files import (
    GRAPH_FILE,
    PROJECTION_FILE,
    VISION_FILE,
    SeeingFiles,
    ir_files,
    unknown_settings,
)
from dragoman.models.ir.graph import (
    attend_ourselves,
    attentions,
    embed_pictures,
    embed_texts,
    give_tables,
    inputs_by_name,
    paged,
    read_graph,
    states,
)
from dragoman.models.ir.phi3_vision import Phi3Vision
from dragoman.models.profile import KernelProfile, ModelOptions, kernel_profile
from dragoman.models.storage.constants import WeightType
from dragoman.models.vision.base import PictureProcessor
from dragoman.models.vision.described import NO_DESCRIPTION, is_described, read_described

_STORED: Mapping[str, WeightType] = {
    "u4": "int4", "i4": "int4", "u8": "int8", "i8": "int8", "f16": "f16", "bf16": "bf16", "f32": "f32",
}  # fmt: skip
_BLIND = "pictures are refused: the exported graphs that see do not run here"
_SEEING = ("phi3_v",)  # model types whose vision graphs run here; a file may hold values without a hash
_ROUTING = "TopK"  # chooses a token's experts
_PACKED = ("u4", "i4", "u8", "i8")


class IrTower(NamedTuple):
    facts: PictureFacts
    processor: PictureProcessor
    make: Callable[[], Any]


@dataclass(slots=True)
class IrModel:
    """An exported model. `options`: with the file's type of weights. `can_be_kept`: the compiled graph can be read again."""

    facts: ModelFacts
    options: ModelOptions
    profile: KernelProfile
    files: tuple[Path, ...]
    weights_bytes: int
    can_be_kept: bool
    tower: IrTower | None
    graph: Any

    def take_graph(self) -> Any:
        """The graph, with paged attention; only once, since its weights live as long as the graph."""
        graph, self.graph = self.graph, None
        return graph


def read_ir(model_dir: Path, options: ModelOptions) -> IrModel:
    """The exported model of a directory. Raises: ModelError if it cannot be run."""
    raw_config = read_json(model_dir / "config.json")
    blindness = _blindness(model_dir, raw_config)
    files = ir_files(model_dir, sees=options.sees and blindness is None)
    graph, vectors = read_graph(files.graph), None
    stored, smallest_group = _stored(graph)
    options = _with_hints(options, graph)
    has_experts = any(node.get_type_name() == _ROUTING for node in graph.get_ops())
    try:
        if files.table is not None:
            vectors = embed_texts(graph, read_graph(files.table))
        paged(graph)
    except ModelError as error:
        raise ModelError(f"{files.graph}: {error}") from error
    facts, tower = ir_facts(graph, raw_config), None
    if files.seeing is not None:
        tower = _tower(model_dir, files.seeing, facts.hidden_size, options)
        embed_pictures(graph, vectors, facts.hidden_size)
        facts = replace(facts, pictures=tower.facts)
    _give_windows(graph, facts)
    departures = list(unknown_settings(model_dir))
    if files.table is not None and blindness is not None:
        departures.append(blindness)
    computed: WeightType = "f32" if options.weight_type == "f32" else "bf16" if stored == "f32" else stored
    if options.asks_for_type and options.weight_type not in ("f32", stored):
        departures.append(f"dtype {options.weight_type} has no effect: the exported weights are stored as {stored}")
    if options.kernels == "own":
        departures.append("kernels own attend, and do not multiply: the exported graph has OpenVINO's products")
    chosen, has_states = replace(options, weight_type=computed), bool(facts.state_layers)
    profile = kernel_profile(chosen, has_states=has_states, smallest_group=smallest_group, is_exported=True)
    if profile.attends:
        attend_ourselves(graph, facts.attention_layers, profile.kv_type, attention_sinks(graph))
    else:
        facts = facts.without_caps()
    unpacks = 2 if stored in ("f16", "bf16") and profile.inference_type == "f32" else 1
    return IrModel(
        facts=replace(facts, departures=(*facts.departures, *departures)),
        options=replace(options, weight_type=stored),
        profile=profile,
        files=files.all,
        weights_bytes=sum(path.stat().st_size for path in files.weights) * unpacks,
        # the runtime may group the products of experts, and reads neither such graphs again nor those with states
        can_be_kept=not (has_experts or has_states),
        tower=tower,
        graph=graph,
    )


def _blindness(model_dir: Path, raw_config: Mapping[str, Any]) -> str | None:
    if raw_config.get("model_type") not in _SEEING or (model_dir / GRAPH_FILE).is_file():
        return _BLIND
    missing = next((name for name in (VISION_FILE, PROJECTION_FILE) if not (model_dir / name).is_file()), None)
    if missing is not None:
        return f"pictures are refused: there is no {missing}"
    return None if is_described(model_dir) else NO_DESCRIPTION


def _tower(model_dir: Path, files: SeeingFiles, hidden_size: int, options: ModelOptions) -> IrTower:
    try:
        vision = Phi3Vision(model_dir, hidden_size)
        processor = vision.processor(read_described(model_dir, json.loads(options.picture_changes)))
    except ModelError as error:
        raise ModelError(f"{error}; limit_mm_per_prompt image=0 serves its texts alone") from error
    return IrTower(vision.facts, processor, partial(vision.tower, files))


def _with_hints(options: ModelOptions, graph: Any) -> ModelOptions:
    """The options, with the export's type of caches where they leave it open; its f16 is our default half precision."""
    try:
        hint = graph.get_rt_info(["runtime_options", "KV_CACHE_PRECISION"]).astype(str)
    except RuntimeError:  # the export has none
        return options
    return replace(options, kv_type="u8") if options.kv_type == "auto" and hint == "u8" else options


def _stored(graph: Any) -> tuple[WeightType, int | None]:
    """The type that most weights have, and the fewest columns that share a scale, None = none are packed in groups."""
    sizes: Counter[str] = Counter()
    groups: list[int] = []
    for node in graph.get_ops():
        if node.get_type_name() != "Constant":
            continue
        name, shape = node.get_element_type().get_type_name(), list(node.get_output_shape(0))
        if name not in _STORED or len(shape) < 2:
            continue
        count = 1
        for length in shape:
            count *= length
        sizes[_STORED[name]] += count
        if name in _PACKED and len(shape) > 2 and shape[-1] > 1:
            groups.append(shape[-1])
    stored: Any = max(sizes, key=lambda kind: sizes[kind], default="f32")
    return stored, min(groups, default=None)


def _give_windows(graph: Any, facts: ModelFacts) -> None:
    nodes = attentions(graph)
    for number in range(1, len(facts.cache_kinds)):
        give_tables(graph, [nodes[layer] for layer in nodes if facts.cache_kind(layer) == number], number)
    graph.validate_nodes_and_infer_types()


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
