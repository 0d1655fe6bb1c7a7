"""From a model directory to a compiled graph.

Does: build (or map the cached graph), choose precisions, compile. Does not: allocate the KV cache or run.
Called by the composition root, once per start, on any thread.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import openvino as ov

from dragoman import __version__
from dragoman.models.config import LlamaConfig, ModelError, read_json
from dragoman.models.layers import AttentionShape, WeightType, set_attention_shape
from dragoman.models.llama import BuildOptions
from dragoman.models.processor import lacks_integer_dot_products
from dragoman.models.read_ahead import read_ahead
from dragoman.models.registry import family_for
from dragoman.models.weights import Checkpoint, weight_files

logger = logging.getLogger(__name__)

KvType = Literal["auto", "bf16", "f16", "f32", "u8"]
LoadProgress = Callable[[str, float], None]  # stage name, fraction done 0..1

BLOCK_SIZE = 32  # tokens in a KV block: fixed by the CPU plugin's kernels

_GRAPH_FORMAT = 3  # raised when the builders change: graphs cached before that are not used

_UNPACKED_COLUMNS = 1280  # times 64 outputs of 4 bytes: 320 KB

# 128 prefills a quarter faster than the plugin's default of 32, and larger groups are slower again.
_DYNAMIC_QUANTIZATION_GROUP = 128


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to store and run a model. `num_threads` None = all cores; `cache_dir` None = build anew at every start."""

    weight_type: WeightType = "int8"
    kv_type: KvType = "auto"
    num_threads: int | None = None
    cache_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A compiled graph and the facts a runner needs. `from_cache`: the graph was mapped, not built."""

    compiled: Any
    config: LlamaConfig
    options: ModelOptions
    inference_type: str
    kv_type: str
    from_cache: bool

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
    raw_config = read_json(model_dir / "config.json")
    config = family_for(raw_config).parse_config(raw_config)
    core = ov.Core()
    inference_type, kv_type = _choose_precisions(core, options)
    cached = _cached_graph(model_dir, options)
    from_cache = cached is not None and cached.exists()
    if cached is not None and from_cache:
        report("mapping weights", 0.0)
        read_ahead([cached.with_suffix(".bin")])
        graph = core.read_model(cached)
        _restore_attention_shapes(graph, config)
    else:
        graph = _build_graph(model_dir, raw_config, config, options, report)
    report("compiling", 0.0)
    properties = _compile_properties(options, inference_type, kv_type)
    with ThreadPoolExecutor(1, thread_name_prefix="save-graph") as saver:  # compiling keeps a single core busy
        if cached is not None and not from_cache:
            saver.submit(_save_graph, graph, cached)
        compiled = core.compile_model(graph, "CPU", properties)
    report("compiling", 1.0)
    return LoadedModel(compiled, config, options, inference_type, kv_type, from_cache)


def _choose_precisions(core: Any, options: ModelOptions) -> tuple[str, str]:
    """Inference and KV precision. bf16 needs hardware support; f32 weights mean f32 everywhere (reference precision)."""
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    inference = "bf16" if has_bf16 and options.weight_type != "f32" else "f32"
    automatic = {"bf16": "bf16", "f32": "f32" if options.weight_type == "f32" else "f16"}[inference]
    kv_type = automatic if options.kv_type == "auto" else options.kv_type
    allowed = {"bf16": ("bf16", "u8"), "f32": ("f32", "f16", "u8")}[inference]
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


def _build_options(options: ModelOptions) -> BuildOptions:
    """Without integer instructions the kernels unpack weights to f32, in blocks that are as deep as the matrix is wide.

    That is up to a third faster without zero points, and twice as fast for steps of 8 to 64 tokens if a block stays in a
    core's own cache.
    """
    if options.weight_type not in ("int8", "int4") or not lacks_integer_dot_products():
        return BuildOptions(options.weight_type)
    return BuildOptions("int8_symmetric" if options.weight_type == "int8" else "int4", _UNPACKED_COLUMNS)


def _build_graph(
    model_dir: Path, raw_config: dict[str, Any], config: LlamaConfig, options: ModelOptions, report: LoadProgress
) -> Any:
    report("building the graph", 0.0)
    with Checkpoint(model_dir) as checkpoint:
        builder = family_for(raw_config).builder(config, checkpoint, _build_options(options))
        return builder.build(lambda done, total: report("building the graph", done / total))


def _cached_graph(model_dir: Path, options: ModelOptions) -> Path | None:
    """Where the built graph of exactly these files and options lives; None without a cache directory."""
    if options.cache_dir is None:
        return None
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weight_files(model_dir)]
    versions = [__version__, _GRAPH_FORMAT, ov.__version__]
    facts = [*versions, str(model_dir.resolve()), stats, asdict(_build_options(options))]
    facts.append((model_dir / "config.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return options.cache_dir / f"{model_dir.resolve().name}-{digest}.xml"


def _restore_attention_shapes(graph: Any, config: LlamaConfig) -> None:
    """Serialisation drops the runtime info from which the plugin takes the cache's shape; set it again."""
    shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_size)
    for node in graph.get_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            set_attention_shape(node, shape)


def _save_graph(graph: Any, target: Path) -> None:
    """Write the graph so that a reader never sees half a file: weights first, then the .xml by rename.

    A failure is logged: the next start builds the graph again.
    """
    unfinished = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        ov.save_model(graph, unfinished, compress_to_fp16=False)
        unfinished.with_suffix(".bin").replace(target.with_suffix(".bin"))
        unfinished.replace(target)
    except (OSError, RuntimeError) as error:
        logger.warning("the built graph cannot be kept in %s: %s", target.parent, error)
        for path in (unfinished, unfinished.with_suffix(".bin")):
            with suppress(OSError):
                path.unlink(missing_ok=True)
