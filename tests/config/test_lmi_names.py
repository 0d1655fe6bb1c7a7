"""Every name that LMI, DJL and their backends document acts here, or is noted as without effect.

Written down from their references and not from our tables, so that a name that our tables lack is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dragoman.config.foreign import ForeignOption
from dragoman.config.names import find_options
from dragoman.config.option import Option
from dragoman.config.resolve import Config, ConfigError, resolve
from dragoman.config.sources import Given, read_environment
from tests.support.tables import table


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Of the server (config.properties, SERVING_*) and of a model (serving.properties) without the prefix.
SERVER_KEYS = words("""
inference_address management_address engine job_queue_size batch_size max_dynamic_batch_size max_batch_delay max_idle_time
minWorkers maxWorkers gpu.minWorkers gpu.maxWorkers cpu.minWorkers cpu.maxWorkers load_on_devices max_request_size
chunked_read_timeout wait_model_loading allow_multi_status error_rate_wlm error_rate_server error_rate_model
error_rate_any bad_request_http_code wlm_error_http_code throttle_error_http_code timeout_http_code
server_error_http_code request_id_header_key cors_allowed_origin cors_allowed_methods cors_allowed_headers
retry_threshold required_memory_mb reserved_memory_mb gpu.required_memory_mb gpu.reserved_memory_mb log_request_metric
metrics_aggregation model_url_pattern model_store load_models rolling_batch_buffer fail_fast health_check_override
log_model_metric metric_dimension use_passive_workers translator translatorFactory batchifier application
debug number_of_netty_threads default_workers_per_model number_of_gpu keystore keystore_pass keystore_type
private_key_file certificate_file plugin_folder use_native_io io_ratio cluster_address load_workflows
""")

OPTION_KEYS = words("""
model_id revision task rolling_batch async_mode max_rolling_batch_size max_rolling_batch_prefill_tokens max_model_len
output_formatter tgi_compat bedrock_compat enable_streaming dtype tensor_parallel_degree pipeline_parallel_degree
entryPoint handler model_loading_timeout predict_timeout trust_remote_code quantize load_format gpu_memory_utilization
enforce_eager enable_prefix_caching enable_chunked_prefill cpu_offload_gb_per_gpu disable_sliding_window tokenizer_mode
max_logprobs limit_mm_per_prompt enable_lora max_loras max_lora_rank max_cpu_loras fully_sharded_loras
lora_extra_vocab_size long_lora_scaling_factors lora_dtype speculative_draft_model speculative_length
draft_model_tp_size record_acceptance_rate speculative_model num_speculative_tokens ngram_prompt_lookup_max
ngram_prompt_lookup_min speculative_config enable_auto_tool_choice tool_call_parser enable_reasoning reasoning_parser
chat_template chat_template_content_format served_model_name normalize device_map low_cpu_mem_usage load_in_8bit
load_in_4bit disable_flash_attn stop_sequence decoding_strategy max_sparsity max_splits waiting_steps
enable_stateful_sessions sessions_path sessions_expiration parallel_loading mpi_mode pythonExecutable enable_venv env
max_output_size kv_cache_free_gpu_mem_fraction lmcache_config_file lmcache_auto_config adapters model_dir default_accept
modelName model_format trust_insecure_model_files input_formatter is_peft_model image_placeholder_token
""")

# Backends other than vLLM, and the other models that DJL serves.
BACKEND_KEYS = words("""
max_input_len max_output_len max_num_tokens max_seq_len tokens_per_block batch_scheduler_policy max_num_sequences
enable_trt_overlap enable_kv_cache_reuse baichuan_model_version chatglm_model_version gpt_model_version use_fused_mlp
rotary_base rotary_dim rotary_scaling_type rotary_scaling_factor logits_dtype trtllm_checkpoint_path max_beam_width
num_checkpoint_workers num_engine_workers load_by_shard smoothquant_alpha smoothquant_per_token smoothquant_per_channel
multi_query_mode awq_format awq_calib_size q_format calib_size calib_batch_size awq_block_size use_fp8_context_fmha
multi_block_mode use_custom_all_reduce paged_attention max_draft_len max_batch_size batching_type normalize_log_probs
gather_generation_logits fast_build enable_build_cache embedding_parallel_mode auto_parallel moe_expert_parallel_size
n_positions unroll neuron_optimize_level context_length_estimate load_split_model compiled_graph_path
group_query_attention enable_mixed_precision_accumulation enable_saturate_infinity amp draft_model_compiled_path
on_device_embedding partition_schema all_reduce_dtype cast_logits_dtype attention_layout cache_layout
collectives_layout fuse_qkv fuse_mlp qkv_tiling weight_tiling shard_over_sequence neuron_quant sequence_parallel
max_tokens checkpoint enable_cuda_graph triangular_masking return_tuple training_mp_size save_mp_checkpoint_path
deepspeed_config_path ds_config use_auth_token height width num_images_per_prompt use_stable_diffusion
mapLocation extraFiles interOpNumThreads intraOpNumThreads executionMode optLevel memoryPatternOptimization
cpuArenaAllocator disablePerSessionThreads customOpLibrary ortDevice hasParameter skops_trusted_types
""")

# Arguments of vLLM's engine, which LMI passes on: those that are not above.
ENGINE_KEYS = words("""
tokenizer skip_tokenizer_init allowed_local_media_path download_dir config_format kv_cache_dtype seed
distributed_executor_backend pipeline_parallel_size tensor_parallel_size data_parallel_size
max_parallel_loading_workers block_size use_v2_block_manager swap_space cpu_offload_gb max_num_batched_tokens
max_num_seqs disable_log_stats code_revision rope_scaling rope_theta hf_overrides tokenizer_revision quantization
max_seq_len_to_capture disable_custom_all_reduce tokenizer_pool_size mm_processor_kwargs enable_prompt_adapter
max_prompt_adapters max_prompt_adapter_token device num_scheduler_steps num_gpu_blocks_override num_lookahead_slots
ignore_patterns preemption_mode scheduler_delay_factor guided_decoding_backend logits_processor_pattern
speculative_draft_tensor_parallel_size speculative_disable_by_batch_size otlp_traces_endpoint collect_detailed_traces
disable_async_output_proc scheduling_policy compilation_config worker_cls kv_transfer_config generation_config
override_generation_config enable_sleep_mode model_impl calculate_kv_scales
hf_config_path runner convert enable_prompt_embeds allowed_media_domains safetensors_load_strategy cuda_graph_sizes
cudagraph_capture_sizes max_cudagraph_capture_size decode_context_parallel_size data_parallel_rank
data_parallel_address data_parallel_rpc_port data_parallel_backend enable_expert_parallel all2all_backend enable_dbo
eplb_config enable_eplb expert_placement_strategy prefix_caching_hash_algo disable_cascade_attn kv_cache_memory_bytes
max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold logprobs_mode enable_mm_embeds
media_io_kwargs mm_processor_cache_gb mm_encoder_tp_mode io_processor_plugin skip_mm_profiling default_mm_loras
model_loader_extra_config disable_hybrid_kv_cache_manager structured_outputs_config logits_processors
show_hidden_metrics_for_version scheduler_cls pooler_config worker_extension_cls kv_events_config
override_attention_dtype mamba_cache_dtype additional_config use_tqdm_on_load async_scheduling
kv_sharing_fast_prefill enable_log_requests disable_log_requests tool_parser_plugin
""")

# Without HF_TOKEN, which is no option: it acts where a model is brought from the hub.
VARIABLES = words("""
HF_MODEL_ID HF_REVISION HF_TASK HF_MODEL_QUANTIZE HF_MODEL_TRUST_REMOTE_CODE SM_NUM_GPUS
TENSOR_PARALLEL_DEGREE MAX_CONCURRENT_REQUESTS MAX_BATCH_PREFILL_TOKENS MAX_BATCH_SIZE ENABLE_CUDA_GRAPHS
CUDA_MEMORY_FRACTION SAGEMAKER_MAX_REQUEST_SIZE SAGEMAKER_MAX_PAYLOAD_IN_MB SAGEMAKER_NUM_MODEL_WORKERS
SAGEMAKER_STARTUP_TIMEOUT SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS PREDICT_TIMEOUT MODEL_LOADING_TIMEOUT
PYTHON_EXECUTABLE DJL_ENTRY_POINT SAGEMAKER_HEALTH_CHECK_OVERRIDE SERVING_FAIL_FAST SERVING_RETRY_THRESHOLD
SERVING_ROLLING_BATCH_BUFFER SERVING_HEALTH_CHECK_OVERRIDE SERVING_LOAD_MODELS SERVING_MODEL_STORE OPTION_ENGINE
OPTION_ENTRYPOINT SAGEMAKER_SECURE_MODE ALLOW_REQUEST_HANDLER_OVERRIDE SERVING_MIN_WORKERS SERVING_MAX_WORKERS
SERVING_FEATURES SERVING_DOWNLOAD_DIR SERVING_PROMETHEUS SERVING_OPTS SERVING_BATCH_SIZE SERVING_MAX_BATCH_DELAY
SERVING_S3_CACHE SERVING_DDB_CACHE SERVING_BACKPORT_FOR_NON_STREAMING_HTTP_ERROR_CODES PIPELINE_PARALLEL_DEGREE
SAGEMAKER_SECURITY_CONTROLS SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT HF_TRUST_REMOTE_CODE HF_MODEL_REVISION
""")

FILE_KEYS = [*SERVER_KEYS, *(f"option.{name}" for name in (*OPTION_KEYS, *BACKEND_KEYS, *ENGINE_KEYS))]
VALUE = "(nonsense)"  # no number, word or directory that any option takes


def targets(given: Given) -> list[Option | ForeignOption]:
    return [match.target for match in find_options(given)]


def outcome(tmp_path: Path, file: str = "", environ: Mapping[str, str] | None = None) -> Config | tuple[str, ...]:
    """The configuration, or the problems that stop the start."""
    (tmp_path / "serving.properties").write_text(file, encoding="utf-8")
    try:
        return resolve([], environ or {}, tmp_path)
    except ConfigError as error:
        return error.problems


def told_of(name: str, line: str) -> bool:
    """True if the line begins with the name and its value, where that may be shown."""
    return line.startswith(f"{name}=") and (f"{VALUE} (" in line or f"{name}=(hidden) (" in line)


def assert_not_dropped(said: Config | tuple[str, ...], name: str, found: list[Option | ForeignOption]) -> None:
    """An option has the value, or what is wrong with it is told; what does not act is told by its name and place."""
    if isinstance(said, tuple):
        assert all("unknown option" not in problem for problem in said)
        assert any(told_of(name, problem) for problem in said), said
        return
    acts = [one for one in found if isinstance(one, Option) and said.origins[one.name].name == name]
    assert acts or any(told_of(name, notice) for notice in said.notices)


@table("key", FILE_KEYS)
def test_a_key_acts_or_is_noted(key: str, tmp_path: Path) -> None:
    found = targets(Given(key, key, "x", "a file"))
    assert found, "unknown"
    assert_not_dropped(outcome(tmp_path, file=f"{key}={VALUE}"), key, found)


@table("key", FILE_KEYS)
def test_the_variable_of_a_key_means_the_same(key: str) -> None:
    bare = key.removeprefix("option.")
    variable = ("OPTION_" if bare != key else "SERVING_") + bare.upper()
    assert targets(read_environment({variable: "x"})[0]) == targets(Given(key, key, "x", "a file"))


@table("variable", VARIABLES)
def test_a_variable_acts_or_is_noted(variable: str, tmp_path: Path) -> None:
    [given] = read_environment({variable: VALUE})
    found = targets(given)
    assert found, "unknown"
    assert_not_dropped(outcome(tmp_path, environ={variable: VALUE}), variable, found)


@table(("word", "notices"), [("Python", 0), ("MPI", 0), ("DeepSpeed", 1)])
def test_the_engine_of_lmi_is_not_ours(word: str, notices: int, tmp_path: Path) -> None:
    said = outcome(tmp_path, environ={"OPTION_ENGINE": word})
    assert isinstance(said, Config)
    assert not said.origins["engine"].is_given
    assert sum("OPTION_ENGINE" in notice for notice in said.notices) == notices
