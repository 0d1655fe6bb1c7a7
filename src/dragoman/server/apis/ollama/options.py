"""`options` of a request: Ollama's names, defaults and ranges of what shapes the text.

Does: define them, make neutral parameters of them, name those that change nothing and say why.
Does not: read the rest of a body. Called by the dialects, on the event loop.
Sources: Ollama's Modelfile reference, "Valid Parameters and Values"; its API types, `Options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.apis.openai_wire.fields import check_number, read_stop, unknown_names
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.bounds import Bounds
from dragoman.server.parameters import UINT32_MAX, bounds_of
from dragoman.server.samplers import (
    IDLE_REASONS,
    SamplingFields,
    idle_samplers,
    sampling_fields,
    without_penalties,
)
from dragoman.types import Grammar, Limits, SamplingParams

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
    **bounds_of(*SamplingFields.__struct_fields__, repeat_penalty="repetition_penalty"),
    "num_predict": Bounds(-2, UINT32_MAX),
    "repeat_last_n": Bounds(-1, UINT32_MAX),
}
"""Allowed ranges."""

DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""What holds where neither the client nor the model's file says otherwise. Source: Modelfile reference."""


class OllamaOptions(SamplingFields, kw_only=True):
    """Everything in `options` that has an effect; None = not given."""

    num_predict: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None


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
    return read_stop("options.stop", options.stop, limits.max_stop_strings, limits.max_word_chars, WORDS)


def sampling_params(
    options: OllamaOptions, model: Mapping[str, Any], logprobs: int | None, grammar: Grammar | None
) -> SamplingParams:
    """The neutral parameters; `model`: what its file says of those that are left out."""
    found = sampling_fields(options, model, DEFAULTS, "options.", repetition="repeat_penalty")
    if options.repeat_last_n == 0:  # penalties look at no token then
        found = without_penalties(found)
    seed = None if options.seed is None or options.seed == -1 else options.seed % 2**64
    return SamplingParams(**found, seed=seed, logprobs=logprobs, grammar=grammar)


def idle_options(raw: Mapping[str, Any], options: OllamaOptions, sampling: SamplingParams) -> list[str]:
    """Names in `options` as they were sent that change nothing, in order."""
    given = {name: value for name, value in raw.items() if value is not None}
    idle = set(unknown_names(given, OllamaOptions))
    idle -= {name for name, neutral in _OFF.items() if given.get(name) == neutral}
    if given.get("repeat_last_n") not in (-1, 0):
        idle.add("repeat_last_n")
    idle |= idle_samplers(sampling, options)
    return [f"options.{name}" for name in given if name in idle]
