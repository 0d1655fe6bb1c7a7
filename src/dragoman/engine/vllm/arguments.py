"""Translates this server's options into vLLM's engine arguments, as plain data, without importing vllm."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from dragoman.engine.factory import EngineOptionError, EngineSetup
from dragoman.files.model_texts import model_name

GIB = 1024**3

LMI_NAMES = {
    "tensor_parallel_degree": "tensor_parallel_size",
    "pipeline_parallel_degree": "pipeline_parallel_size",
    "quantize": "quantization",
    "cpu_offload_gb_per_gpu": "cpu_offload_gb",
}

_DECIDED = """
model model_weights tokenizer served_model_name skip_tokenizer_init runner convert pooler_config enable_prompt_embeds
generation_config override_generation_config logprobs_mode max_logprobs scheduling_policy structured_outputs_config
guided_decoding_backend reasoning_parser reasoning_parser_plugin stream_interval enable_lora hf_token enable_log_requests
worker_extension_cls
"""
DECIDED = frozenset(_DECIDED.split())
"""Arguments of vLLM that follow from the model, or from what engines promise here; nobody may set them."""

_DTYPES = {"auto": "auto", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_KV_DTYPES = {"auto": "auto", "f16": "float16", "bf16": "bfloat16"}
_DRAFTS = "must not be set with engine=vllm, whose drafts are configured by option.speculative_config"


def shared_arguments(setup: EngineSetup) -> dict[str, Any]:
    """vLLM's arguments for the options of this server, with our own choices. Raises: EngineOptionError."""
    options = setup.options
    if options.get("draft_model"):
        raise EngineOptionError("draft_model", _DRAFTS)
    if options.get("speculation", "auto") not in ("auto", "off"):
        raise EngineOptionError("speculation", _DRAFTS)
    names = options.get("name") or (model_name(setup.model_dir),)
    arguments: dict[str, Any] = {
        "model": str(setup.model_dir),
        "served_model_name": names[0],
        "dtype": _translated("dtype", options.get("dtype", "auto"), _DTYPES),
        "kv_cache_dtype": _translated("kv_dtype", options.get("kv_dtype", "auto"), _KV_DTYPES),
        "max_num_seqs": options.get("max_num_seqs", 64),
        "max_logprobs": -1,  # all: the service bounds clients, and beams need more
        "enable_prefix_caching": options.get("prefix_cache") != "off",
        "generation_config": "vllm",  # defaults of requests are settled before the engine gets them
        "logprobs_mode": "raw_logprobs",
        "scheduling_policy": "priority",
        "structured_outputs_config": {"backend": "guidance"},
    }
    if options.get("max_model_len") is not None:
        arguments["max_model_len"] = options["max_model_len"]
    if "max_batch_tokens" in setup.given:  # vLLM's own default suits processors
        arguments["max_num_batched_tokens"] = options["max_batch_tokens"]
    if options.get("kv_cache_gb") is not None:
        arguments["kv_cache_memory_bytes"] = int(options["kv_cache_gb"] * GIB)
    return arguments


def picture_arguments(setup: EngineSetup, *, sees: bool) -> dict[str, Any]:
    """Arguments for pictures; videos and audio are off. `sees` False = vLLM does not load the tower."""
    most, changes = setup.options.get("limit_mm_per_prompt"), setup.options.get("mm_processor_kwargs")
    limits = {"video": 0, "audio": 0}
    if not sees:
        return {"limit_mm_per_prompt": {"image": 0, **limits}}
    if most is not None:
        limits["image"] = most
    return {"limit_mm_per_prompt": limits} | ({"mm_processor_kwargs": json.loads(changes)} if changes else {})


def _translated(name: str, value: str, known: Mapping[str, str]) -> str:
    if value not in known:
        raise EngineOptionError(name, f"must be one of {', '.join(known)} with engine=vllm")
    return known[value]


def extra_arguments(extra: Mapping[str, str], known: Collection[str]) -> dict[str, tuple[str, str]]:
    """vLLM's own options: its name -> (name in the configuration, text). `known`: the names of its arguments.

    Raises: EngineOptionError for an unknown name, with the nearest; for one that this server sets; for a duplicate.
    """
    found: dict[str, tuple[str, str]] = {}
    for key, text in extra.items():
        name = LMI_NAMES.get(key, key)
        if name in DECIDED:
            raise EngineOptionError(key, "must not be set: this server derives it from the model")
        if name not in known:
            raise EngineOptionError(key, f"unknown option; {_hint(key, known)}")
        if name in found:
            raise EngineOptionError(key, f"must not be set together with option.{found[name][0]}, which means the same")
        found[name] = (key, text)
    return found


def _hint(name: str, known: Collection[str]) -> str:
    free = sorted(set(known) - DECIDED | set(LMI_NAMES))
    nearest = get_close_matches(name, free, n=1, cutoff=0.6)
    return f"vLLM's nearest argument is option.{nearest[0]}" if nearest else "vLLM has no argument like it"


def command_words(name: str, text: str, *, is_switch: bool, is_list: bool) -> list[str]:
    """The argument in the form of vLLM's command line, which parses values. Raises: ValueError for a bad switch."""
    flag = name.replace("_", "-")
    if is_switch:
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise ValueError("must be true or false")
        return [f"--{flag}" if word == "true" else f"--no-{flag}"]
    if is_list:
        return [f"--{flag}", *(part.strip() for part in text.split(",") if part.strip())]
    return [f"--{flag}={text}"]
