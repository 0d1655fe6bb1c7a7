"""The table of options: every option is one field here. Flags, keys, variables, help and docs come from these rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

from dragoman.config.kinds import (
    Choice,
    FilePath,
    Integer,
    JsonObject,
    ModelPath,
    Names,
    Number,
    Switch,
    Text,
    Urls,
    Value,
    WordOrCode,
)
from dragoman.config.option import Alias, Option, option
from dragoman.config.request_options import (
    AdapterSettings,
    LlamaCppSettings,
    PictureSettings,
    ReasoningSettings,
    SamplingSettings,
)
from dragoman.config.server_options import ServerSettings
from dragoman.types import Limits

# --- conversions of aliases -------------------------------------------------------------------------------------------


def _prefix_mode(text: str) -> str:
    return "auto" if Switch().parse(text) else "off"


def _lookup_mode(text: str) -> str:
    return "lookup" if Switch().parse(text) else "auto"


# --- the table --------------------------------------------------------------------------------------------------------

_LIMITS = Limits()
OUTPUT_FORMATTERS = ("json", "jsonlines", "sse")
DTYPES = Choice(
    ("auto", "int8", "int4", "bf16", "f16", "f32"),
    {
        "fp16": "f16", "fp32": "f32", "half": "f16", "float16": "f16", "float": "f32", "float32": "f32",
        "bfloat16": "bf16", "i8": "int8", "i4": "int4",
    },
)  # fmt: skip
TOOL_PARSERS = Choice(
    (
        "auto", "none", "hermes", "mistral", "mistral_args", "llama3_json", "json", "granite", "phi4_mini_json",
        "hunyuan_a13b", "cohere", "qwen3_coder", "seed_oss", "glm45", "minimax_m2", "minimax_m3", "kimi_k2",
        "deepseek_v3", "deepseek_v31", "functionary_v31", "gigachat3", "gigachat31", "nemotron_json", "pythonic",
        "llama4_pythonic", "lfm2", "olmo3", "gemma4", "gpt_oss",
    ),
    {
        "qwen": "hermes", "qwen2_5": "hermes", "qwen25": "hermes", "qwen3": "hermes", "exaone4": "hermes",
        "ernie45": "hermes", "llama3": "llama3_json", "llama": "llama3_json", "llama4_json": "llama3_json",
        "phi4_mini": "phi4_mini_json", "minimax_m1": "hunyuan_a13b", "minimax": "hunyuan_a13b",
        "jamba": "hunyuan_a13b", "granite4": "hermes", "cohere_command": "cohere", "qwen3_xml": "qwen3_coder",
        "glm47": "glm45", "deepseekv3": "deepseek_v3",
        "deepseekv31": "deepseek_v31", "openai": "gpt_oss", "gpt-oss": "gpt_oss", "harmony": "gpt_oss",
    },
    short="{auto,none,FORMAT}",
)  # fmt: skip
REASONING_PARSERS = Choice(
    (
        "auto", "none", "think", "deepseek_r1", "magistral", "seed_oss", "minimax_m3", "hunyuan_a13b", "ernie45", "granite",
        "cohere", "gemma4", "gpt_oss",
    ),
    {
        "qwen3": "think", "glm45": "think", "kimi_k2": "think", "deepseek_v3": "think", "deepseek_v31": "think",
        "olmo3": "think", "smollm3": "think", "exaone4": "think", "mistral": "magistral", "minimax_m2": "deepseek_r1",
        "nemotron_v3": "think", "cohere_command": "cohere", "openai_gptoss": "gpt_oss", "gpt-oss": "gpt_oss",
        "openai": "gpt_oss", "harmony": "gpt_oss",
    },
    short="{auto,none,FORMAT}",
)  # fmt: skip
TASKS = Choice(
    ("auto", "generate", "embed", "rerank", "classify"),
    {
        "text-generation": "generate", "text_generation": "generate", "text-embedding": "embed", "text_embedding": "embed",
        "feature-extraction": "embed", "sentence-similarity": "embed", "text-similarity": "rerank",
        "text_similarity": "rerank", "score": "rerank", "text-classification": "classify",
        "text_classification": "classify",
    },
)  # fmt: skip
POOLINGS = Choice(
    ("auto", "cls", "mean", "max", "last", "mean_sqrt_len", "weightedmean", "splade"),
    {"lasttoken": "last"},
    short="MODE",
)
KV_DTYPES = Choice(("auto", "u8", "bf16", "f16", "f32"), {"int8": "u8", "bfloat16": "bf16", "fp16": "f16"})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Model"""

    model_id: Path | None = option(
        None,
        ModelPath("MODEL"),
        "A model directory, a GGUF file, or a model's name on the hub (ORG/NAME or ORG/NAME@REVISION) if no such path "
        "exists. option.model_id in the directory's serving.properties may name another model. demo and demo-vision "
        "are the bundled models, unless models of these names are in the working directory.",
        unset="the bundled demo model", env=(Alias("HF_MODEL_ID"), Alias("MODEL_ID")),
        open_to="model",
    )  # fmt: skip
    revision: str | None = option(
        None, Text("REVISION"), "Branch, tag or commit of a model on the hub, if its name gives none.",
        unset="main", env=(Alias("HF_REVISION"), Alias("HF_MODEL_REVISION")),
    )  # fmt: skip
    name: tuple[str, ...] = option(
        (),
        Names(),
        "Name that clients call the model by; further names are aliases.",
        key="option.served_model_name",
        unset="the directory's name",
        open_to="model",
        flags=("-a", "--alias"),
    )
    dtype: str = option(
        "auto",
        DTYPES,
        "Type of the weight matrices; int8 and int4 compress them while loading. Integers that a checkpoint already "
        "holds (AWQ, GPTQ, compressed-tensors) are kept, except with f32, which expands them. auto: int8, except that "
        "MXFP4 (gpt-oss) keeps its own values.",
        open_to="load",
    )
    kv_dtype: str = option(
        "auto",
        KV_DTYPES,
        "Type of the key/value cache; u8 holds nearly twice as many tokens. auto: bf16 if the processor supports it, "
        "otherwise f16 (f32 on Arm and with f32 weights). If memory, or --kv-cache-gb, is too small for "
        "--max-num-seqs sequences of 1,024 tokens or for one of full length, auto means u8.",
        keys=(Alias("option.kv_cache_dtype"),),
        open_to="load",
    )
    kernels: str = option(
        "auto",
        Choice(("auto", "own", "openvino")),
        "Which kernels compute matrix products and attention. own: dragoman's, except for products with f32 weights and of "
        "exported graphs; they keep the values of GGUF files and need the native library, which a C++ compiler builds. "
        "openvino: the runtime's. auto: own, but openvino if the library is missing, on Arm and on processors with AMX; and "
        "the runtime's products for bf16 and f16 weights on processors that compute in bf16.",
    )
    max_model_len: int | None = option(
        None,
        Integer(1, auto=True),
        "Longest sequence, counting prompt and completion tokens.",
        unit="tokens",
        unset="the model's context length",
        open_to="load",
        flags=("-c", "--ctx-size", "--num-ctx", "--context-length"),
    )
    context_shift: bool = option(
        False,
        Switch(),
        "Let answers go on beyond the context. When it is full, the model forgets the first half of it, but for the "
        "prompt tokens that the request keeps. Requests that give no limit still end there, unless "
        "--max-completion-tokens is set. Beam searches and prompts with pictures are not shifted.",
        env=(Alias("LLAMA_ARG_CONTEXT_SHIFT"),),
    )
    chat_template: str | None = option(
        None,
        Text("FILE|TEMPLATE"),
        "Jinja chat template that replaces the model's: a file, or the template itself.",
        unset="the model's own",
        flags=("--chat-template-file",),
    )
    default_chat_template_kwargs: str | None = option(
        None,
        JsonObject('{"enable_thinking": false}', ("messages", "tools", "add_generation_prompt")),
        "Default variables of the chat template, as JSON; a request overrides them key by key.",
        unset="nothing",
        flags=("--chat-template-kwargs",),
        env=(Alias("LLAMA_ARG_CHAT_TEMPLATE_KWARGS"), Alias("LLAMA_CHAT_TEMPLATE_KWARGS")),
        open_to="load",
    )
    tokenize_content: str = option(
        "as_is",
        Choice(("as_is", "plain")),
        "How control tokens spelled out in a message's text are read. as_is: as control tokens; plain: as ordinary "
        "text.",
        open_to="load",
    )
    tool_call_parser: str = option(
        "auto",
        TOOL_PARSERS,
        "Format in which the model writes tool calls. auto detects it from the chat template; none leaves the calls "
        "in the text.",
        open_to="load",
    )
    reasoning_parser: str = option(
        "auto",
        REASONING_PARSERS,
        "Format in which the model marks its reasoning. auto detects it from the chat template; none leaves it in the "
        "text.",
        open_to="load",
    )
    task: str = option(
        "auto",
        TASKS,
        "The model's task. auto reads it from the architecture and, if present, modules.json (see "
        "dialects/embeddings.md).",
        env=(Alias("HF_TASK"),),
        open_to="load",
    )
    pooling: str = option(
        "auto",
        POOLINGS,
        "How an embedding model turns a text's token vectors into one. auto follows 1_Pooling/config.json.",
        open_to="load",
    )
    normalize: str = option(
        "auto",
        Choice(("auto", "true", "false"), {"1": "true", "0": "false", "yes": "true", "no": "false"}),
        "Scale embeddings to length 1 unless the request says otherwise. auto follows modules.json.",
        open_to="load",
    )
    threads: int | None = option(
        None,
        Integer(1, 4096, auto=True),
        "Threads that run the model's kernels.",
        unset="one per core",
        open_to="load",
        flags=("-t",),
    )
    cache_dir: Path | None = option(
        None,
        FilePath(),
        "Directory for packed weights and compiled graphs, which later starts map instead of building. It is created "
        "for the server's user alone; a directory that other users can write to is not used.",
        unset="dragoman in the user's cache directory, if it is writable",
    )
    cache_max_gb: float = option(
        64.0,
        Number(0, inclusive=True),
        "Size limit of the cache directory, which also never takes more than half of the disk's room. The least recently "
        "used models are removed first, and the newest never. 0 keeps none.",
        unit="GiB",
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Batching and cache"""

    engine: str = option(
        "rolling",
        WordOrCode(("rolling", "remote", "vllm", "ray"), is_address=True),
        "What runs the model: the built-in engine (rolling), other servers (remote), vLLM in this process, replicas "
        "on Ray Serve (ray), or an engine factory of an importable Python module.",
    )
    kv_cache_gb: float | None = option(
        None,
        Number(0, auto=True),
        "Memory for the key/value cache.",
        unit="GiB",
        unset="chosen from the memory that is free after loading",
        open_to="load",
    )
    max_batch_tokens: int = option(
        512,
        Integer(16),
        "Most tokens computed in one step. Longer prompts are computed in chunks of this size, or smaller ones if "
        "that is faster.",
        unit="tokens",
        key="option.max_rolling_batch_prefill_tokens",
        keys=(Alias("option.max_num_batched_tokens"), Alias("option.max_num_tokens")),
        env=(Alias("MAX_BATCH_PREFILL_TOKENS"),),
        open_to="load",
    )
    max_step_slowdown: float = option(
        2.5,
        Number(0, inclusive=True),
        "How much longer a step may take because it also computes prompts, as a multiple of a step that only decodes; "
        "this keeps streams even while long prompts arrive. 0 = no limit. Such a step always computes at least 16 "
        "prompt tokens, since smaller chunks cost more than they save.",
        open_to="load",
    )
    max_num_seqs: int = option(
        64,  # more slow each other down on one machine; LMI's defaults are 32 and 256
        Integer(1, 4096),
        "Most sequences that run at the same time; further requests wait.",
        unit="sequences",
        key="option.max_rolling_batch_size",
        keys=(Alias("option.max_num_seqs"),),
        env=(Alias("MAX_BATCH_SIZE"),),
        open_to="load",
        flags=("-np", "--parallel"),
    )
    prefix_cache: str = option(
        "auto",
        Choice(("auto", "prompt", "all", "off")),
        "Which computed blocks later requests may reuse. prompt: those of prompts. all: those of answers too, so that "
        "the next turn of a chat computes only what is new. off: none. auto: all if that changes no answer (with "
        "dragoman's own attention), otherwise prompt, because all could then change answers by rounding.",
        keys=(
            Alias("option.enable_prefix_caching", _prefix_mode, "true or false"),
            Alias("option.enable_kv_cache_reuse", _prefix_mode, "true or false"),
        ),
        open_to="load",
    )
    prefix_cache_per_key: bool | None = option(
        None,
        Switch(),
        "Let requests reuse only prompts of their own API key. Otherwise the count of cached tokens in an answer "
        "reveals what other keys have asked. If the servers of --engine remote do not accept cache_salt, the count is "
        "withheld instead.",
        unset="on if keys are set",
    )
    prefix_store_gb: float | None = option(
        None,
        Number(0),
        "Size limit on disk for computed beginnings of prompts, which later starts and other servers can reuse. It "
        "covers all servers that share the directory. The prompts can be recovered from these files (see "
        "prefix_store.md).",
        unit="GB",
        unset="nothing is stored",
    )
    prefix_store_dir: Path | None = option(
        None,
        FilePath("DIR"),
        "Directory for --prefix-store-gb. It is created for the server's user alone; another user's directory is "
        "refused.",
        unset="prefixes in --cache-dir",
    )
    step_log: Path | None = option(
        None,
        FilePath("FILE"),
        "File that receives one line of JSON per step: start, duration, and work done. `dragoman plan --costs-from "
        "FILE` reads it (see scaling.md). With --numa each engine writes its own file: FILE.node0, FILE.node1.",
        unset="no log",
    )


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Speculative decoding"""

    speculation: str = option(
        "auto",
        Choice(("auto", "off", "lookup", "suffix", "draft")),
        "Where guessed tokens come from; the model verifies them, so answers stay the same. lookup: earlier "
        "occurrences in the same text. suffix: these, and the texts of earlier requests. draft: draft_model. auto: "
        "every source the model allows. Only as many guesses are verified as pay off.",
        keys=(Alias("option.prompt_lookup", _lookup_mode, "true or false"),),
        open_to="load",
    )
    speculation_across_keys: bool = option(
        False,
        Switch(),
        "Also guess from texts of requests with other API keys. Response times may then reveal what others asked.",
    )
    draft_model: Path | None = option(
        None,
        ModelPath("MODEL"),
        "A smaller model with the same vocabulary that guesses tokens.",
        unset="no draft model",
        keys=(Alias("option.speculative_draft_model"), Alias("option.speculative_model")),
        open_to="model",
        flags=("-md", "--model-draft"),
    )
    num_assistant_tokens: int | None = option(
        None,
        Integer(1, 32),
        "Tokens guessed per step, unless the request says how many.",
        unset="as many as pay off",
        unit="tokens",
        keys=(Alias("option.num_speculative_tokens"), Alias("option.speculative_length")),
        open_to="load",
    )
    max_ngram_size: int | None = option(
        None,
        Integer(1, 16),
        "Longest run of matching tokens to search for in the same text, unless the request says it.",
        unset="no limit",
        unit="tokens",
        keys=(Alias("option.ngram_prompt_lookup_max"),),
        open_to="load",
    )
    speculative_max_batch: int = option(
        8,
        Integer(1, 4096),
        "Most running sequences for which num_assistant_tokens (the option's or a request's) is followed; with more, "
        "only as many guesses are verified as pay off.",
        unit="sequences",
        keys=(Alias("option.speculative_disable_by_batch_size"),),
        open_to="load",
    )


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Engines elsewhere (--engine remote, --engine ray)"""

    upstream: tuple[str, ...] = option(
        (),
        Urls(),
        "Servers with an OpenAI completions API, all serving the same model (see remote.md); http://HOST:PORT means "
        "http://HOST:PORT/v1.",
        unset="none; required by --engine remote",
        keys=(Alias("option.upstreams"),),
    )
    upstream_model: str | None = option(
        None,
        Text("NAME"),
        "Model name to request from the servers.",
        unset="the first model that a server lists",
    )
    upstream_api_key: str | None = option(
        None,
        Text("KEY"),
        "Key sent to the servers as `Authorization: Bearer KEY`.",
        unset="no key is sent",
        env=(Alias("DRAGOMAN_UPSTREAM_API_KEY"),),
        is_secret=True,
    )
    upstream_timeout: float = option(
        300.0,
        Number(0),
        "Longest silence of a server before the first token of an answer, and between two tokens.",
        unit="seconds",
    )
    hedge_after_ms: float | None = option(
        None,
        Number(1),
        "Send the request to a second server too if the first token takes longer than this.",
        unset="never",
        unit="milliseconds",
    )
    ray_address: str = option(
        "auto",
        Text("ADDRESS"),
        "With --engine ray: the cluster's address, as HOST:PORT of its head node; auto means the cluster this machine "
        "belongs to.",
    )
    ray_application: str = option(
        "default",
        Text("NAME"),
        "With --engine ray: the Ray Serve application whose engines run the model (see ray.md).",
    )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Client APIs"""

    rolling_batch: str = option(
        "auto",
        Choice(
            ("auto", "vllm", "lmi-dist", "trtllm", "scheduler", "deepspeed", "disable"),
            {"lmi_dist": "lmi-dist", "tensorrt-llm": "trtllm", "hf-accelerate": "scheduler", "tnx": "auto"},
        ),
        "LMI: backend whose parameter names and defaults apply. auto accepts those of every backend; disable selects "
        "the dynamic-batch schemas.",
        open_to="load",
    )
    lmi_version: str = option(
        "0.31",
        Choice(("0.26", "0.31", "0.32")),
        "LMI: release whose schemas and defaults apply.",
        open_to="load",
    )
    batch_size: int = option(
        1,
        Integer(1),
        "LMI: a value above 1 selects rolling_batch=disable, whatever that option says; requests are still batched "
        "continuously.",
        unit="requests",
        key="batch_size",
        keys=(Alias("max_dynamic_batch_size"),),
        open_to="load",
    )
    output_formatter: str | None = option(
        None,
        WordOrCode(OUTPUT_FORMATTERS),
        "LMI: output format. jsonlines and sse stream every answer; json leaves it to the request; a function of "
        "model.py writes its own.",
        unset="the request decides",
    )
    enable_streaming: bool = option(
        False,
        Switch(("huggingface",)),
        "LMI: with rolling_batch=disable, stream every answer.",
        open_to="load",
    )
    tgi_compat: bool = option(
        False, Switch(), "LMI: answer in the format of Text Generation Inference.", open_to="load"
    )
    lmi_strict: bool = option(
        False,
        Switch(),
        "LMI chat: reproduce the documented quirks (logprobs as an array, 30 tokens by default).",
        open_to="load",
    )
    entry_point: str | None = option(
        None,
        Text("FILE"),
        "LMI: Python file with formatters or a handler, in the model directory or elsewhere (see hooks.md).",
        unset="model.py in the model directory, if it exists",
        key="option.entryPoint",
        env=(Alias("DJL_ENTRY_POINT"),),
    )
    hooks: bool = option(
        True,
        Switch(),
        "LMI: run the formatters and the handler of model.py. If off, the file is not read at all.",
        key="option.enable_hooks",
    )
    hook_timeout_s: float = option(
        30.0,
        Number(0),
        "LMI: time limit of one formatter call; a request that exceeds it is answered 424.",
        unit="seconds",
    )
    handler: str = option(
        "handle",
        Text("FUNCTION"),
        "LMI: function of model.py that answers requests instead of the model, if it exists (see hooks.md).",
    )
    handler_threads: int = option(
        4,
        Integer(1, 1024),
        "LMI: handler calls that may run at the same time; 1 runs them one after another, like one LMI worker.",
        unit="calls",
    )
    generation_config: str = option(
        "auto",
        Choice(("auto", "none", "all"), {"vllm": "none", "api": "none"}),
        "Which APIs take sampling defaults from the model's generation_config.json. auto: those whose documents "
        "define no defaults (OpenAI, Anthropic, Responses, Ollama); all: LMI, OVMS and TGI too.",
        open_to="load",
    )
    chat_format: str = option(
        "auto",
        Choice(("auto", "lmi", "openai")),
        "Response format of /v1/chat/completions. auto: LMI's if the server is configured like an LMI container (a "
        "serving.properties, or an OPTION_ or SERVING_ variable of LMI) and for curl without a key; otherwise "
        "OpenAI's.",
        open_to="load",
    )
    allow_token_ids: bool = option(
        False,
        Switch(),
        "Embeddings on /v1 and /v3: accept token ids of this model's tokenizer from every request. Otherwise a "
        "request with token ids must set allow_token_ids: true.",
        open_to="load",
    )
    max_stored_responses: int = option(
        1000,
        Integer(0, 1_000_000),
        "Responses API: most stored responses, keeping the most recently used; 0 stores none.",
        unit="responses",
    )
    max_stored_responses_mb: int = option(
        256,
        Integer(1, 1_000_000),
        "Responses API: memory limit of the stored responses.",
        unit="MiB",
    )
    stored_responses_max_age_s: float = option(
        3600.0,
        Number(1),
        "Responses API: how long a stored response is kept after its last use.",
        unit="seconds",
    )
    text_status_hold_ms: int = option(
        200,
        Integer(0, 60_000),
        "Text service: how long a streamed answer's headers are held back so that they can carry the exact status.",
        unit="milliseconds",
        open_to="load",
    )
    text_chat_template: bool = option(
        False,
        Switch(),
        "Text service: wrap the prompt as one user turn of the model's chat template.",
        open_to="load",
    )
    max_best_of: int = option(
        _LIMITS.max_best_of,
        Integer(1, 1024),
        "Largest n, best_of and num_beams that a request may ask for.",
        unit="sequences",
    )
    max_stop_strings: int = option(
        _LIMITS.max_stop_strings,
        Integer(1, 4096),
        "Most stop strings per request (always 16 on /v3).",
        unit="strings",
    )
    max_logprobs: int = option(
        _LIMITS.max_logprobs,
        Integer(0, 1_000_000),
        "Most log-probabilities per token that a request may ask for; more than a few hundred slow down all requests.",
    )
    max_grammar_s: float = option(
        10.0,
        Number(maximum=86_400),
        "Processor time that one request may spend following its grammar, over all its tokens; a request that exceeds "
        "it fails. Compiling a grammar has its own limit. Engine rolling only.",
        unit="seconds",
    )
    max_prompts: int = option(_LIMITS.max_prompts, Integer(1, 1024), "Most prompts per call.", unit="prompts")
    min_priority: int = option(
        _LIMITS.min_priority,
        Integer(-1_000_000, 0),
        "Smallest `priority` a request may have; smaller values are served first. With 0, clients can only lower "
        "their own priority.",
    )


GROUPS: tuple[type, ...] = (
    ModelSettings,
    EngineSettings,
    SpeculationSettings,
    AdapterSettings,
    PictureSettings,
    ReasoningSettings,
    SamplingSettings,
    UpstreamSettings,
    ServerSettings,
    ClientSettings,
    LlamaCppSettings,
)
"""The settings classes, in the order of help and docs; a class's docstring is its heading."""

OPTIONS: tuple[Option, ...] = tuple(
    Option(field.name, group, cast(Value, field.default), field.metadata["row"])
    for group in GROUPS
    for field in fields(group)
)
