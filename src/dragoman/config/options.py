"""The table of options: every option is one field here, with its row of facts; all else is derived from it.

Does: declare name, type, default, unit, help, range, and the names an option goes by. Flags, serving.properties keys,
environment variables, `--help`, `docs/options.md` and the frozen settings classes come from these rows.
Does not: read anything. Used by `resolve`, by the help and docs writers, and (the settings classes) by the composition root.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

from dragoman.config.adapter_settings import AdapterSettings
from dragoman.config.kinds import (
    Choice,
    FilePath,
    FunctionOr,
    Integer,
    JsonObject,
    ModelPath,
    Names,
    Number,
    Switch,
    Text,
    Urls,
    Value,
    WordOrAddress,
)
from dragoman.config.option import Alias, Option, option
from dragoman.config.picture_settings import PictureSettings
from dragoman.config.reasoning_settings import ReasoningSettings
from dragoman.config.server_options import ServerSettings
from dragoman.types import Limits

# --- conversions of aliases -------------------------------------------------------------------------------------------


def _prefix_mode(text: str) -> str:
    return "prompt" if Switch().parse(text) else "off"


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
        "cohere_command": "cohere", "qwen3_xml": "qwen3_coder", "glm47": "glm45", "deepseekv3": "deepseek_v3",
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
        "cohere_command": "cohere", "openai_gptoss": "gpt_oss", "gpt-oss": "gpt_oss", "openai": "gpt_oss",
        "harmony": "gpt_oss",
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
        "Directory of the model, a GGUF file, or its name on the hub (ORG/NAME or ORG/NAME@REVISION) where no such path is "
        "there. A directory may hold a serving.properties, whose option.model_id may name another model. "
        "demo and demo-vision are the bundled models, where no directory of that name is there.",
        unset="the bundled demo model", env=(Alias("HF_MODEL_ID"), Alias("MODEL_ID")),
        open_to="model",
    )  # fmt: skip
    revision: str | None = option(
        None, Text("REVISION"), "Branch, tag or commit of a model of the hub, where its name says none.",
        unset="main", env=(Alias("HF_REVISION"), Alias("HF_MODEL_REVISION")),
    )  # fmt: skip
    name: tuple[str, ...] = option(
        (),
        Names(),
        "Name clients call the model by; further names are aliases.",
        key="option.served_model_name",
        unset="the directory's name",
        open_to="model",
        flags=("-a", "--alias"),
    )
    dtype: str = option(
        "auto",
        DTYPES,
        "Type of the weight matrices; the int types compress them while loading. What a checkpoint has packed as integers "
        "(AWQ, GPTQ, compressed-tensors) stays as it is, but for f32: that is the numbers they stand for. auto: int8, and "
        "MXFP4 (gpt-oss) keeps its values in groups, where int8 by name stores them by row, a little faster.",
        open_to="load",
    )
    kv_dtype: str = option(
        "auto",
        KV_DTYPES,
        "Type of the key/value cache; u8 holds nearly twice as many tokens. auto: bf16 where the CPU has it, else f16 (f32 "
        "on Arm, and with weights of f32), but u8 where the machine's memory, or --kv-cache-gb, has room for fewer than "
        "--max-num-seqs sequences of 1,024 tokens or for none of full length.",
        keys=(Alias("option.kv_cache_dtype"),),
        open_to="load",
    )
    kernels: str = option(
        "auto",
        Choice(("auto", "own", "openvino")),
        "Whose kernels compute products with weight matrices, and attention: own, dragoman's, for all weights but f32, with "
        "GGUF files' values as they are; they need the library that is built where there is a C++ compiler. openvino: the "
        "runtime's. "
        "auto: own, but openvino's where the library is missing, on Arm and processors with AMX, and for bf16 and f16 where "
        "the processor computes in bf16.",
    )
    max_model_len: int | None = option(
        None,
        Integer(1, auto=True),
        "Longest sequence: prompt and completion tokens together.",
        unit="tokens",
        unset="the model's context length",
        open_to="load",
        flags=("-c", "--ctx-size", "--num-ctx", "--context-length"),
    )
    chat_template: str | None = option(
        None,
        Text("FILE|TEMPLATE"),
        "Jinja chat template to use instead of the model's own: a file, or the template itself.",
        unset="the model's own",
        flags=("--chat-template-file",),
    )
    default_chat_template_kwargs: str | None = option(
        None,
        JsonObject('{"enable_thinking": false}', ("messages", "tools", "add_generation_prompt")),
        "What the chat template is told by name where a request does not say it, as JSON; requests override each key.",
        unset="nothing",
        flags=("--chat-template-kwargs",),
        env=(Alias("LLAMA_ARG_CHAT_TEMPLATE_KWARGS"), Alias("LLAMA_CHAT_TEMPLATE_KWARGS")),
        open_to="load",
    )
    tokenize_content: str = option(
        "as_is",
        Choice(("as_is", "plain")),
        "Whether texts of control tokens in messages become such tokens: as_is, they do; plain, they are texts like others.",
        open_to="load",
    )
    tool_call_parser: str = option(
        "auto",
        TOOL_PARSERS,
        "How the model writes tool calls; auto recognises it in the chat template, none leaves them in the text.",
        open_to="load",
    )
    reasoning_parser: str = option(
        "auto",
        REASONING_PARSERS,
        "How the model marks its reasoning; auto recognises it in the chat template, none leaves it in the text.",
        open_to="load",
    )
    task: str = option(
        "auto",
        TASKS,
        "What the model is for; auto: what its architecture, and modules.json if there is one, say (see "
        "dialects/embeddings.md).",
        env=(Alias("HF_TASK"),),
        open_to="load",
    )
    pooling: str = option(
        "auto",
        POOLINGS,
        "How a model that embeds makes one vector of a text's tokens; auto: as 1_Pooling/config.json says.",
        open_to="load",
    )
    normalize: str = option(
        "auto",
        Choice(("auto", "true", "false"), {"1": "true", "0": "false", "yes": "true", "no": "false"}),
        "Whether embeddings have length 1 where a request does not say it; auto: as modules.json says.",
        open_to="load",
    )
    threads: int | None = option(
        None,
        Integer(1, 4096, auto=True),
        "Threads of the model's kernels.",
        unset="one per core",
        open_to="load",
        flags=("-t",),
    )
    cache_dir: Path | None = option(
        None,
        FilePath(),
        "Directory where packed weights and compiled graphs are kept, so that the next start only maps them. It is made "
        "for the server's user alone; nothing is kept in one that others may write to.",
        unset="dragoman in the user's cache directory, if it can be written",
    )
    cache_max_gb: float = option(
        64.0,
        Number(0),
        "The most that kept models take in that directory; the least recently used ones are removed first, never "
        "the newest. 0: none is kept.",
        unit="GiB",
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Batching and cache"""

    engine: str = option(
        "rolling",
        WordOrAddress(("rolling", "remote", "vllm", "ray")),
        "What runs the model: the built-in engine, servers elsewhere (remote), vLLM in this process, replicas on Ray Serve "
        "(ray), or the engine factory of a Python module that can be imported.",
    )
    kv_cache_gb: float | None = option(
        None,
        Number(0, auto=True),
        "Memory for the key/value cache.",
        unit="GiB",
        unset="from the memory that is free after loading",
        open_to="load",
    )
    max_batch_tokens: int = option(
        512,
        Integer(16),
        "Tokens one step computes at most; longer prompts come in pieces: of this size, or smaller where that is faster.",
        unit="tokens",
        key="option.max_rolling_batch_prefill_tokens",
        keys=(Alias("option.max_num_batched_tokens"), Alias("option.max_num_tokens")),
        env=(Alias("MAX_BATCH_PREFILL_TOKENS"),),
        open_to="load",
    )
    max_step_slowdown: float = option(
        2.5,
        Number(0, inclusive=True),
        "How many times longer than a step that only decodes a step may take because it also computes prompts, so that "
        "streams stay even while long prompts come in; 0 = no limit. A step that computes prompts computes 16 "
        "tokens of them in any case, however long that takes: in smaller pieces they would cost more than they need.",
        open_to="load",
    )
    max_num_seqs: int = option(
        64,  # more only slow each other down on the cores of one machine; LMI's defaults are 32 and 256
        Integer(1, 4096),
        "Sequences that run at the same time; more requests wait.",
        unit="sequences",
        key="option.max_rolling_batch_size",
        keys=(Alias("option.max_num_seqs"),),
        env=(Alias("MAX_BATCH_SIZE"),),
        open_to="load",
        flags=("-np", "--parallel"),
    )
    prefix_cache: str = option(
        "prompt",
        Choice(("prompt", "all", "off")),
        "Which blocks later requests may reuse: those of prompts (the same request gets the same answer), all, or none.",
        keys=(
            Alias("option.enable_prefix_caching", _prefix_mode, "true or false"),
            Alias("option.enable_kv_cache_reuse", _prefix_mode, "true or false"),
        ),
        open_to="load",
    )
    prefix_cache_per_key: bool | None = option(
        None,
        Switch(),
        "Requests reuse prompts of their own API key only; else the cached tokens that an answer counts tell what other "
        "keys have asked. Where the servers of --engine remote take no cache_salt, cached tokens are not counted instead.",
        unset="on where keys are set",
    )
    prefix_store_gb: float | None = option(
        None,
        Number(0),
        "The most that the computed beginnings of prompts take on disk, where later starts and requests behind them find "
        "them: of all servers that use the directory together. They can be turned back into the prompts (see "
        "prefix_store.md).",
        unit="GB",
        unset="nothing of prompts is written",
    )
    prefix_store_dir: Path | None = option(
        None,
        FilePath("DIR"),
        "Directory of what --prefix-store-gb keeps. It is made for the server's user alone; another user's is refused.",
        unset="prefixes in --cache-dir",
    )
    step_log: Path | None = option(
        None,
        FilePath("FILE"),
        "File to which a line of JSON is written for each step: when it began, how long it took, what it computed. "
        "`dragoman plan --costs-from FILE` plans by it (see scaling.md). "
        "With --numa each engine has a file: FILE.node0, FILE.node1.",
        unset="none is written",
    )


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Speculative decoding"""

    speculation: str = option(
        "auto",
        Choice(("auto", "off", "lookup", "suffix", "draft")),
        "Who guesses tokens that the model then verifies at once; the same request gets the same answer. lookup: what "
        "followed earlier in the same text. suffix: that, and what followed in texts of requests before. draft: "
        "draft_model. auto: all of them, where the model allows it. However many are guessed, as many are verified as pay.",
        keys=(Alias("option.prompt_lookup", _lookup_mode, "true or false"),),
        open_to="load",
    )
    speculation_across_keys: bool = option(
        False,
        Switch(),
        "Guess from texts of requests with other API keys, too; how long an answer takes may then tell what others asked.",
    )
    draft_model: Path | None = option(
        None,
        ModelPath("MODEL"),
        "A smaller model with the same vocabulary guesses tokens as well.",
        unset="no draft model",
        keys=(Alias("option.speculative_draft_model"), Alias("option.speculative_model")),
        open_to="model",
        flags=("-md", "--model-draft"),
    )
    num_assistant_tokens: int | None = option(
        None,
        Integer(1, 32),
        "Tokens guessed per step for a request that does not say how many.",
        unset="as many as pay",
        unit="tokens",
        keys=(Alias("option.num_speculative_tokens"), Alias("option.speculative_length")),
        open_to="load",
    )
    max_ngram_size: int | None = option(
        None,
        Integer(1, 16),
        "Longest run of equal tokens by which the same text is searched, for a request that does not say it.",
        unset="however long",
        unit="tokens",
        keys=(Alias("option.ngram_prompt_lookup_max"),),
        open_to="load",
    )
    speculative_max_batch: int = option(
        8,
        Integer(1, 4096),
        "With more running sequences no number of guesses is kept to that a request or num_assistant_tokens asks for: as "
        "many are verified as pay.",
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
        "Servers that answer OpenAI's completions, each with the same model (see remote.md); http://HOST:PORT means "
        "http://HOST:PORT/v1.",
        unset="none; needed with --engine remote, without effect otherwise",
        keys=(Alias("option.upstreams"),),
    )
    upstream_model: str | None = option(
        None,
        Text("NAME"),
        "Name of the model to ask the servers for.",
        unset="the first that a server lists",
    )
    upstream_api_key: str | None = option(
        None,
        Text("KEY"),
        "Key that is sent to the servers as `Authorization: Bearer KEY`.",
        unset="no key is sent",
        env=(Alias("DRAGOMAN_UPSTREAM_API_KEY"),),
        is_secret=True,
    )
    upstream_timeout: float = option(
        300.0,
        Number(0),
        "Longest time without a sign of a server: before the first token of an answer, and between two of them.",
        unit="seconds",
    )
    hedge_after_ms: float | None = option(
        None, Number(1), "Ask a second server too if the first token takes longer.", unset="never", unit="milliseconds"
    )
    ray_address: str = option(
        "auto",
        Text("ADDRESS"),
        "With --engine ray: the cluster, as HOST:PORT of its head; auto is the one that this machine is part of.",
    )
    ray_application: str = option(
        "default",
        Text("NAME"),
        "With --engine ray: the application of Ray Serve whose engines run the model (see ray.md).",
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
        "LMI: whose parameter names and defaults apply; auto accepts all, disable gives the dynamic-batch shapes.",
        open_to="load",
    )
    lmi_version: str = option(
        "0.31",
        Choice(("0.26", "0.31", "0.32")),
        "LMI: release whose shapes and defaults apply.",
        open_to="load",
    )
    batch_size: int = option(
        1,
        Integer(1),
        "LMI: a value over 1 means rolling_batch=disable, whatever that says; requests are still batched continuously.",
        unit="requests",
        key="batch_size",
        keys=(Alias("max_dynamic_batch_size"),),
        open_to="load",
    )
    output_formatter: str | None = option(
        None,
        FunctionOr(OUTPUT_FORMATTERS),
        "LMI: jsonlines or sse streams every answer in that form; json leaves it to the request; a function writes it.",
        unset="as the request asks",
    )
    enable_streaming: bool = option(
        False,
        Switch(("huggingface",)),
        "LMI: with rolling_batch=disable, stream every answer.",
        open_to="load",
    )
    tgi_compat: bool = option(False, Switch(), "LMI: answer in the shape of Text Generation Inference.", open_to="load")
    lmi_strict: bool = option(
        False,
        Switch(),
        "LMI chat: reproduce the documented slips (logprobs as an array, 30 tokens by default).",
        open_to="load",
    )
    entry_point: str | None = option(
        None,
        Text("FILE"),
        "LMI: Python file with formatters or a handler, in the model directory or anywhere (see hooks.md).",
        unset="model.py in the model directory, if there is one",
        key="option.entryPoint",
        env=(Alias("DJL_ENTRY_POINT"),),
    )
    hooks: bool = option(
        True,
        Switch(),
        "LMI: run the formatters and the handler of model.py; without, the file is not even read.",
        key="option.enable_hooks",
    )
    hook_timeout_s: float = option(
        30.0,
        Number(0),
        "LMI: longest time one call of a formatter may take; the request is then answered 424.",
        unit="seconds",
    )
    handler: str = option(
        "handle",
        Text("FUNCTION"),
        "LMI: function of model.py that answers requests in place of generation, if there is one (see hooks.md).",
    )
    handler_threads: int = option(
        4,
        Integer(1, 1024),
        "LMI: calls of the handler that may run at the same time; 1 = one after the other, as in one worker of LMI.",
        unit="calls",
    )
    generation_config: str = option(
        "auto",
        Choice(("auto", "none", "all"), {"vllm": "none", "api": "none"}),
        "Whose clients get the sampling of the model's generation_config.json where they leave it out. auto: those of APIs "
        "whose documents fix no defaults (OpenAI, Anthropic, Responses, Ollama); all: those of LMI, OVMS and TGI, too.",
        open_to="load",
    )
    chat_format: str = option(
        "auto",
        Choice(("auto", "lmi", "openai")),
        "Shape of /v1/chat/completions. auto: LMI's where the server is configured as LMI's containers are (a "
        "serving.properties, or an OPTION_ or SERVING_ variable that LMI has) and for curl without a key; else OpenAI's.",
        open_to="load",
    )
    allow_token_ids: bool = option(
        False,
        Switch(),
        "Embeddings on /v1, /v3: take token ids, which must be the model's own, from every request; without, a request with "
        "token ids has to say allow_token_ids: true.",
        open_to="load",
    )
    max_stored_responses: int = option(
        1000,
        Integer(0, 1_000_000),
        "Responses: how many are kept to go on from, those used last; 0 keeps none.",
        unit="responses",
    )
    max_stored_responses_mb: int = option(
        256,
        Integer(1, 1_000_000),
        "Responses: the memory that those kept may take together.",
        unit="MiB",
    )
    stored_responses_max_age_s: float = option(
        3600.0,
        Number(1),
        "Responses: how long one is kept after its last use.",
        unit="seconds",
    )
    text_status_hold_ms: int = option(
        200,
        Integer(0, 60_000),
        "Text service: how long the head of a streamed answer waits for the outcome, to carry the exact status.",
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
        "Largest n, best_of and num_beams a client may ask for.",
        unit="sequences",
    )
    max_stop_strings: int = option(
        _LIMITS.max_stop_strings,
        Integer(1, 4096),
        "Most stop strings one request may have (16 on /v3, whatever this says).",
        unit="strings",
    )
    max_logprobs: int = option(
        _LIMITS.max_logprobs,
        Integer(0, 1_000_000),
        "Most log-probabilities per token a client may ask for; beyond some hundred they delay everybody.",
    )
    max_grammar_s: float = option(
        10.0,
        Number(maximum=86_400),
        "Most time of a processor that following the grammar of one request may take, for all of its tokens; beyond, the "
        "request fails. Compiling has a bound of its own. Engine rolling.",
        unit="seconds",
    )
    max_prompts: int = option(
        _LIMITS.max_prompts,
        Integer(1, 1024),
        "Most prompts of one call.",
        unit="prompts",
    )
    min_priority: int = option(
        _LIMITS.min_priority,
        Integer(-1_000_000, 0),
        "Smallest `priority` a request may have; the smallest is served first. 0: clients can only let others go before.",
    )


GROUPS: tuple[type, ...] = (
    ModelSettings,
    EngineSettings,
    SpeculationSettings,
    AdapterSettings,
    PictureSettings,
    ReasoningSettings,
    UpstreamSettings,
    ServerSettings,
    ClientSettings,
)
"""The settings classes, in the order of help and docs; a class's docstring is its heading."""

OPTIONS: tuple[Option, ...] = tuple(
    Option(one.name, group, cast(Value, one.default), one.metadata["row"]) for group in GROUPS for one in fields(group)
)
"""Every option, in the order of help and docs."""
