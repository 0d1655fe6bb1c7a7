"""From a model directory to a compiled graph: builds and compiles it, or maps that of an earlier start, and runs it once.

Called by the engine's factory, once per start, on any thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from dragoman.files.model_texts import is_gguf, naming_gguf
from dragoman.files.ownership import own_directory
from dragoman.kernels.graph import runtime
from dragoman.kernels.native import library
from dragoman.models import memory
from dragoman.models.adapters.adapted_model import AdapterPlan, MergedAdapter, ModelAdapters, plan_adapters
from dragoman.models.adapters.inputs import ADAPTER_INPUTS, MASK, adapter_places
from dragoman.models.blocks.step import PICTURE_EMBEDDINGS, PICTURE_ROWS, ROTARY_POSITIONS, TOKEN_TYPES
from dragoman.models.config import ModelError
from dragoman.models.facts import ModelFacts
from dragoman.models.families import has_tower, read_model
from dragoman.models.families.base import Family
from dragoman.models.ir.files import has_graph, is_ir
from dragoman.models.kept_files import bound_kept, compile_and_keep, kept_name, map_kept, note_use
from dragoman.models.kept_files import built as built_over
from dragoman.models.profile import (
    BLOCK_SIZE,
    KernelProfile,
    ModelOptions,
    keeps_file_types,
    kernel_profile,
    profile_departures,
    require_library,
    tell_library,
    uses_library,
)
from dragoman.models.sources.base import WeightSource
from dragoman.models.stages import BUILDING, COMPILING, MAPPING, READING, WARMING_UP
from dragoman.models.storage.constants import WeightMemory, WeightStorage
from dragoman.models.storage.packing import keeps_type
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.stored.opening import StoredWeights, read_ahead, stored_weights
from dragoman.models.vision.base import EMBEDDINGS
from dragoman.models.vision.described import NO_DESCRIPTION, is_described, read_described, read_seeing_config
from dragoman.models.vision.tower import Tower
from dragoman.models.weights import Weights

logger = logging.getLogger(__name__)

_RECOMPRESSED = (
    "{types} weights are computed and stored anew as {stored}, which rounds them a second time; dtype f32 does not"
)

_NOT_THE_GRAPH = "the exported OpenVINO graph is not read: the directory holds a checkpoint, too"

_GIB = 1 << 30
_TOWER = "tower "  # begins the name of a kept part: one of the tower's, or all

LoadProgress = Callable[[str, float], None]  # stage name, fraction done 0..1


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A compiled graph, and what a runner of it needs. `mapping`: the file that holds its weights.

    `stored_as`: how its weights are stored, for people. `adapters`: None if there is no place for any;
    `adapters_key`: what the graph depends on because of them.
    """

    compiled: Any
    facts: ModelFacts
    options: ModelOptions
    profile: KernelProfile
    mapping: Any = None
    from_cache: bool = False
    tower: Tower | None = None
    stored_as: str = ""
    adapters: ModelAdapters | None = None
    adapters_key: str = ""

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """Bytes of one block over all layers, for each of the model's kinds of caches."""
        total_bits = [0] * len(self.facts.cache_kinds)
        for port in cache_ports(self.compiled):
            elements = 1
            for dimension in list(port.get_partial_shape())[1:]:
                elements *= dimension.get_length()
            total_bits[cache_kind(port, self.facts)] += elements * port.get_element_type().bitwidth
        return tuple(bits // 8 for bits in total_bits)


def cache_ports(compiled: Any) -> list[Any]:
    return [port for port in compiled.inputs if port.get_any_name().startswith(CACHES)]


def cache_layer(port: Any) -> int:
    return int(port.get_any_name().rpartition(".")[2])


def cache_kind(port: Any, facts: ModelFacts) -> int:
    name = port.get_any_name()
    if name.startswith("state_cache."):
        return facts.state_kind
    return facts.convolution_kind if name.startswith("rows_cache.") else facts.cache_kind(cache_layer(port))


def load_model(model_dir: Path, options: ModelOptions, progress: LoadProgress | None = None) -> LoadedModel:
    """The compiled model of a directory. Raises: ModelError if it, or a precision, is not supported here."""
    memory.bound_arenas()  # first: asking the runtime about the processor starts threads that may take a heap each
    report = progress or (lambda _stage, _fraction: None)
    if is_ir(model_dir):
        return _ready(_load_exported(model_dir, options, report), report)
    raw_config, has_description = read_seeing_config(model_dir), is_described(model_dir)
    with naming_gguf(model_dir):
        model = read_model(raw_config, sees=options.sees and has_description)
    if options.sees and not has_description and has_tower(raw_config):
        model.facts = replace(model.facts, departures=(*model.facts.departures, NO_DESCRIPTION))
    if has_graph(model_dir):
        model.facts = replace(model.facts, departures=(*model.facts.departures, _NOT_THE_GRAPH))
    weights = stored_weights(model_dir, keeps_mxfp4=options.keeps_mxfp4, keeps_rows=keeps_file_types(options))
    profile = _profile(model, options, weights.smallest_group)
    recompressed = [name for name in weights.recompressed if not keeps_type(name, profile.weights)]
    if recompressed and options.weight_type != "f32":
        departure = _RECOMPRESSED.format(types=", ".join(recompressed), stored=options.weight_type)
        model.facts = replace(model.facts, departures=(*model.facts.departures, departure))
    adapters = plan_adapters(options.adapters, model)
    # packing such a file takes no longer than checking a kept one
    is_source = is_gguf(model_dir) and keeps_file_types(options)
    plan = _Plan(model_dir, weights.files, options, profile, model.facts, report, not is_source, adapters)

    def made(build: Callable[[Weights], Any], adapters: AdapterPlan | None = None) -> Callable[[WeightMemory], Any]:
        return partial(_graph_of, weights, build, profile, report, adapters)

    part = "seeing" if model.vision else ""
    mapping = None
    if profile.kernels == "own":
        (compiled,), from_cache = plan.over_weights(part, made(lambda weights: [model.build(weights)], adapters))
    else:
        compiled, mapping, from_cache = plan.compiled(part, partial(made(model.build, adapters), WeightMemory()))
    tower = None
    if model.vision is not None:
        processor = model.vision.processor(read_described(model_dir, json.loads(options.picture_changes)))
        tower = Tower(*_tower_parts(plan, made(model.vision.build)), model.vision.facts, processor)
    found = None if adapters is None else adapters.found(adapter_places(compiled))
    stored_as = _stored_as(weights, options)
    key = "" if adapters is None else adapters.key
    loaded = LoadedModel(compiled, model.facts, options, profile, mapping, from_cache, tower, stored_as, found, key)
    return _ready(loaded, report)


def _tower_parts(plan: _Plan, build: Callable[[WeightMemory], list[Any]]) -> tuple[list[Any], list[Any]]:
    """The compiled parts of a tower, and the mappings of their weights. Only if one of them is not kept, they are built."""
    if plan.profile.kernels == "own":
        return plan.over_weights(_TOWER, build)[0], []
    built: list[Any] = []

    def make(index: int) -> Any:
        if not built:
            built.extend(build(WeightMemory()))
        graph, built[index] = built[index], None  # once it is compiled, its memory is free
        return graph

    parts: list[Any] = []
    mappings = []
    while not parts or all(place.any_name != EMBEDDINGS for place in parts[-1].outputs):
        compiled, mapping, _ = plan.compiled(f"{_TOWER}{len(parts)}", partial(make, len(parts)))
        parts.append(compiled)
        mappings.append(mapping)
    return parts, mappings


def _stored_as(weights: StoredWeights, options: ModelOptions) -> str:
    if weights.quantised is None:
        return f"{options.weight_type} weights"
    if options.weight_type == "f32" or not weights.smallest_group:
        return f"{options.weight_type} weights from {weights.quantised}"
    return f"{weights.quantised} weights, others {options.weight_type}"


def _load_exported(model_dir: Path, options: ModelOptions, report: LoadProgress) -> LoadedModel:
    from dragoman.models.ir.read import read_ir  # checkpoints need none of it

    if options.adapters is not None:
        raise ModelError(f"{model_dir} holds an exported graph, which cannot take adapters")
    report(READING, 0.0)
    exported = read_ir(model_dir, options)
    facts, profile = exported.facts, exported.profile
    plan = _Plan(model_dir, exported.files, exported.options, profile, facts, report, is_kept=exported.can_be_kept)
    compiled, mapping, from_cache = plan.compiled("seeing" if exported.tower else "", exported.take_graph)
    tower = None
    if exported.tower is not None:
        make = exported.tower.make
        tower = Tower(*_tower_parts(plan, lambda _memory: [make()]), exported.tower.facts, exported.tower.processor)
    return LoadedModel(compiled, facts, exported.options, profile, mapping, from_cache, tower)


@dataclass(frozen=True, slots=True)
class _Plan:
    model_dir: Path
    files: Sequence[Path]
    options: ModelOptions
    profile: KernelProfile
    facts: ModelFacts
    report: LoadProgress
    is_kept: bool = True
    adapters: AdapterPlan | None = None

    @property
    def properties(self) -> dict[str, Any]:
        threads = self.options.num_threads
        return self.profile.properties | ({} if threads is None else {"INFERENCE_NUM_THREADS": threads})

    def compiled(self, part: str, make: Callable[[], Any]) -> tuple[Any, Any, bool]:
        """The compiled graph of a part, the mapping of its weights; True if an earlier start kept it."""
        kept = self._kept_file(part)
        core, properties = self._runtime(part)
        if kept is not None and kept.exists():
            self.report(MAPPING, 0.0)
            read_ahead([kept])
            checked = partial(self.report, MAPPING)
            mapped = map_kept(core, kept, properties, self.facts, progress=checked)
            if mapped is not None:
                note_use(kept)
                return (*mapped, True)
        graph = make()
        self.report(COMPILING, 0.0)
        if kept is None:
            compiled, mapping = core.compile_model(graph, "CPU", properties), None
        else:
            compiled, mapping = compile_and_keep(core, graph, properties, kept, self.facts)
            bound_kept(kept.parent, self.options.cache_max_gb * _GIB, kept)
        del graph  # it shares its weights' memory with what was compiled
        self.report(COMPILING, 1.0)
        return compiled, mapping, False

    def over_weights(self, part: str, build: Callable[[WeightMemory], list[Any]]) -> tuple[list[Any], bool]:
        """The graphs of a part, compiled over packed weights; True if an earlier start kept these."""
        kept = self._kept_file(part)
        core, properties = self._runtime(part)
        if kept is not None and kept.exists():
            self.report(MAPPING, 0.0)
            read_ahead([kept])
        graphs, from_cache = built_over(kept, build, partial(self.report, MAPPING))
        if kept is not None and not from_cache:
            bound_kept(kept.parent, self.options.cache_max_gb * _GIB, kept)
        self.report(COMPILING, 0.0)
        compiled = []
        while graphs:  # once one is compiled, its memory is free
            compiled.append(core.compile_model(graphs.pop(0), "CPU", properties))
        self.report(COMPILING, 1.0)
        return compiled, from_cache

    def _runtime(self, part: str) -> tuple[Any, dict[str, Any]]:
        memory.bound_shared_cache()
        # not part of the name: they do not change what is kept
        properties = self.properties | memory.PROPERTIES
        if self.options.has_neighbours or part:  # decoder and tower are neighbours, of one model
            properties |= memory.SHARED
        return runtime(has_operations=uses_library(self.facts, self.profile)), properties

    def _kept_file(self, part: str) -> Path | None:
        if self.adapters is not None and not part.startswith(_TOWER):
            part = f"{part} {self.adapters.key}"
        if self.options.cache_dir is None or not self.options.cache_max_gb or not self.is_kept:
            return None
        how = dict(self.properties)
        if uses_library(self.facts, self.profile):
            how |= {"library": library().digest, "takes_back": self.options.takes_back}
        name = kept_name(self.model_dir, self.files, self.profile, how, part)
        if name is None:
            return None
        try:
            own_directory(self.options.cache_dir)
        except OSError as error:
            logger.warning("what this start makes cannot be kept: %s", error)
            return None
        return self.options.cache_dir / name


def compile_source(model: Family, source: WeightSource, options: ModelOptions) -> LoadedModel:
    profile, adapters = _profile(model, options), plan_adapters(options.adapters, model)
    graph = _build_graph(model.build, source, profile, lambda _stage, _fraction: None, adapters)
    core = runtime(has_operations=uses_library(model.facts, profile))
    compiled = core.compile_model(graph, "CPU", dict(profile.properties))
    found = None if adapters is None else adapters.found(adapter_places(compiled))
    return LoadedModel(compiled, model.facts, options, profile, adapters=found)


def _profile(model: Family, options: ModelOptions, smallest_group: int | None = None) -> KernelProfile:
    """The profile for running the model. The model's facts lose what it cannot compute, and list that as departures."""
    tell_library(options.kernels)
    if model.facts.needs_library:
        require_library(model.facts.architecture)
    profile = kernel_profile(options, has_states=bool(model.facts.state_layers), smallest_group=smallest_group)
    model.cache_type = profile.kv_type if profile.attends else None
    model.takes_back = options.takes_back
    if not profile.attends:
        model.facts = model.facts.without_caps()
    departures = (*model.facts.departures, *profile_departures(options, profile))
    model.facts = replace(model.facts, departures=departures)
    return profile


def _ready(loaded: LoadedModel, report: LoadProgress) -> LoadedModel:
    report(WARMING_UP, 0.0)
    packed = loaded.profile.kernels == "own" and loaded.profile.attends
    warm_up(loaded.compiled, 0 if packed else NUM_TOKENS)
    if loaded.tower is not None:
        loaded.tower.warm_up()
    report(WARMING_UP, 1.0)
    return loaded


def _graph_of(
    weights: StoredWeights,
    build: Callable[[Weights], Any],
    profile: KernelProfile,
    report: LoadProgress,
    adapters: AdapterPlan | None,
    room: WeightMemory,
) -> Any:
    num_values = sum(prod(shape) for shape in weights.shapes().values())
    if not room.is_filled:
        read_ahead(weights.files)
    with weights.open() as source:
        return _build_graph(build, source, profile, report, adapters, num_values, room)


def _build_graph(
    build: Callable[[Weights], Any],
    source: WeightSource,
    profile: KernelProfile,
    report: LoadProgress,
    adapters: AdapterPlan | None = None,
    num_values: int = 0,
    room: WeightMemory | None = None,
) -> Any:
    """The graph. `num_values`: of the tensors in the source, 0 = they were not counted. `room`: of its packed weights."""
    room = room or WeightMemory()

    def tell(num_done: int) -> None:
        if not room.is_filled:
            report(BUILDING, min(num_done / num_values, 1.0) if num_values else 0.0)

    tell(0)
    adapting = None if adapters is None else adapters.adapting(computes_in_bf16=profile.inference_type == "bf16")
    with RowParts(progress=tell) as parts:
        graph = build(Weights(source, WeightStorage(profile.weights, parts, memory=room), adapting))
        if isinstance(adapting, MergedAdapter):
            adapting.refuse_unmerged()
        parts.finish()
        tell(num_values)
        return graph


CACHES = ("key_cache.", "value_cache.", "state_cache.", "rows_cache.")
"""The begins of names of inputs that are caches, before the number of their layer."""

NUM_TOKENS = 8  # more than 4: kernels for fewer rows pack the weights in another way


def warm_up(compiled: Any, num_tokens: int = NUM_TOKENS) -> None:
    """Compute a step of `num_tokens` in a cache of its own.

    Without tokens the plugin only makes what nodes need: enough where weights are packed, since a step reads all of
    them.
    """
    request = compiled.create_infer_request()
    values = {
        "input_ids": np.zeros(num_tokens, dtype=np.int64),
        "position_ids": np.arange(num_tokens, dtype=np.int64),
        "past_lens": np.zeros(1, dtype=np.int32),
        "subsequence_begins": np.array([0, num_tokens], dtype=np.int32),
        "block_indices": np.zeros(1, dtype=np.int32),
        "block_indices_begins": np.array([0, 1], dtype=np.int32),
        "max_context_len": np.array(num_tokens, dtype=np.int32),
        PICTURE_ROWS: np.zeros(0, dtype=np.int64),
        TOKEN_TYPES: np.zeros(num_tokens, dtype=np.int32),
        ROTARY_POSITIONS: np.zeros((3, num_tokens), dtype=np.int64),
        "rotary_regime": np.zeros(num_tokens, dtype=np.int64),
        "state_blocks": np.zeros(2, dtype=np.int32),  # for exported graphs with states: read one, write one
        "state_blocks_begins": np.array([0, 2], dtype=np.int32),
        "state_interval": np.array([BLOCK_SIZE], dtype=np.int32),
        "sampled_tokens_indices": np.array([num_tokens - 1] if num_tokens else [], dtype=np.int64),
    }
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(CACHES):
            request.set_tensor(port, _one_block(port))
        elif name == MASK:
            request.set_tensor(port, ov.Tensor(np.zeros((num_tokens, 0), dtype=np.float32)))
        elif name == PICTURE_EMBEDDINGS or name.startswith(ADAPTER_INPUTS):
            request.set_tensor(port, _rows(port, 0))
        else:
            request.set_tensor(port, ov.Tensor(values[name.partition(".")[0]]))  # "past_lens.1" as "past_lens"
    request.infer()


def _one_block(port: Any) -> Any:
    dimensions = list(port.get_partial_shape())[1:]
    tensor = ov.Tensor(port.get_element_type(), ov.Shape([1, *(dimension.get_length() for dimension in dimensions)]))
    if port.get_any_name().startswith("state_cache."):  # is read before it is written
        tensor.data[...] = 0
    return tensor


def _rows(port: Any, count: int) -> Any:
    tensor = ov.Tensor(port.get_element_type(), ov.Shape([count, port.get_partial_shape()[1].get_length()]))
    tensor.data[...] = 0
    return tensor
