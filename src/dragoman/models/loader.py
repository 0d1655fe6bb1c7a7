"""From a model directory to a compiled graph.

Does: choose precisions; build and compile, or map the graph that an earlier start kept; run it once. Does not: allocate the
KV cache.
Called by the composition root, once per start, on any thread.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import openvino as ov

from dragoman import __version__
from dragoman.models import kernel_threads, runtime_memory
from dragoman.models.config import LlamaConfig, ModelError, read_json
from dragoman.models.kept_graph import compile_and_keep, map_kept
from dragoman.models.layers import AttentionShape
from dragoman.models.processor import is_arm, lacks_integer_dot_products, lacks_scalable_vectors
from dragoman.models.read_ahead import read_ahead
from dragoman.models.registry import family_for
from dragoman.models.row_parts import RowParts
from dragoman.models.stored_weights import WeightFormat, WeightStorage, WeightType
from dragoman.models.warm_up import warm_up
from dragoman.models.weights import Checkpoint, weight_files

KvType = Literal["auto", "bf16", "f16", "f32", "u8"]
LoadProgress = Callable[[str, float], None]  # stage name, fraction done 0..1

BLOCK_SIZE = 32  # tokens in a KV block: fixed by the CPU plugin's kernels

_GRAPH_FORMAT = 7  # raised when the builders or the files change: graphs kept before that are not used

# Where the kernels unpack weights to f32:
_UNPACKED_COLUMNS = 1280  # times 64 outputs of 4 bytes: 320 KB
_UNPACKED_ROWS = 80  # with more, another kernel is chosen: a fifth slower per row at 81, still slower at 512

# 128 prefills a quarter faster than the plugin's default of 32, and larger groups are slower again.
_DYNAMIC_QUANTIZATION_GROUP = 128


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to store and run a model. `num_threads` None = all cores; `cache_dir` None = build anew at every start.

    `has_neighbours`: other models compute in this process at the same time (see `kernel_threads`).
    """

    weight_type: WeightType = "int8"
    kv_type: KvType = "auto"
    num_threads: int | None = None
    cache_dir: Path | None = None
    has_neighbours: bool = False


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A compiled graph and the facts a runner needs. `mapping`: the file that holds its weights, None if it was built."""

    compiled: Any
    config: LlamaConfig
    options: ModelOptions
    inference_type: str
    kv_type: str
    mapping: Any = None

    @property
    def from_cache(self) -> bool:
        """True if the graph was mapped, not built."""
        return self.mapping is not None

    @property
    def best_step_tokens(self) -> int | None:
        """The tokens of a step in which a token costs the least; None if a larger step is never worse."""
        return None if _weight_format(self.options).max_columns is None else _UNPACKED_ROWS

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block over all layers, keys and values."""
        total_bits = 0
        for port in cache_ports(self.compiled):
            elements = 1
            for dimension in list(port.get_partial_shape())[1:]:
                elements *= dimension.get_length()
            total_bits += elements * port.get_element_type().bitwidth
        return total_bits // 8


def cache_ports(compiled: Any) -> list[Any]:
    """The key and value cache inputs of a compiled graph, in input order."""
    return [port for port in compiled.inputs if port.get_any_name().startswith(("key_cache.", "value_cache."))]


def load_model(model_dir: Path, options: ModelOptions, progress: LoadProgress | None = None) -> LoadedModel:
    """The compiled model of a Hugging Face directory.

    Raises: ModelError if the directory is not a supported checkpoint or a precision is not supported here.
    """
    report = progress or (lambda _stage, _fraction: None)
    if lacks_scalable_vectors():
        raise ModelError("this Arm processor has no SVE, and the attention kernels need it")
    raw_config = read_json(model_dir / "config.json")
    config = family_for(raw_config).parse_config(raw_config)
    core = ov.Core()
    inference_type, kv_type = _choose_precisions(core, options)
    properties = _compile_properties(options, inference_type, kv_type)
    kept = None if options.cache_dir is None else options.cache_dir / _kept_name(core, model_dir, options, properties)
    runtime_memory.bound_shared_cache()
    # not part of the name: they do not change what is kept
    properties |= runtime_memory.PROPERTIES
    if options.has_neighbours:
        properties |= kernel_threads.SHARED
    if kept is not None and kept.exists():
        report("mapping weights", 0.0)
        read_ahead([kept])
        shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_size)
        mapped = map_kept(core, kept, properties, shape)
        if mapped is not None:
            return _ready(LoadedModel(mapped[0], config, options, inference_type, kv_type, mapped[1]), report)
    graph = _build_graph(model_dir, raw_config, config, options, report)
    report("compiling", 0.0)
    if kept is None:
        compiled = core.compile_model(graph, "CPU", properties)
    else:
        compiled = compile_and_keep(core, graph, properties, kept)
    report("compiling", 1.0)
    return _ready(LoadedModel(compiled, config, options, inference_type, kv_type), report)


def _ready(loaded: LoadedModel, report: LoadProgress) -> LoadedModel:
    report("warming up", 0.0)
    warm_up(loaded.compiled)
    report("warming up", 1.0)
    return loaded


def _choose_precisions(core: Any, options: ModelOptions) -> tuple[str, str]:
    """Inference and KV precision. bf16 needs hardware support; f32 weights mean f32 everywhere (reference precision)."""
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    inference = "bf16" if has_bf16 and options.weight_type != "f32" and not is_arm() else "f32"
    allowed = {"bf16": ("bf16", "u8"), "f32": ("f16", "f32", "u8")}[inference]
    if is_arm():
        allowed = ("f32", "u8")  # of which its attention kernels are
    automatic = "f32" if options.weight_type == "f32" else allowed[0]
    kv_type = automatic if options.kv_type == "auto" else options.kv_type
    if kv_type not in allowed:
        raise ModelError(f"kv-dtype {kv_type!r} does not go with {inference} inference; allowed: {', '.join(allowed)}")
    return inference, kv_type


def _compile_properties(options: ModelOptions, inference_type: str, kv_type: str) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": inference_type,
        "KV_CACHE_PRECISION": kv_type,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _DYNAMIC_QUANTIZATION_GROUP,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if kv_type == "u8":
        # By channel, a key's quantisation depends on how its prompt was chunked; by token it does not.
        properties["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
    if options.weight_type == "f32":
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    if options.num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = options.num_threads
    return properties


def _weight_format(options: ModelOptions) -> WeightFormat:
    """Without integer instructions the kernels unpack weights to f32, in blocks that are as deep as the matrix is wide.

    That is up to a third faster without zero points, and twice as fast for steps of 8 to 64 tokens if a block stays in a
    core's own cache.
    """
    if options.weight_type not in ("int8", "int4") or not lacks_integer_dot_products():
        return WeightFormat(options.weight_type)
    return WeightFormat("int8_symmetric" if options.weight_type == "int8" else "int4", _UNPACKED_COLUMNS)


def _build_graph(
    model_dir: Path, raw_config: dict[str, Any], config: LlamaConfig, options: ModelOptions, report: LoadProgress
) -> Any:
    report("building the graph", 0.0)
    with Checkpoint(model_dir) as checkpoint, RowParts() as parts:
        storage = WeightStorage(_weight_format(options), parts)
        graph = family_for(raw_config).builder(config, checkpoint, storage).build()
        parts.finish(lambda done, total: report("building the graph", done / total))
        return graph


def _kept_name(core: Any, model_dir: Path, options: ModelOptions, properties: dict[str, Any]) -> str:
    """The name of the file that holds the graph of exactly these files and options, compiled for this processor.

    It ends in two digests, of what is asked for and of what it is made from: of two files that differ only in the last one,
    the older one is of no use any more.
    """
    processor = [core.get_property("CPU", name) for name in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")]
    wanted = [str(model_dir.resolve()), *processor, properties, asdict(_weight_format(options))]
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weight_files(model_dir)]
    config = (model_dir / "config.json").read_text(encoding="utf-8")
    source = [__version__, _GRAPH_FORMAT, ov.__version__, files, config]
    return f"{model_dir.resolve().name}-{_digest(wanted)}-{_digest(source)}.blob"


def _digest(facts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
