"""Options of other servers that configuration files carry along: known names that do not act on this server.

Does: list them, each with the reason. None stops the start; each is reported once at start, unless its value asks for
what happens anyway.
Does not: read anything. Used by `resolve` and the docs writer. Source of the names: the configuration references of LMI 0.23
to 0.36 and DJL, and the engine arguments of the backends that LMI hands options on to (vLLM, lmi-dist, TensorRT-LLM,
DeepSpeed, Transformers NeuronX, Hugging Face Accelerate).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ForeignOption:
    """A known name without an effect. `harmless` values ask for what happens anyway and are not mentioned."""

    key: str
    reason: str
    harmless: tuple[str, ...] = ()
    is_secret: bool = False  # the value is never shown

    def is_harmless(self, text: str) -> bool:
        """True if this value asks for nothing but what happens anyway."""
        return text.lower() in self.harmless


OTHER_TASK = ForeignOption("option.task", "this server generates text, embeds and reranks")
"""Any other word for what a model is for: there option.task is no option of ours, and a model.py may read it."""

OPTIONS_OF_LMI = (
    "model_id", "revision", "name", "dtype", "max_model_len", "chat_template", "tool_call_parser", "reasoning_parser",
    "task", "normalize", "engine", "max_batch_tokens", "max_num_seqs", "prefix_cache", "draft_model", "num_assistant_tokens",
    "enable_lora", "max_loras", "max_lora_rank", "limit_mm_per_prompt", "max_request_size", "job_queue_size",
    "predict_timeout", "load_models", "model_store", "cors_allowed_origin", "cors_allowed_methods", "cors_allowed_headers",
    "rolling_batch", "batch_size", "output_formatter", "enable_streaming", "tgi_compat", "entry_point", "handler",
    "max_logprobs",
)  # fmt: skip
"""Options of ours that LMI has as well: a variable of one is a sign of a server configured as LMI's containers are."""

OFF = ("false", "0", "none", "")
NOTHING = ("", "none", "null", "{}", "[]")
MANAGEMENT_ADDRESS = "management_address"  # not mentioned where it is the address there is

ALWAYS_CHUNKED = "prompts are always computed in pieces"
AS_IT_LIES = "the model is the directory as it lies there"
BUILT_IN = "the engine is built in"
COMPRESSED = "weights are compressed as option.dtype says"
COUNTERS = "counters are served at /metrics"
HEALTH = "/ping tells the engine's own state"
NO_ADAPTERS_OF_PROMPTS = "prompt adapters are not served"
NO_CACHE = "answers are not cached; x-starting-token polls what x-synchronous: false began"
NO_CODE = "a checkpoint's own code is never run"
NO_GPU = "the model runs on the CPU"
NO_CHOICE = "the engine chooses its devices"  # said instead where the model does not run on the CPU
HUB_BY_ENVIRONMENT = (
    "what concerns the hub is read from the environment, as huggingface_hub does: HF_TOKEN, HF_HOME, HF_HUB_CACHE"
)
NO_IMAGE_GENERATION = "images are read, not generated"
NO_LORA_KIND = "adapters of this kind are not served"
NO_SESSIONS = "sessions are not kept"
NO_TLS = "Java's stores of keys are not read; tls_cert and tls_key name files in PEM"
NO_TRANSLATORS = "DJL's translators are not run; this server generates text"
ONE_LENGTH = "option.max_model_len bounds prompt and answer together"
ONE_PROCESS = "one process serves the model; there are no worker processes"
ONE_THREAD = "one event loop serves all connections"
OWN_CACHE = "the key/value cache has options of its own: option.kv_cache_gb, option.kv_dtype, option.prefix_cache"
OWN_DRAFTS = "speculation has options of its own: option.speculation, option.draft_model, option.num_assistant_tokens"
OWN_LORA = "adapters have options of their own: option.lora, option.enable_lora"
OWN_ORDER = "requests begin by priority, then in fair turns among API keys"
OWN_PARSERS = "on wherever the chat template has it; option.tool_call_parser and option.reasoning_parser switch it off"
OWN_SAMPLING = "this backend's own decoding strategy does not exist here"
STATUSES = "statuses are fixed"


def _keys(reason: str, names: str, harmless: tuple[str, ...] = ()) -> tuple[ForeignOption, ...]:
    """Names as they stand, of the server and of a model: config.properties, serving.properties, SERVING_*."""
    return tuple(ForeignOption(name, reason, harmless) for name in names.split())


def _options(reason: str, names: str, harmless: tuple[str, ...] = ()) -> tuple[ForeignOption, ...]:
    """Names behind `option.`."""
    return tuple(ForeignOption(f"option.{name}", reason, harmless) for name in names.split())


_FRONT_END = (
    *_keys(BUILT_IN, "engine", harmless=("python", "mpi")),
    *_keys(BUILT_IN, "features version docker_tag opts"),
    *_keys("text is sent as it is made", "rolling_batch_buffer"),
    *_keys("requests join the batch at the next step, without a window", "max_batch_delay"),
    *_keys(NO_GPU, "load_on_devices", harmless=("*", "cpu", "-1")),
    *_keys(NO_GPU, "number_of_gpu gpu.minWorkers gpu.maxWorkers gpu.required_memory_mb gpu.reserved_memory_mb"),
    *_keys("option.kv_cache_gb bounds the cache", "required_memory_mb reserved_memory_mb"),
    *_keys("option.kv_cache_gb bounds the cache", "cpu.required_memory_mb cpu.reserved_memory_mb"),
    *_keys(ONE_PROCESS, "minWorkers maxWorkers cpu.minWorkers cpu.maxWorkers min_workers max_workers", harmless=("1",)),
    *_keys(ONE_PROCESS, "default_workers_per_model", harmless=("0", "1")),
    *_keys(ONE_PROCESS, "max_idle_time retry_threshold use_passive_workers"),
    *_keys(ONE_THREAD, "number_of_netty_threads", harmless=("0",)),
    *_keys(ONE_THREAD, "use_native_io io_ratio"),
    *_keys("plugins of LMI's front end are not run", "plugin_folder"),
    *_keys("there is no cluster; each process serves for itself", "cluster_address"),
    *_keys("option.log_level says what is logged", "debug", harmless=OFF),
    *_keys(NO_TLS, "keystore keystore_type"),
    ForeignOption("keystore_pass", NO_TLS, is_secret=True),
    ForeignOption("hf_token", HUB_BY_ENVIRONMENT, is_secret=True),
    *_keys(HUB_BY_ENVIRONMENT, "download_dir"),
    *_keys("the port is bound at once; /ping answers 503 while loading", "wait_model_loading"),
    *_keys("management and inference share one address", MANAGEMENT_ADDRESS),
    *_keys("a stream is never cut for silence", "chunked_read_timeout"),
    *_keys(COUNTERS, "log_request_metric log_model_metric metrics_aggregation metric_dimension"),
    *_keys(COUNTERS, "prometheus", harmless=("true",)),
    *_keys(HEALTH, "allow_multi_status", harmless=OFF),
    *_keys(HEALTH, "error_rate_wlm error_rate_server error_rate_model error_rate_any health_check_override fail_fast"),
    *_keys(STATUSES, "bad_request_http_code timeout_http_code", harmless=("400",)),
    *_keys(STATUSES, "wlm_error_http_code throttle_error_http_code", harmless=("503",)),
    *_keys(STATUSES, "server_error_http_code", harmless=("500",)),
    *_keys(
        "errors have their status, streamed or not", "backport_for_non_streaming_http_error_codes", harmless=("true",)
    ),
    *_keys("the header is x-request-id", "request_id_header_key", harmless=("x-request-id",)),
    *_keys("models are not loaded on request", "model_url_pattern"),
    *_keys("workflows of several models are not run", "workflows load_workflows"),
    *_keys("a header cannot choose a function", "allow_request_handler_override", harmless=OFF),
    *_keys("answers are JSON unless a request asks for a stream", "default_invocations_accept"),
    *_keys(
        "its rules are not checked; option.enable_hooks=false keeps a model's own code from running, and nothing is "
        "installed or unpickled in any case",
        "secure_mode security_controls untrusted_channels",
        harmless=OFF,
    ),
    *_keys(NO_CACHE, "cache_batch cache_multitenant memory_cache_capacity ddb_cache ddb_table_name"),
    *_keys(NO_CACHE, "s3_cache s3_cache_bucket s3_cache_key_prefix s3_cache_autocreate"),
    *_keys(NO_TRANSLATORS, "translator translatorFactory batchifier application blockFactory"),
)

_COMMON = (  # of LMI, or of several of its backends
    *_options(BUILT_IN, "mpi_mode is_mpi async_mode multi_node", harmless=OFF),
    *_options(BUILT_IN, "load_format", harmless=("auto", "safetensors")),
    *_options(
        BUILT_IN, "device_map low_cpu_mem_usage disable_flash_attn model_loader use_auth_token optimization backend"
    ),
    *_options(BUILT_IN, "enforce_eager disable_sliding_window", harmless=OFF),
    *_options(BUILT_IN, "tokenizer_mode", harmless=("auto",)),
    *_options("seeds are given in the request", "seed"),
    *_options(ONE_LENGTH, "max_input_len max_output_len max_seq_len n_positions max_tokens"),
    *_options(ALWAYS_CHUNKED, "enable_chunked_prefill", harmless=("true",)),
    *_options("requests join the batch at the next step, without a window", "waiting_steps rolling_batch_strategy"),
    *_options(NO_GPU, "tensor_parallel_degree pipeline_parallel_degree", harmless=("1", "max")),
    *_options(NO_GPU, "gpu_memory_utilization kv_cache_free_gpu_mem_fraction cpu_offload_gb_per_gpu multi_gpu"),
    *_options(NO_GPU, "device device_id", harmless=("cpu", "auto", "-1")),
    *_options(OWN_CACHE, "lmcache_config_file kv_transfer_config"),
    *_options(OWN_CACHE, "lmcache_auto_config", harmless=OFF),
    *_options(ONE_PROCESS, "parallel_loading pythonExecutable enable_venv max_output_size cluster_size"),
    *_options("loading has no time limit; /ping answers 503 until it is done", "model_loading_timeout"),
    *_options(COMPRESSED, "quantize quantization", harmless=("none",)),
    *_options(COMPRESSED, "load_in_8bit load_in_4bit", harmless=OFF),
    *_options(COMPRESSED, "torch_dtype data_type"),
    *_options(NO_CODE, "trust_remote_code trust_insecure_model_files", harmless=OFF),
    *_options(AS_IT_LIES, "model_dir modelName modeName model_format s3url is_peft_model preloaded_model"),
    *_options("set variables in the environment of the server", "env"),
    *_options("this schema is not spoken", "bedrock_compat", harmless=OFF),
    *_options("answers are JSON unless a request asks for a stream", "default_accept", harmless=("application/json",)),
    *_options("the decorated function of model.py reads requests", "input_formatter"),
    *_options("give stop strings in the request", "stop_sequence"),
    *_options(OWN_SAMPLING, "decoding_strategy", harmless=("greedy",)),
    *_options(OWN_SAMPLING, "max_sparsity max_splits"),
    *_options(NO_SESSIONS, "enable_stateful_sessions", harmless=OFF),
    *_options(NO_SESSIONS, "sessions_path sessions_expiration"),
    *_options("images stand where the model's chat template puts them", "image_placeholder_token"),
    *_options(NO_IMAGE_GENERATION, "height width num_images_per_prompt use_stable_diffusion"),
    *_options(NO_LORA_KIND, "enable_lora_bias fully_sharded_loras", harmless=OFF),
    *_options("all adapters are held in memory, option.max_loras at most", "max_cpu_loras"),
    *_options("adapters are computed with in f32", "lora_dtype", harmless=("auto",)),
    *_options(OWN_LORA, "adapters default_mm_loras"),
    *_options(
        NO_LORA_KIND,
        "lora_extra_vocab_size long_lora_scaling_factors qlora_adapter_name_or_path specialize_active_lora",
    ),
    *_options(OWN_LORA, "lora_config lora_dir lora_target_modules peft_cache_config"),
    *_options(OWN_DRAFTS, "speculative_config", harmless=NOTHING),
    *_options(
        OWN_DRAFTS, "draft_model_id draft_model_compiled_path max_draft_len spec_length speculative_max_model_len"
    ),
    *_options(OWN_DRAFTS, "speculative_model_quantization speculative_disable_mqa_scorer decoding_config"),
    *_options(OWN_DRAFTS, "typical_acceptance_sampler_posterior_alpha typical_acceptance_sampler_posterior_threshold"),
    *_options(OWN_DRAFTS, "spec_decoding_acceptance_method", harmless=("rejection_sampler",)),
    *_options(OWN_DRAFTS, "disable_logprobs_during_spec_decoding", harmless=OFF),
    *_options("any run of at least one token is matched", "ngram_prompt_lookup_min", harmless=("1",)),
    *_options(ONE_PROCESS, "draft_model_tp_size speculative_draft_tensor_parallel_size", harmless=("1",)),
    *_options(COUNTERS, "record_acceptance_rate speculative_telemetry", harmless=OFF),
    *_options(OWN_PARSERS, "enable_auto_tool_choice enable_reasoning", harmless=("true",)),
    *_options("content is fitted to the template", "chat_template_content_format", harmless=("auto",)),
)

_VLLM = (  # arguments of vLLM's engine and of its HTTP server, 0.3 to 0.23; lmi-dist takes the older ones
    *_options(BUILT_IN, "model_loader_extra_config safetensors_load_strategy pt_load_map_location use_tqdm_on_load"),
    *_options(BUILT_IN, "block_size use_v2_block_manager preemption_mode num_lookahead_slots num_scheduler_steps"),
    *_options(
        BUILT_IN, "multi_step_stream_outputs scheduler_cls external_parameters additional_config optimization_level"
    ),
    *_options(BUILT_IN, "guided_decoding_backend guided_decoding_disable_fallback structured_outputs_config"),
    *_options(BUILT_IN, "guided_decoding_disable_any_whitespace guided_decoding_disable_additional_properties"),
    *_options(
        BUILT_IN, "attention_backend attention_config disable_cascade_attn override_attention_dtype kernel_config"
    ),
    *_options(BUILT_IN, "async_scheduling disable_async_output_proc performance_mode moe_backend compilation_config"),
    *_options(BUILT_IN, "max_seq_len_to_capture max_context_len_to_capture cuda_graph_sizes cudagraph_capture_sizes"),
    *_options(BUILT_IN, "max_cudagraph_capture_size enable_sleep_mode profiler_config weight_transfer_config"),
    *_options(BUILT_IN, "enable_layerwise_nvtx_tracing ray_workers_use_nsight enable_flashinfer_autotune"),
    *_options(BUILT_IN, "model_impl config_format runner convert", harmless=("auto",)),
    *_options("log-probabilities are the model's own", "logprobs_mode", harmless=("raw_logprobs",)),
    *_options(NO_GPU, "cpu_offload_gb swap_space num_gpu_blocks_override offload_backend offload_group_size"),
    *_options(NO_GPU, "tensor_parallel_size pipeline_parallel_size decode_context_parallel_size", harmless=("1",)),
    *_options(NO_GPU, "data_parallel_size data_parallel_size_local prefill_context_parallel_size", harmless=("1",)),
    *_options(NO_GPU, "data_parallel_rank data_parallel_start_rank data_parallel_address data_parallel_rpc_port"),
    *_options(NO_GPU, "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_backend all2all_backend"),
    *_options(NO_GPU, "enable_expert_parallel enable_eplb enable_dbo", harmless=OFF),
    *_options(
        NO_GPU, "eplb_config expert_placement_strategy num_redundant_experts eplb_window_size eplb_step_interval"
    ),
    *_options(NO_GPU, "eplb_log_balancedness dbo_decode_token_threshold dbo_prefill_token_threshold ubatch_size"),
    *_options(NO_GPU, "disable_nccl_for_dp_synchronization disable_custom_all_reduce master_addr master_port"),
    *_options(NO_GPU, "nnodes node_rank distributed_timeout_seconds worker_use_ray engine_use_ray"),
    *_options(OWN_CACHE, "calculate_kv_scales kv_cache_memory_bytes kv_events_config kv_sharing_fast_prefill"),
    *_options(
        OWN_CACHE, "prefix_caching_hash_algo disable_hybrid_kv_cache_manager kv_offloading_size kv_offloading_backend"
    ),
    *_options(
        OWN_CACHE, "mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode ec_transfer_config"
    ),
    *_options(OWN_CACHE, "cp_kv_cache_interleave_size dcp_kv_cache_interleave_size quantization_param_path"),
    *_options(ONE_PROCESS, "distributed_executor_backend worker_cls worker_extension_cls max_parallel_loading_workers"),
    *_options(ONE_PROCESS, "tokenizer_pool_size tokenizer_pool_type tokenizer_pool_extra_config api_server_count"),
    *_options(HUB_BY_ENVIRONMENT, "download_dir"),
    *_options(AS_IT_LIES, "model code_revision tokenizer_revision hf_config_path hf_overrides rope_scaling rope_theta"),
    *_options(AS_IT_LIES, "tokenizer ignore_patterns"),
    *_options("write it into the model's generation_config.json", "override_generation_config", harmless=NOTHING),
    *_options("tokens are always turned into text", "skip_tokenizer_init", harmless=OFF),
    *_options("logits processors of your own are not run", "logits_processors logits_processor_pattern"),
    *_options("prompts are text or token ids", "enable_prompt_embeds", harmless=OFF),
    *_options(
        "pooling has options of its own: option.pooling, option.normalize", "pooler_config override_pooler_config"
    ),
    *_options("images are read in one way, see pictures.md", "media_io_kwargs", harmless=NOTHING),
    *_options("no request can have files of this machine read", "allowed_local_media_path", harmless=("",)),
    *_options(BUILT_IN, "disable_mm_preprocessor_cache mm_processor_cache_gb mm_processor_cache_type"),
    *_options(BUILT_IN, "mm_shm_cache_max_object_size_mb mm_encoder_attn_backend skip_mm_profiling"),
    *_options(BUILT_IN, "io_processor_plugin disable_chunked_mm_input"),
    *_options(NO_GPU, "mm_encoder_tp_mode enable_multimodal_encoder_data_parallel"),
    *_options("images are sent as images", "enable_mm_embeds", harmless=OFF),
    *_options("content is fitted to the template", "interleave_mm_strings", harmless=OFF),
    *_options("videos are not taken", "video_pruning_rate"),
    *_options("option.limit_mm_per_prompt with image=0 does that", "language_model_only", harmless=OFF),
    *_options(NO_ADAPTERS_OF_PROMPTS, "enable_prompt_adapter", harmless=OFF),
    *_options(NO_ADAPTERS_OF_PROMPTS, "max_prompt_adapters max_prompt_adapter_token prompt_adapters"),
    *_options("text is sent as it is made", "stream_interval", harmless=("1",)),
    *_options(OWN_ORDER, "scheduling_policy", harmless=("fcfs",)),
    *_options(OWN_ORDER, "scheduler_delay_factor", harmless=("0", "0.0")),
    *_options(ALWAYS_CHUNKED, "max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold"),
    *_options(COUNTERS, "disable_log_stats aggregate_engine_logging", harmless=OFF),
    *_options(COUNTERS, "collect_detailed_traces show_hidden_metrics_for_version"),
    *_options(COUNTERS, "kv_cache_metrics kv_cache_metrics_sample cudagraph_metrics enable_mfu_metrics"),
    *_options("requests are not logged", "disable_log_requests max_log_len", harmless=("true",)),
    *_options("requests are not logged", "enable_log_requests", harmless=OFF),
    *_options("an answer's role is assistant", "response_role", harmless=("assistant",)),
    *_options("a request cannot bring a template", "trust_request_chat_template", harmless=OFF),
    *_options("parsers are built in", "tool_parser_plugin reasoning_parser_plugin"),
    *_options("usage is sent when it is asked for", "enable_prompt_tokens_details enable_force_include_usage"),
    *_options(BUILT_IN, "intial_incremental_detokenization_offset"),
)

_TENSORRT = (
    *_options(NO_GPU, "tokens_per_block batch_scheduler_policy max_num_sequences enable_trt_overlap max_batch_size"),
    *_options(NO_GPU, "use_custom_all_reduce multi_block_mode paged_attention use_fp8_context_fmha use_fused_mlp"),
    *_options(
        NO_GPU, "context_parallel_size moe_tensor_parallel_size moe_expert_parallel_size moe_cluster_parallel_size"
    ),
    *_options(NO_GPU, "enable_attention_dp gpus_per_node cp_config auto_parallel auto_parallel_world_size"),
    *_options(NO_GPU, "cuda_graph_config use_cuda_graph cuda_graph_batch_sizes disable_overlap_scheduler attn_backend"),
    *_options(BUILT_IN, "baichuan_model_version chatglm_model_version gpt_model_version multi_query_mode logits_dtype"),
    *_options(BUILT_IN, "trtllm_checkpoint_path num_checkpoint_workers num_engine_workers load_by_shard workspace"),
    *_options(BUILT_IN, "enable_build_cache fast_build build_config embedding_parallel_mode enable_tqdm batching_type"),
    *_options(BUILT_IN, "extended_runtime_perf_knob_config scheduler_config cache_transceiver_config opt_num_tokens"),
    *_options(BUILT_IN, "gather_generation_logits normalize_log_probs pytorch_backend_config torch_compile_config"),
    *_options(BUILT_IN, "enable_trtllm_sampler mixed_sampler num_postprocess_workers postprocess_tokenizer_dir"),
    *_options(COUNTERS, "iter_stats_max_iterations request_stats_max_iterations print_iter_log enable_iter_perf_stats"),
    *_options(COUNTERS, "enable_iter_req_stats"),
    *_options(OWN_CACHE, "kv_cache_config"),
    *_options("num_beams is bounded by option.max_best_of", "max_beam_width"),
    *_options(AS_IT_LIES, "rotary_base rotary_dim rotary_scaling_type rotary_scaling_factor"),
    *_options(COMPRESSED, "smoothquant_alpha smoothquant_per_token smoothquant_per_channel q_format calib_size"),
    *_options(COMPRESSED, "calib_batch_size calib_config quant_config awq_format awq_calib_size awq_block_size"),
    *_options(COMPRESSED, "awq_zero_point awq_weight_bit_width awq_mm_version awq_ignore_layers"),
    *_options(COMPRESSED, "fp8_scheme fp8_activation_scheme fp8_kv_cache_quant_targets fp8_ignore fp8_ignore_patterns"),
)

_DEEPSPEED = (
    *_options(BUILT_IN, "deepspeed_config_path ds_config checkpoint save_mp_checkpoint_path training_mp_size"),
    *_options(BUILT_IN, "enable_cuda_graph triangular_masking return_tuple"),
)

_NEURON = (
    *_options(
        NO_GPU, "unroll neuron_optimize_level neuron_cc_pipeline_factor context_length_estimate load_split_model"
    ),
    *_options(
        NO_GPU, "compiled_graph_path compilation_worker_count partition_schema override_neuron_config neuron_quant"
    ),
    *_options(
        NO_GPU, "enable_mixed_precision_accumulation enable_saturate_infinity all_reduce_dtype cast_logits_dtype"
    ),
    *_options(NO_GPU, "group_query_attention attention_layout cache_layout collectives_layout shard_over_sequence"),
    *_options(NO_GPU, "sequence_parallel sequence_parallel_norm_threshold fuse_mlp fuse_qkv fused_rmsnorm_qkv amp"),
    *_options(NO_GPU, "qkv_tiling weight_tiling mlp_out_weight_transpose on_device_embedding"),
    *_options(NO_GPU, "on_device_embedding_config on_device_generation"),
)

_DJL_ENGINES = (  # of DJL's engines for other kinds of models
    *_options(
        BUILT_IN, "mapLocation extraFiles hasParameter interOpNumThreads intraOpNumThreads executionMode optLevel"
    ),
    *_options(
        BUILT_IN, "memoryPatternOptimization cpuArenaAllocator disablePerSessionThreads customOpLibrary ortDevice"
    ),
    *_options(BUILT_IN, "skops_trusted_types"),
)

_LLAMA = (  # flags of llama.cpp's server, and of Ollama's command
    *_keys(f"{NO_GPU}; with --engine vllm on GPUs, where vLLM divides it", "n_gpu_layers gpu_layers", harmless=("0",)),
    *_keys(f"{NO_GPU}; with --engine vllm on GPUs, where vLLM divides it", "split_mode tensor_split main_gpu"),
    *_keys(BUILT_IN, "flash_attn jinja cont_batching", harmless=("true", "false", "on", "off", "auto")),
    *_keys("weights are mapped or converted as their format asks for", "mlock no_mmap", harmless=("false",)),
    *_keys(
        "what a model does follows from its files, or from option.task", "embedding embeddings", harmless=("false",)
    ),
    *_keys("what a model does follows from its files, or from option.task", "reranking rerank", harmless=("false",)),
    *_keys("sampling is given in the request, or in generation_config.json", "temp temperature top_k top_p min_p"),
    *_keys("sampling is given in the request, or in generation_config.json", "repeat_penalty n_predict num_predict"),
    *_keys("--idle-unload says how long models stay", "keep_alive"),
)

FOREIGN_OPTIONS: tuple[ForeignOption, ...] = (
    *_FRONT_END,
    *_COMMON,
    *_VLLM,
    *_TENSORRT,
    *_DEEPSPEED,
    *_NEURON,
    *_LLAMA,
    *_DJL_ENGINES,
)
"""Every known name that does not act."""

_OF_VLLM = (  # of those that are several servers'
    "load_format seed tokenizer_mode enable_chunked_prefill gpu_memory_utilization enforce_eager quantize quantization "
    "trust_remote_code tensor_parallel_degree pipeline_parallel_degree disable_sliding_window speculative_config "
    "kv_transfer_config cpu_offload_gb_per_gpu"
)

_NO_CONTROL = "control vectors are not computed, adapters (LoRA) are: --lora NAME=FILE"
REFUSED_OPTIONS: Mapping[str, str] = MappingProxyType({
    "control_vector": _NO_CONTROL,
    "control_vector_scaled": _NO_CONTROL,
    "control_vector_layer_range": _NO_CONTROL,
    "mmproj": "the file is found by itself beside the model's, by mmproj in its name",
    "lora_scaled": "an adapter counts as it was trained: --lora NAME=FILE",
})  # fmt: skip
"""Options of others that would change answers, with what is said where they are refused."""

OF_ENGINES: Mapping[str, frozenset[str]] = MappingProxyType({
    "vllm": frozenset(
        {option.key for option in _VLLM if option.reason in (BUILT_IN, NO_GPU, OWN_CACHE, ONE_PROCESS, ALWAYS_CHUNKED)}
        | {f"option.{name}" for name in _OF_VLLM.split()}
    ),
})  # fmt: skip
"""Engine -> keys that act where it runs: it takes them as arguments of its own, and checks them."""

FOREIGN_VARIABLES: Mapping[str, str] = MappingProxyType({
    "HF_MODEL_QUANTIZE": "option.quantize",
    "HF_MODEL_TRUST_REMOTE_CODE": "option.trust_remote_code",
    "HF_TRUST_REMOTE_CODE": "option.trust_remote_code",
    "SM_NUM_GPUS": "option.tensor_parallel_degree",
    "TENSOR_PARALLEL_DEGREE": "option.tensor_parallel_degree",
    "PIPELINE_PARALLEL_DEGREE": "option.pipeline_parallel_degree",
    "CUDA_MEMORY_FRACTION": "option.gpu_memory_utilization",
    "ENABLE_CUDA_GRAPHS": "option.enforce_eager",
    "SAGEMAKER_NUM_MODEL_WORKERS": "maxWorkers",
    "SAGEMAKER_HEALTH_CHECK_OVERRIDE": "health_check_override",
    "SAGEMAKER_SECURE_MODE": "secure_mode",
    "SAGEMAKER_SECURITY_CONTROLS": "security_controls",
    "SAGEMAKER_UNTRUSTED_CHANNELS": "untrusted_channels",
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "default_invocations_accept",
    "ALLOW_REQUEST_HANDLER_OVERRIDE": "allow_request_handler_override",
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
