"""From a directory with an exported graph to one that can be compiled, with what the model is and how it is run.

Does: read and transform the graph, decide how it is run by what its weights are. Does not: compile, or know checkpoints.
Called by the loader and by whoever foretells sizes, once per start each, on any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.models.config import ModelError, read_json
from dragoman.models.facts import ModelFacts
from dragoman.models.ir.facts import ir_facts
from dragoman.models.ir.files import ir_files, unknown_settings
from dragoman.models.ir.graph import attentions, embed_texts, give_tables, paged, read_graph
from dragoman.models.profile import KernelProfile, ModelOptions, kernel_profile
from dragoman.models.storage.constants import WeightType

_STORED: Mapping[str, WeightType] = {
    "u4": "int4", "i4": "int4", "u8": "int8", "i8": "int8", "f16": "f16", "bf16": "bf16", "f32": "f32",
}  # fmt: skip
_BLIND = "no pictures are taken in: the exported graphs that see do not run here"
_ROUTING = "TopK"  # chooses a token's experts
_PACKED = ("u4", "i4", "u8", "i8")


@dataclass(slots=True)
class IrModel:
    """An exported model. `options`: those asked for, with the type of weights that the file has.

    `weights_bytes`: those of the weights as the kernels read them. `can_be_kept`: the runtime can read the compiled graph
    again.
    """

    facts: ModelFacts
    options: ModelOptions
    profile: KernelProfile
    files: tuple[Path, ...]
    weights_bytes: int
    can_be_kept: bool
    graph: Any

    def take_graph(self) -> Any:
        """The graph, with paged attention; once, as its weights live as long as somebody has it."""
        graph, self.graph = self.graph, None
        return graph


def read_ir(model_dir: Path, options: ModelOptions) -> IrModel:
    """The exported model of a directory. Raises: ModelError if it cannot be run."""
    files = ir_files(model_dir)
    graph = read_graph(files.graph)
    stored, smallest_group = _stored(graph)
    options = _with_hints(options, graph)
    has_experts = any(node.get_type_name() == _ROUTING for node in graph.get_ops())
    try:
        if files.table is not None:
            embed_texts(graph, read_graph(files.table))
        paged(graph)
    except ModelError as error:
        raise ModelError(f"{files.graph}: {error}") from error
    facts = ir_facts(graph, read_json(model_dir / "config.json"))
    _give_windows(graph, facts)
    departures = [*facts.departures, *unknown_settings(model_dir), *([_BLIND] if files.table else [])]
    computed: WeightType = "f32" if options.weight_type == "f32" else "bf16" if stored == "f32" else stored
    if options.asks_for_type and options.weight_type not in ("f32", stored):
        departures.append(f"dtype {options.weight_type} has no effect: the exported weights are stored as {stored}")
    chosen, has_states = replace(options, weight_type=computed), bool(facts.state_layers)
    profile = kernel_profile(chosen, has_states=has_states, smallest_group=smallest_group)
    unpacks = 2 if stored in ("f16", "bf16") and profile.inference_type == "f32" else 1
    return IrModel(
        facts=replace(facts, departures=tuple(departures)),
        options=replace(options, weight_type=stored),
        profile=profile,
        files=files.all,
        weights_bytes=sum(path.stat().st_size for path in files.weights) * unpacks,
        # the runtime may group the products of experts, and reads neither such graphs again nor those with states
        can_be_kept=not (has_experts or has_states),
        graph=graph,
    )


def _with_hints(options: ModelOptions, graph: Any) -> ModelOptions:
    """The options, where they leave the cache's type open with the one that the export asks for.

    Its f16 is half precision, which is ours by default in the form that the processor has.
    """
    try:
        hint = graph.get_rt_info(["runtime_options", "KV_CACHE_PRECISION"]).astype(str)
    except RuntimeError:  # there is none
        return options
    return replace(options, kv_type="u8") if options.kv_type == "auto" and hint == "u8" else options


def _stored(graph: Any) -> tuple[WeightType, int | None]:
    """The type that most weights have, and the fewest columns that share a scale, None = none are packed in groups.

    Groups are the last axis of a packed matrix with more than two; a zero point's last axis is of length one.
    """
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
    """Tables of their own for layers that see a window, so that their cache forgets what lies before it."""
    nodes = attentions(graph)
    for number in range(1, len(facts.cache_kinds)):
        give_tables(graph, [nodes[layer] for layer in nodes if facts.cache_kind(layer) == number], number)
    graph.validate_nodes_and_infer_types()
