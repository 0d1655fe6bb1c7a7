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
    is_secret: bool = False  # the value is never shown

    def is_harmless(self, text: str) -> bool:
        """True if this value asks for nothing but what happens anyway."""
        return any(fnmatchcase(text.lower(), pattern) for pattern in self.harmless)


OFF = ("false", "0", "none", "")
MANAGEMENT_ADDRESS = "management_address"  # not mentioned where it is the address there is

NO_GPU = "the model runs on the CPU"
ONE_PROCESS = "one process serves the model; there are no worker processes"
BUILT_IN = "the engine is built in"
NO_LORA = "LoRA adapters are not served"
OWN_PARSERS = "on wherever the chat template has it; option.tool_call_parser and option.reasoning_parser switch it off"
NO_TLS = "plain HTTP is spoken; a proxy in front can speak TLS"
NO_HUB = "models are directories on this machine; nothing is downloaded"
NO_ADAPTERS_OF_PROMPTS = "prompt adapters are not served"
AS_IT_LIES = "the model is the directory as it lies there"
ONE_THREAD = "one event loop serves all connections"
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
    *_noted(BUILT_IN, "option.block_size", "option.use_v2_block_manager", "option.preemption_mode"),
    *_noted(BUILT_IN, "option.guided_decoding_backend", "option.calculate_kv_scales", "option.attention_backend"),
    *_noted(BUILT_IN, "option.async_scheduling", "option.disable_async_output_proc", "option.num_lookahead_slots"),
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
    *_noted(NO_GPU, "number_of_gpu", "option.cpu_offload_gb", "option.swap_space", "option.num_gpu_blocks_override"),
    *_noted(NO_GPU, "option.max_seq_len_to_capture", "option.compilation_config", "option.enable_sleep_mode"),
    *_noted(NO_GPU, "option.tensor_parallel_size", "option.pipeline_parallel_size", harmless=("1",)),
    *_noted(NO_GPU, "option.data_parallel_size", "option.speculative_draft_tensor_parallel_size", harmless=("1",)),
    *_noted(NO_GPU, "option.device", harmless=("cpu", "auto")),
    *_noted("the key/value cache has options of its own", "option.lmcache_config_file", "option.kv_transfer_config"),
    *_noted("the key/value cache has options of its own", "option.lmcache_auto_config", harmless=OFF),
    *_noted("option.kv_cache_gb bounds the cache", "cpu.required_memory_mb", "cpu.reserved_memory_mb"),
    *_noted(ONE_PROCESS, "minWorkers", "maxWorkers", "cpu.minWorkers", "cpu.maxWorkers", harmless=("1",)),
    *_noted(ONE_PROCESS, "default_workers_per_model", harmless=("0", "1")),
    *_noted(
        ONE_PROCESS, "option.distributed_executor_backend", "option.worker_cls", "option.disable_custom_all_reduce"
    ),
    *_noted(ONE_PROCESS, "option.max_parallel_loading_workers", "option.tokenizer_pool_size"),
    *_noted(ONE_THREAD, "number_of_netty_threads", harmless=("0",)),
    *_noted(ONE_THREAD, "use_native_io", "io_ratio"),
    *_noted("plugins of LMI's front end are not run", "plugin_folder"),
    *_noted("there is no cluster; each process serves for itself", "cluster_address"),
    *_noted("option.log_level says what is logged", "debug", harmless=OFF),
    *_noted(NO_TLS, "keystore", "keystore_type", "private_key_file", "certificate_file"),
    ForeignOption("keystore_pass", NO_TLS, is_secret=True),
    ForeignOption("hf_token", NO_HUB, is_secret=True),
    *_noted(NO_HUB, "option.download_dir"),
    *_noted(ONE_PROCESS, "max_idle_time", "retry_threshold", "option.parallel_loading", "option.pythonExecutable"),
    *_noted(ONE_PROCESS, "option.enable_venv", "option.max_output_size"),
    *_noted("loading has no time limit; /ping answers 503 until it is done", "option.model_loading_timeout"),
    *_noted("the port is bound at once; /ping answers 503 while loading", "wait_model_loading"),
    *_noted("management and inference share one address", MANAGEMENT_ADDRESS),
    *_noted("a stream is never cut for silence", "chunked_read_timeout"),
    *_noted(
        "weights are compressed as option.dtype says", "option.quantize", "option.quantization", harmless=("none",)
    ),
    *_noted("weights are compressed as option.dtype says", "option.load_in_8bit", "option.load_in_4bit", harmless=OFF),
    *_noted("a checkpoint's own code is never run", "option.trust_remote_code", harmless=OFF),
    *_noted(AS_IT_LIES, "option.revision", "option.code_revision", "option.tokenizer_revision"),
    *_noted(AS_IT_LIES, "option.config_format", "option.model_impl", harmless=("auto",)),
    *_noted("text is sent as it is made", "option.stream_interval", harmless=("1",)),
    *_noted("requests are served in the order they came", "option.scheduling_policy", harmless=("fcfs",)),
    *_noted("requests are served in the order they came", "option.scheduler_delay_factor", harmless=("0", "0.0")),
    *_noted(
        "prompts are always computed in pieces", "option.max_num_partial_prefills", "option.max_long_partial_prefills"
    ),
    *_noted(
        "prompts are always computed in pieces", "option.long_prefill_token_threshold", "option.num_scheduler_steps"
    ),
    *_noted("counters are served at /metrics", "option.otlp_traces_endpoint", "option.collect_detailed_traces"),
    *_noted("requests are not logged", "option.disable_log_requests", "option.max_log_len", harmless=("true",)),
    *_noted("any run of at least one token is matched", "option.ngram_prompt_lookup_min", harmless=("1",)),
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
    *_refused("models are not loaded on request", "model_url_pattern", harmless=()),
    *_refused("workflows of several models are not run", "workflows", "load_workflows", harmless=()),
    *_refused("a header cannot choose a function", "allow_request_handler_override"),
    *_refused(
        "its rules are not checked; option.enable_hooks=false keeps a model's own code from running, and nothing is "
        "installed, unpickled or downloaded in any case",
        "secure_mode",
    ),
    *_refused(AS_IT_LIES, "option.hf_overrides", "option.rope_scaling", "option.rope_theta", harmless=("", "{}")),
    *_refused(AS_IT_LIES, "option.tokenizer", "option.ignore_patterns", harmless=()),
    *_refused(
        "write it into the model's generation_config.json", "option.override_generation_config", harmless=("{}",)
    ),
    *_refused("the model's own generation_config.json is read", "option.generation_config", harmless=("auto",)),
    *_refused("tokens are always turned into text", "option.skip_tokenizer_init"),
    *_refused(
        "logits processors of your own are not run", "option.logits_processors", "option.logits_processor_pattern"
    ),
    *_refused("images are not understood by this engine", "option.mm_processor_kwargs", harmless=("{}",)),
    *_refused("images are not understood by this engine", "option.allowed_local_media_path", harmless=()),
    *_refused(NO_ADAPTERS_OF_PROMPTS, "option.enable_prompt_adapter"),
    *_noted(NO_ADAPTERS_OF_PROMPTS, "option.max_prompt_adapters", "option.max_prompt_adapter_token"),
    *_refused("this schema is not spoken", "option.bedrock_compat"),
    *_refused("set variables in the environment of the server", "option.env", harmless=()),
    *_refused("images are not understood by this engine", "option.limit_mm_per_prompt", harmless=("{}",)),
    *_refused(NO_LORA, "option.enable_lora"),
    *_noted(NO_LORA, "option.max_loras", "option.max_lora_rank", "option.max_cpu_loras", "option.lora_dtype"),
    *_noted(NO_LORA, "option.fully_sharded_loras", "option.lora_extra_vocab_size", "option.long_lora_scaling_factors"),
    *_refused(
        "speculation has options of its own, such as option.draft_model",
        "option.speculative_config",
        harmless=("none", "null", "{}"),
    ),
    *_noted(ONE_PROCESS, "option.draft_model_tp_size", harmless=("1",)),
    *_noted("counters are served at /metrics instead", "option.record_acceptance_rate", harmless=OFF),
    *_noted(OWN_PARSERS, "option.enable_auto_tool_choice", "option.enable_reasoning", harmless=("true",)),
    *_noted("content is fitted to the template", "option.chat_template_content_format", harmless=("auto",)),
    *_refused("give stop strings in the request", "option.stop_sequence", harmless=()),
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
    "SAGEMAKER_SECURE_MODE": "secure_mode",
    "ALLOW_REQUEST_HANDLER_OVERRIDE": "allow_request_handler_override",
    "HF_TOKEN": "hf_token",
    "PYTHON_EXECUTABLE": "option.pythonExecutable",
    "SAGEMAKER_STARTUP_TIMEOUT": "option.model_loading_timeout",
    "MODEL_LOADING_TIMEOUT": "option.model_loading_timeout",
})  # fmt: skip
"""Environment variables that stand for a name above."""

FOREIGN_PREFIXES: Mapping[str, str] = MappingProxyType({
    "SERVING_": "not an option of this server, ignored",
    "ARGS_": "no effect here; arguments are for translators, which this server has none of",
})  # fmt: skip
"""Beginnings of environment variables that other servers read whatever follows, and what is said about such a variable."""
