"""Checks options together: one may imply another, exclude it, or have no effect with it. Called by `resolve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dragoman.config.kinds import Value
from dragoman.config.option import show
from dragoman.config.server_options import KEY_OPTIONS
from dragoman.engine.vllm.accelerators import has_gpu, has_vllm

Values = Mapping[str, Value]

_OF_UPSTREAMS = "adapters are those that the servers behind it list"
_NO_ADAPTERS: Mapping[str, Mapping[str, str]] = {
    "remote": dict.fromkeys(("lora", "merge_lora", "enable_lora"), _OF_UPSTREAMS),
    "vllm": {"merge_lora": "vLLM reads the weights by itself"},
}
"""Engine -> option about adapters that it refuses -> why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value; `name` is the name written there, "" for defaults and derived values."""

    source: str
    name: str = ""

    @property
    def is_given(self) -> bool:
        return bool(self.name)


Origins = Mapping[str, Origin]


@dataclass(frozen=True, slots=True)
class _Idle:
    """Options without effect while `holds` is true of the values. `value`: only this one; None = any given one."""

    names: tuple[str, ...]
    holds: Callable[[Values], bool]
    why: str
    value: Value = None


_OF_ENGINES_HERE = (
    "dtype", "kv_dtype", "kernels", "kv_cache_gb", "threads", "max_batch_tokens", "max_step_slowdown",
    "prefix_cache", "prefix_store_gb", "prefix_store_dir",
    "speculation", "speculation_across_keys", "draft_model", "num_assistant_tokens", "max_ngram_size",
    "speculative_max_batch",
    "limit_mm_per_prompt", "mm_processor_kwargs", "allow_image_hosts", "image_fetch_timeout_s",
    "max_image_mb", "max_image_pixels", "step_log", "max_grammar_s",
)  # fmt: skip
_OF_PICTURES = (
    "limit_mm_per_prompt", "allow_image_hosts", "image_fetch_timeout_s", "max_image_mb", "max_image_pixels",
)  # fmt: skip
_OF_REPLICAS = (*(name for name in _OF_ENGINES_HERE if name not in _OF_PICTURES), "max_model_len", "max_logprobs")

_IDLE = (
    _Idle(
        ("enable_streaming",),
        lambda values: values["rolling_batch"] != "disable",
        "requests ask for a stream themselves; it acts with option.rolling_batch=disable only",
        value=True,
    ),
    _Idle(
        ("tgi_compat",),
        lambda values: values["rolling_batch"] == "disable",
        "dynamic batches (rolling_batch=disable, batch_size over 1) have no such shape",
        value=True,
    ),
    _Idle(
        ("num_assistant_tokens", "max_ngram_size", "speculative_max_batch"),
        lambda values: values["speculation"] == "off",
        "nobody guesses with option.speculation=off",
    ),
    _Idle(
        ("max_ngram_size",),
        lambda values: values["speculation"] == "draft",
        "with option.speculation=draft no text is searched",
    ),
    _Idle(
        ("speculation_across_keys",),
        lambda values: values["speculation"] not in ("auto", "suffix"),
        "only option.speculation=auto and suffix keep texts of other requests",
    ),
    _Idle(
        ("prefix_cache_per_key",),
        lambda values: values["prefix_cache"] == "off",
        "nothing is reused with option.prefix_cache=off",
    ),
    _Idle(
        ("prefix_store_gb",),
        lambda values: values["prefix_cache"] == "off",
        "nothing is kept with option.prefix_cache=off",
    ),
    _Idle(
        ("prefix_store_dir",),
        lambda values: values["prefix_store_gb"] is None,
        "nothing is kept there without option.prefix_store_gb",
    ),
    _Idle(
        ("max_loras", "max_lora_rank", "lora_store"),
        lambda values: not values["enable_lora"],
        "no adapters come while the server runs without option.enable_lora",
    ),
    _Idle(
        ("image_fetch_timeout_s",),
        lambda values: not values["allow_image_hosts"],
        "nothing is fetched without option.allow_image_hosts",
    ),
    _Idle(
        ("upstream", "upstream_model", "upstream_timeout", "hedge_after_ms"),
        lambda values: values["engine"] != "remote",
        "servers elsewhere are asked with option.engine=remote only",
    ),
    _Idle(
        ("ray_address", "ray_application"),
        lambda values: values["engine"] != "ray",
        "Ray is asked with option.engine=ray only",
    ),
    _Idle(
        _OF_ENGINES_HERE,
        lambda values: values["engine"] == "remote",
        "the servers behind option.engine=remote run the model",
    ),
    _Idle(
        _OF_REPLICAS,
        lambda values: values["engine"] == "ray",
        "the replicas behind option.engine=ray have options of their own",
    ),
    _Idle(
        (
            "threads",
            "cache_dir",
            "cache_max_gb",
            "max_step_slowdown",
            "step_log",
            "prefix_store_gb",
            "prefix_store_dir",
            "speculation_across_keys",
            "max_grammar_s",
        ),
        lambda values: values["engine"] == "vllm",
        "vLLM has settings of its own for this",
    ),
    _Idle(
        ("context_shift",),
        lambda values: values["engine"] in ("remote", "vllm"),
        "with that engine an answer ends where the context is full",
        value=True,
    ),
    _Idle(
        ("reasoning_budget_message", "reasoning_repetition_detection"),
        lambda values: values["engine"] in ("remote", "vllm"),
        "that engine ends reasoning by itself, or not at all",
    ),
    _Idle(
        ("open_scopes", "rate_limit_requests", "rate_limit_tokens"),
        lambda values: not any(values[name] for name in KEY_OPTIONS),
        "nobody has a key without api_key_file, DRAGOMAN_API_KEY or aws_credentials",
    ),
    _Idle(
        ("store_gb", "store_gb_per_key", "store_max_age_days"),
        lambda values: values["store_dir"] is None,
        "no files are kept without store_dir",
    ),
    _Idle(
        ("cors_allowed_methods", "cors_allowed_headers", "cors_allow_credentials"),
        lambda values: not values["cors_allowed_origin"],
        "no page of another origin reads answers without cors_allowed_origin",
    ),
    _Idle(
        ("entry_point", "handler", "handler_threads", "hook_timeout_s"),
        lambda values: not values["hooks"],
        "option.enable_hooks=false keeps the file from being read",
    ),
)


def without_effect(values: Values, origins: Origins, *, has_operator_file: bool) -> Iterator[str]:
    for rule in _IDLE:
        if rule.holds(values):
            yield from _lines(rule.names, rule.value, rule.why, values, origins)
    if values["hooks"] and not has_operator_file:
        yield from _lines(
            ("handler_threads", "hook_timeout_s"), None, "no model.py lies beside the model", values, origins
        )


def _lines(names: tuple[str, ...], value: Value, why: str, values: Values, origins: Origins) -> Iterator[str]:
    for name in names:
        if origins[name].is_given and value in (None, values[name]):
            yield f"{cite(name, values, origins)}: no effect here; {why}"


def imply_engine(values: dict[str, Value], origins: dict[str, Origin]) -> None:
    """Choose vLLM if LMI's name for it was given, no other engine was chosen, and this machine has vLLM and a GPU."""
    if origins["engine"].is_given or values["rolling_batch"] not in ("vllm", "lmi-dist"):
        return
    if has_gpu() and has_vllm():
        values["engine"] = "vllm"
        origins["engine"] = Origin(f"implied by {cite('rolling_batch', values, origins)}, with a GPU")


def _imply_partition(values: dict[str, Value], origins: dict[str, Origin]) -> None:
    """Separate callers' prompts if there are keys and no other choice was made."""
    named = next((name for name in KEY_OPTIONS if values[name]), None)
    if named is not None and values["prefix_cache_per_key"] is None:
        values["prefix_cache_per_key"], origins["prefix_cache_per_key"] = True, Origin(f"implied by {named}")


def imply(values: dict[str, Value], origins: dict[str, Origin]) -> Iterator[str]:
    """Set implied values; returns a line for each overridden one. As in LMI, a batch size over 1 ends rolling batches."""
    _imply_partition(values, origins)
    if values["batch_size"] == 1 or values["rolling_batch"] == "disable":
        return
    where = cite("batch_size", values, origins)
    if origins["rolling_batch"].is_given:
        yield f"{cite('rolling_batch', values, origins)}: no effect here; {where} means disable"
    values["rolling_batch"] = "disable"
    origins["rolling_batch"] = Origin(f"implied by {where}")


def contradictions(values: Values, origins: Origins) -> Iterator[str]:
    """One line for each two options that exclude each other."""

    def excluded(name: str, other: str, why: str) -> str:
        cited, cited_other = (cite(one, values, origins) for one in (name, other))
        return f"{cited}: must not be given together with {cited_other}; {why}"

    engine = str(values["engine"])
    if values["draft_model"] is not None and values["speculation"] not in ("auto", "draft"):
        yield excluded("draft_model", "speculation", "allowed: auto, draft")
    if values["draft_model"] is None and values["speculation"] == "draft":
        speculation = cite("speculation", values, origins)
        yield f"{speculation}: must not be given without draft_model, which names the model that guesses"
    for name, why in _NO_ADAPTERS.get(engine, {}).items():
        if values[name]:
            yield excluded(name, "engine", why)
    if values["queue_timeout"] is not None and engine in ("remote", "vllm"):
        yield excluded("queue_timeout", "engine", "it does not tell when a request begins")
    if values["tokenize_content"] == "plain" and engine == "remote":
        yield excluded("tokenize_content", "engine", "give it to the servers that tokenise")
    if values["cors_allow_credentials"] and values["cors_allowed_origin"] == "*":
        yield excluded("cors_allow_credentials", "cors_allowed_origin", "name the origins that you trust")
    adapters = values["lora"]
    if values["merge_lora"] and not (isinstance(adapters, tuple) and len(adapters) == 1):
        yield f"{cite('merge_lora', values, origins)}: must be given together with one adapter in option.lora"
    elif values["merge_lora"] and values["enable_lora"]:
        yield f"{cite('merge_lora', values, origins)}: must not be given together with enable_lora; choose one of them"


def cite(name: str, values: Values, origins: Origins) -> str:
    origin = origins[name]
    return f"{origin.name or name}={show(values[name])} ({origin.source})"
