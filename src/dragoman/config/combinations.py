"""Checks options together: one may imply another, exclude it, or have no effect with it. Called by `resolve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.config.kinds import Value
from dragoman.config.option import show
from dragoman.config.server_options import KEY_OPTIONS
from dragoman.engine.vllm.accelerators import has_gpu, has_vllm

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
class Chosen:
    """The value of every option, and the value's origin."""

    values: dict[str, Value]
    origins: dict[str, Origin]

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def path(self, name: str) -> Path | None:
        """The value of an option that is a path."""
        value = self.values[name]
        assert value is None or isinstance(value, Path)
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """The value of an option that is a list."""
        value = self.values[name]
        assert isinstance(value, tuple)
        return value

    def is_given(self, name: str) -> bool:
        return self.origins[name].is_given

    def imply(self, name: str, value: Value, why: str) -> None:
        self.values[name], self.origins[name] = value, Origin(f"implied by {why}")

    def cite(self, name: str) -> str:
        return cite(name, self.values[name], self.origins[name])


@dataclass(frozen=True, slots=True)
class _Idle:
    """Options without effect while `holds` is true of the values. `value`: only this one; None = any given one."""

    names: tuple[str, ...]
    holds: Callable[[Chosen], bool]
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
        lambda chosen: chosen["rolling_batch"] != "disable",
        "requests ask for a stream themselves; it acts with option.rolling_batch=disable only",
        value=True,
    ),
    _Idle(
        ("tgi_compat",),
        lambda chosen: chosen["rolling_batch"] == "disable",
        "dynamic batches (rolling_batch=disable, batch_size over 1) have no such shape",
        value=True,
    ),
    _Idle(
        ("num_assistant_tokens", "max_ngram_size", "speculative_max_batch"),
        lambda chosen: chosen["speculation"] == "off",
        "nobody guesses with option.speculation=off",
    ),
    _Idle(
        ("max_ngram_size",),
        lambda chosen: chosen["speculation"] == "draft",
        "with option.speculation=draft no text is searched",
    ),
    _Idle(
        ("speculation_across_keys",),
        lambda chosen: chosen["speculation"] not in ("auto", "suffix"),
        "only option.speculation=auto and suffix keep texts of other requests",
    ),
    _Idle(
        ("prefix_cache_per_key",),
        lambda chosen: chosen["prefix_cache"] == "off",
        "nothing is reused with option.prefix_cache=off",
    ),
    _Idle(
        ("prefix_store_gb",),
        lambda chosen: chosen["prefix_cache"] == "off",
        "nothing is kept with option.prefix_cache=off",
    ),
    _Idle(
        ("prefix_store_dir",),
        lambda chosen: chosen["prefix_store_gb"] is None,
        "nothing is kept there without option.prefix_store_gb",
    ),
    _Idle(
        ("max_loras", "max_lora_rank", "lora_store"),
        lambda chosen: not chosen["enable_lora"],
        "no adapters come while the server runs without option.enable_lora",
    ),
    _Idle(
        ("image_fetch_timeout_s",),
        lambda chosen: not chosen["allow_image_hosts"],
        "nothing is fetched without option.allow_image_hosts",
    ),
    _Idle(
        ("upstream", "upstream_model", "upstream_timeout", "hedge_after_ms"),
        lambda chosen: chosen["engine"] != "remote",
        "servers elsewhere are asked with option.engine=remote only",
    ),
    _Idle(
        ("ray_address", "ray_application"),
        lambda chosen: chosen["engine"] != "ray",
        "Ray is asked with option.engine=ray only",
    ),
    _Idle(
        _OF_ENGINES_HERE,
        lambda chosen: chosen["engine"] == "remote",
        "the servers behind option.engine=remote run the model",
    ),
    _Idle(
        _OF_REPLICAS,
        lambda chosen: chosen["engine"] == "ray",
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
        lambda chosen: chosen["engine"] == "vllm",
        "vLLM has settings of its own for this",
    ),
    _Idle(
        ("context_shift",),
        lambda chosen: chosen["engine"] in ("remote", "vllm"),
        "with that engine an answer ends where the context is full",
        value=True,
    ),
    _Idle(
        ("reasoning_budget_message", "reasoning_repetition_detection"),
        lambda chosen: chosen["engine"] in ("remote", "vllm"),
        "that engine ends reasoning by itself, or not at all",
    ),
    _Idle(
        ("open_scopes", "rate_limit_requests", "rate_limit_tokens"),
        lambda chosen: not any(chosen[name] for name in KEY_OPTIONS),
        "nobody has a key without api_key_file, DRAGOMAN_API_KEY or aws_credentials",
    ),
    _Idle(
        ("store_gb", "store_gb_per_key", "store_max_age_days"),
        lambda chosen: chosen["store_dir"] is None,
        "no files are kept without store_dir",
    ),
    _Idle(
        ("cors_allowed_methods", "cors_allowed_headers", "cors_allow_credentials"),
        lambda chosen: not chosen["cors_allowed_origin"],
        "no page of another origin reads answers without cors_allowed_origin",
    ),
    _Idle(
        ("entry_point", "handler", "handler_threads", "hook_timeout_s"),
        lambda chosen: not chosen["hooks"],
        "option.enable_hooks=false keeps the file from being read",
    ),
)


def without_effect(chosen: Chosen, *, has_operator_file: bool) -> Iterator[str]:
    for rule in _IDLE:
        if rule.holds(chosen):
            yield from _lines(chosen, rule.names, rule.why, rule.value)
    if chosen["hooks"] and not has_operator_file:
        yield from _lines(chosen, ("handler_threads", "hook_timeout_s"), "no model.py lies beside the model")


def _lines(chosen: Chosen, names: tuple[str, ...], why: str, value: Value = None) -> Iterator[str]:
    for name in names:
        if chosen.is_given(name) and value in (None, chosen[name]):
            yield f"{chosen.cite(name)}: no effect here; {why}"


def imply_engine(chosen: Chosen) -> None:
    """Choose vLLM if LMI's name for it was given, no other engine was chosen, and this machine has vLLM and a GPU."""
    if chosen.is_given("engine") or chosen["rolling_batch"] not in ("vllm", "lmi-dist"):
        return
    if has_gpu() and has_vllm():
        chosen.imply("engine", "vllm", f"{chosen.cite('rolling_batch')}, with a GPU")


def imply(chosen: Chosen) -> Iterator[str]:
    """Set implied values; returns a line for each overridden one.

    Callers' prompts are separate if there are keys. As in LMI, a batch size over 1 ends rolling batches.
    """
    key_option = next((name for name in KEY_OPTIONS if chosen[name]), None)
    if key_option is not None and chosen["prefix_cache_per_key"] is None:
        chosen.imply("prefix_cache_per_key", True, key_option)
    if chosen["batch_size"] == 1 or chosen["rolling_batch"] == "disable":
        return
    where = chosen.cite("batch_size")
    if chosen.is_given("rolling_batch"):
        yield f"{chosen.cite('rolling_batch')}: no effect here; {where} means disable"
    chosen.imply("rolling_batch", "disable", where)


def contradictions(chosen: Chosen) -> Iterator[str]:
    """One line for each two options that exclude each other."""

    def excluded(name: str, other: str, why: str) -> str:
        return f"{chosen.cite(name)}: must not be given together with {chosen.cite(other)}; {why}"

    engine = str(chosen["engine"])
    if chosen["draft_model"] is not None and chosen["speculation"] not in ("auto", "draft"):
        yield excluded("draft_model", "speculation", "allowed: auto, draft")
    if chosen["draft_model"] is None and chosen["speculation"] == "draft":
        yield f"{chosen.cite('speculation')}: must not be given without draft_model, which names the model that guesses"
    for name, why in _NO_ADAPTERS.get(engine, {}).items():
        if chosen[name]:
            yield excluded(name, "engine", why)
    if chosen["queue_timeout"] is not None and engine in ("remote", "vllm"):
        yield excluded("queue_timeout", "engine", "it does not tell when a request begins")
    if chosen["tokenize_content"] == "plain" and engine == "remote":
        yield excluded("tokenize_content", "engine", "give it to the servers that tokenise")
    if chosen["cors_allow_credentials"] and chosen["cors_allowed_origin"] == "*":
        yield excluded("cors_allow_credentials", "cors_allowed_origin", "name the origins that you trust")
    if chosen["merge_lora"] and len(chosen.words("lora")) != 1:
        yield f"{chosen.cite('merge_lora')}: must be given together with one adapter in option.lora"
    elif chosen["merge_lora"] and chosen["enable_lora"]:
        yield f"{chosen.cite('merge_lora')}: must not be given together with enable_lora; choose one of them"


def cite(name: str, value: Value, origin: Origin) -> str:
    return f"{origin.name or name}={show(value)} ({origin.source})"
