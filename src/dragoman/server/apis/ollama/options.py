"""`options` of a request: Ollama's names, defaults and ranges of what shapes the text.

Does: define them, make neutral parameters of them, name those that change nothing and say why.
Does not: read the rest of a body. Called by the dialects, on the event loop.
Sources: Ollama's Modelfile reference, "Valid Parameters and Values"; its API types, `Options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from dragoman.server.apis.openai_wire.fields import (
    BOUNDS,
    UINT32_MAX,
    check_number,
    check_word_lengths,
    shown,
    unknown_names,
)
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.bounds import Bounds
from dragoman.server.samplers import IDLE_REASONS, SAMPLER_BOUNDS, SamplerFields, further_sampling, idle_samplers
from dragoman.types import Grammar, Limits, SamplingParams

ValueT = TypeVar("ValueT")

WORDS = Profile(name="ollama")
"""How its bodies are read; errors are told in general words."""

_STARTED = "the model was loaded when the server started, as the operator chose"
_NO_MIROSTAT = "there is no Mirostat sampling here"

IGNORED_OPTIONS: Mapping[str, str] = {
    "num_ctx": "the context is as long as the server was started with",
    "num_keep": "the context is not shifted",
    "mirostat": _NO_MIROSTAT,
    "mirostat_tau": _NO_MIROSTAT,
    "mirostat_eta": _NO_MIROSTAT,
    "tfs_z": "there is no tail-free sampling here",
    "penalize_newline": "penalties hold for line ends as for other tokens",
    "draft_num_predict": "the server decides how tokens are guessed",
    **dict.fromkeys(
        (
            "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all",
            "vocab_only", "use_mmap", "use_mlock", "embedding_only",
        ),
        _STARTED,
    ),
}  # fmt: skip
"""Options that are known and have no effect, and why; they are named to the client."""

_OFF: Mapping[str, float] = {"mirostat": 0, "tfs_z": 1.0}  # at these values they ask for nothing

REASONS: Mapping[str, str] = {
    **{f"options.{name}": reason for name, reason in IGNORED_OPTIONS.items()},
    **{f"options.{name}": reason for name, reason in IDLE_REASONS.items()},
    "options.repeat_last_n": "penalties see the whole text; -1 means that, 0 turns them off",
}

OPTION_BOUNDS: Mapping[str, Bounds] = {
    "num_predict": Bounds(-2, UINT32_MAX),
    "temperature": Bounds(0.0, None),
    "top_k": Bounds(-1, UINT32_MAX),
    "top_p": Bounds(0.0, 1.0),
    "min_p": Bounds(0.0, 1.0),
    "typical_p": Bounds(0.0, 1.0, is_low_open=True),
    "repeat_penalty": Bounds(0.0, None, is_low_open=True),
    "repeat_last_n": Bounds(-1, UINT32_MAX),
    "presence_penalty": BOUNDS["presence_penalty"],
    "frequency_penalty": BOUNDS["frequency_penalty"],
    "seed": BOUNDS["seed"],
    **SAMPLER_BOUNDS,
}
"""Allowed ranges."""

TEMPERATURE, TOP_K, TOP_P = 0.8, 40, 0.9
"""What holds where neither the client nor the model's file says otherwise. Source: Modelfile reference."""


class OllamaOptions(SamplerFields, kw_only=True):
    """Everything in `options` that has an effect; None = not given."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


def check_options(options: OllamaOptions) -> None:
    """Raises: InvalidParameter for the first number that is out of its range."""
    for name, bounds in OPTION_BOUNDS.items():
        value = getattr(options, name)
        if value is not None:
            check_number(f"options.{name}", value, bounds, WORDS)


def max_tokens_of(options: OllamaOptions) -> int | None:
    """The most tokens to generate, None = as many as fit: -1 asks for no end, -2 to fill the context, which is one here."""
    wanted = options.num_predict
    return wanted if wanted is not None and wanted > 0 else None


def stop_strings(options: OllamaOptions, limits: Limits) -> tuple[str, ...]:
    """The texts that end an answer. Raises: InvalidParameter."""
    given = [] if options.stop is None else options.stop
    stop = (given,) if isinstance(given, str) else tuple(given)
    if len(stop) > limits.max_stop_strings:
        message = f"options.stop must have at most {limits.max_stop_strings} strings, got {len(stop)}"
        raise WORDS.fault("options.stop", "count", message)
    check_word_lengths("options.stop", stop, limits.max_word_chars, WORDS)
    if "" in stop:
        raise WORDS.fault("options.stop", "empty", f"options.stop must hold non-empty strings, got {shown(given)}")
    return stop


def sampling_params(
    options: OllamaOptions, model: Mapping[str, Any], logprobs: int | None, grammar: Grammar | None
) -> SamplingParams:
    """The neutral parameters; `model`: what its file says of those that are left out."""
    has_penalties = options.repeat_last_n != 0  # they look at no token then
    repeated = _or(options.repeat_penalty, model.get("repetition_penalty", 1.0))
    return SamplingParams(
        temperature=_or(options.temperature, model.get("temperature", TEMPERATURE)),
        top_k=max(0, _or(options.top_k, model.get("top_k", TOP_K))),
        top_p=max(_or(options.top_p, model.get("top_p", TOP_P)), 1e-9),  # the smallest nucleus has one token
        min_p=_or(options.min_p, model.get("min_p", 0.0)),
        typical_p=_or(options.typical_p, model.get("typical_p", 1.0)),
        repetition_penalty=repeated if has_penalties else 1.0,
        presence_penalty=_or(options.presence_penalty, 0.0) if has_penalties else 0.0,
        frequency_penalty=_or(options.frequency_penalty, 0.0) if has_penalties else 0.0,
        **further_sampling(options, "options."),
        seed=None if options.seed in (None, -1) else _or(options.seed, 0) % 2**64,
        logprobs=logprobs,
        grammar=grammar,
    )


def idle_options(raw: Mapping[str, Any], options: OllamaOptions, sampling: SamplingParams) -> list[str]:
    """Names in `options` as they were sent that change nothing, in order."""
    given = {name: value for name, value in raw.items() if value is not None}
    idle = set(unknown_names(given, OllamaOptions))
    idle -= {name for name, neutral in _OFF.items() if given.get(name) == neutral}
    if given.get("repeat_last_n") not in (-1, 0):
        idle.add("repeat_last_n")
    idle |= idle_samplers(sampling, options)
    return [f"options.{name}" for name in given if name in idle]


def _or(value: ValueT | None, default: ValueT) -> ValueT:
    return default if value is None else value
