"""Reads an exported graph and makes one that can be compiled, with the model's facts and its profile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.models.config import ModelError, read_json
from dragoman.models.facts import ModelFacts, PictureFacts
from dragoman.models.ir.facts import attention_sinks, ir_facts
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
    paged,
    read_graph,
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
