"""Options of other servers that configuration files carry along, and what becomes of each here.

Does: list the known names that do not act on this server, with the reason; each is either reported once at start
(nothing a client sees depends on it) or stops the start (it asks for something this server would not do).
Does not: read anything. Used by `resolve` and the docs writer. Source of the names: the LMI configuration reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ForeignOption:
    """A known name without an effect. `harmless` values (patterns) ask for what happens anyway and are not mentioned."""

    key: str
    reason: str
    harmless: tuple[str, ...] = ()
    is_refused: bool = False

    def is_harmless(self, text: str) -> bool:
        """True if this value asks for nothing but what happens anyway."""
        return any(fnmatchcase(text.lower(), pattern) for pattern in self.harmless)


OFF = ("false", "0", "none", "")

NO_GPU = "the model runs on the CPU"
ONE_PROCESS = "one process serves the model; there are no worker processes"
BUILT_IN = "the engine is built in"
NO_LORA = "LoRA adapters are not served"
OWN_PARSERS = "on wherever the chat template has it; option.tool_call_parser and option.reasoning_parser switch it off"
OWN_SAMPLING = "this backend's own decoding strategy does not exist here"


def _noted(reason: str, *keys: str, harmless: tuple[str, ...] = ()) -> tuple[ForeignOption, ...]:
    return tuple(ForeignOption(key, reason, harmless) for key in keys)


def _refused(reason: str, *keys: str, harmless: tuple[str, ...] = OFF) -> tuple[ForeignOption, ...]:
    return tuple(ForeignOption(key, reason, harmless, is_refused=True) for key in keys)


FOREIGN_OPTIONS: tuple[ForeignOption, ...] = (
    # reported once at start
    *_noted(BUILT_IN, "engine", harmless=("python", "mpi")),
    *_noted(BUILT_IN, "option.mpi_mode", "option.async_mode", harmless=OFF),
    *_noted(BUILT_IN, "option.load_format", harmless=("auto", "safetensors")),
    *_noted(BUILT_IN, "option.device_map", "option.low_cpu_mem_usage", "option.disable_flash_attn"),
    *_noted(BUILT_IN, "option.enforce_eager", "option.disable_sliding_window", harmless=OFF),
    *_noted(BUILT_IN, "option.tokenizer_mode", harmless=("auto",)),
    *_noted(BUILT_IN, "option.swap_space", "option.block_size", "option.use_v2_block_manager"),
    *_noted(BUILT_IN, "option.max_seq_len_to_capture", "option.guided_decoding_backend"),
    *_noted("counters are served at /metrics", "option.disable_log_stats", harmless=OFF),
    *_noted("seeds are given in the request", "option.seed"),
    *_noted("option.max_model_len bounds both together", "option.max_input_len", "option.max_output_len"),
    *_noted("text is sent as it is made", "rolling_batch_buffer"),
    *_noted("prompts are always computed in pieces", "option.enable_chunked_prefill", harmless=("true",)),
    *_noted("requests join the batch at the next step, without a window", "max_batch_delay", "option.waiting_steps"),
    *_noted(NO_GPU, "option.tensor_parallel_degree", "option.pipeline_parallel_degree", harmless=("1", "max")),
    *_noted(NO_GPU, "option.gpu_memory_utilization", "option.kv_cache_free_gpu_mem_fraction"),
    *_noted(NO_GPU, "option.cpu_offload_gb_per_gpu", "load_on_devices", "required_memory_mb", "reserved_memory_mb"),
    *_noted(NO_GPU, "gpu.required_memory_mb", "gpu.reserved_memory_mb", "gpu.minWorkers", "gpu.maxWorkers"),
    *_noted(ONE_PROCESS, "minWorkers", "maxWorkers", harmless=("1",)),
    *_noted(ONE_PROCESS, "max_idle_time", "retry_threshold", "option.parallel_loading", "option.pythonExecutable"),
    *_noted(ONE_PROCESS, "option.enable_venv", "option.max_output_size"),
    *_noted("loading has no time limit; /ping answers 503 until it is done", "option.model_loading_timeout"),
    *_noted("the port is bound at once; /ping answers 503 while loading", "wait_model_loading"),
    *_noted("management and inference share one address", "management_address"),
    *_noted("a stream is never cut for silence", "chunked_read_timeout"),
    *_noted("weights are compressed as option.dtype says", "option.quantize", harmless=("none",)),
    *_noted("weights are compressed as option.dtype says", "option.load_in_8bit", "option.load_in_4bit", harmless=OFF),
    *_noted("a checkpoint's own code is never run", "option.trust_remote_code", harmless=OFF),
    *_noted("the model is the directory as it lies there", "option.revision"),
    *_noted("this server generates text", "option.task", harmless=("text-generation", "text_generation", "auto")),
    *_noted("counters are served at /metrics instead", "log_request_metric", "metrics_aggregation"),
    *_noted("/ping tells the engine's own state", "allow_multi_status", harmless=OFF),
    *_noted("/ping tells the engine's own state", "error_rate_wlm", "error_rate_server", "error_rate_model"),
    *_noted("/ping tells the engine's own state", "error_rate_any", "health_check_override", "fail_fast"),
    # stop the start
    *_refused("statuses are fixed", "bad_request_http_code", harmless=("400",)),
    *_refused("statuses are fixed", "wlm_error_http_code", "throttle_error_http_code", harmless=("503",)),
    *_refused("statuses are fixed", "timeout_http_code", harmless=("400",)),
    *_refused("statuses are fixed", "server_error_http_code", harmless=("500",)),
    *_refused("the header is x-request-id", "request_id_header_key", harmless=("x-request-id",)),
    *_refused("models are not loaded on request", "model_url_pattern"),
    *_refused("this schema is not spoken", "option.bedrock_compat"),
    *_refused("set variables in the environment of the server", "option.env"),
    *_refused("a handler of your own is not run", "option.handler", harmless=("handle",)),
    *_refused("images are not understood by this engine", "option.limit_mm_per_prompt", harmless=("{}",)),
    *_refused(NO_LORA, "option.enable_lora"),
    *_noted(NO_LORA, "option.max_loras", "option.max_lora_rank", "option.max_cpu_loras", "option.lora_dtype"),
    *_noted(NO_LORA, "option.fully_sharded_loras", "option.lora_extra_vocab_size", "option.long_lora_scaling_factors"),
    *_refused("speculation has options of its own, such as option.draft_model", "option.speculative_config"),
    *_noted(ONE_PROCESS, "option.draft_model_tp_size", harmless=("1",)),
    *_noted("counters are served at /metrics instead", "option.record_acceptance_rate", harmless=OFF),
    *_noted(OWN_PARSERS, "option.enable_auto_tool_choice", "option.enable_reasoning", harmless=("true",)),
    *_noted("content is fitted to the template", "option.chat_template_content_format", harmless=("auto",)),
    *_refused("give stop strings in the request", "option.stop_sequence"),
    *_refused(OWN_SAMPLING, "option.decoding_strategy", harmless=("greedy",)),
    *_noted(OWN_SAMPLING, "option.max_sparsity", "option.max_splits"),
    *_refused("sessions are not kept", "option.enable_stateful_sessions"),
    *_noted("sessions are not kept", "option.sessions_path", "option.sessions_expiration"),
    *_noted("embeddings are not served", "option.normalize"),
)
"""Every known name that does not act."""

FOREIGN_VARIABLES: Mapping[str, str] = MappingProxyType({
    "HF_REVISION": "option.revision",
    "HF_TASK": "option.task",
    "HF_MODEL_QUANTIZE": "option.quantize",
    "HF_MODEL_TRUST_REMOTE_CODE": "option.trust_remote_code",
    "SM_NUM_GPUS": "option.tensor_parallel_degree",
    "TENSOR_PARALLEL_DEGREE": "option.tensor_parallel_degree",
    "CUDA_MEMORY_FRACTION": "option.gpu_memory_utilization",
    "ENABLE_CUDA_GRAPHS": "option.enforce_eager",
    "SAGEMAKER_NUM_MODEL_WORKERS": "maxWorkers",
    "SAGEMAKER_HEALTH_CHECK_OVERRIDE": "health_check_override",
    "PYTHON_EXECUTABLE": "option.pythonExecutable",
    "SAGEMAKER_STARTUP_TIMEOUT": "option.model_loading_timeout",
    "MODEL_LOADING_TIMEOUT": "option.model_loading_timeout",
})  # fmt: skip
"""Environment variables that stand for a name above."""
