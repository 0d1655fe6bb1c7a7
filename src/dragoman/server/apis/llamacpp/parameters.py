"""Parameters of `/completion` and `/infill`: names, defaults and ranges of llama.cpp's server.

Does: check them, make neutral parameters of them, tell the settings that an answer was made with, name those that change
nothing. Does not: read prompts. Called by the dialects, on the event loop.
Source: llama.cpp, tools/server/README.md, "POST /completion", and its server where the document is silent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import ModelProfile
from dragoman.server.apis.llamacpp.schema import LlamaSharedBody
from dragoman.server.apis.openai_wire.fields import check_count, check_number, check_word_lengths, read_stop, shown
from dragoman.server.apis.openai_wire.grammars import GrammarFault, read_gbnf, read_schema_or_object
from dragoman.server.apis.openai_wire.llamacpp_names import (
    NOT_LISTED,
    OF_SAMPLERS,
    ORDER,
    UNORDERED,
    WHOLE_TEXT,
    LlamaLora,
    applied_adapter,
    has_penalty,
    in_order,
    line_limits,
    read_samplers,
)
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.bounds import Bounds
from dragoman.server.parameters import UINT32_MAX, bounds_of
from dragoman.server.samplers import (
    FIELDS,
    IDLE_REASONS,
    SamplingFields,
    idle_samplers,
    sampling_fields,
    without_penalties,
)
from dragoman.types import Grammar, LineLimits, SamplingParams

WORDS = Profile(name="llamacpp")
"""How its bodies are read; errors are told in general words."""

INT32_MAX = 2**31 - 1
BANNED = -1e9  # a bias that no logit makes up for
DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What holds where neither the client nor the model's file says otherwise."""
REPEAT_LAST_N = 64

RANGES: Mapping[str, Bounds] = {
    "n_predict": Bounds(-1, INT32_MAX),
    "max_tokens": Bounds(-1, INT32_MAX),
    "max_completion_tokens": Bounds(-1, INT32_MAX),
    "n_indent": Bounds(0, INT32_MAX),
    "t_max_predict_ms": Bounds(-1, UINT32_MAX),
    **bounds_of(*SamplingFields.__struct_fields__, repeat_penalty="repetition_penalty"),
    "temperature": Bounds(),
    "repeat_last_n": Bounds(-1, INT32_MAX),
}
"""Allowed ranges, but for the operator's."""

_NO_SHIFT = "the context is not shifted"
_NO_MIROSTAT = "there is no Mirostat sampling here"
_NO_ADAPTIVE = "there is no adaptive sampling here"
_NO_DYNAMIC = "the temperature does not change"
_NO_SLOTS = "there are no slots: a request runs where there is room, and finds its cached prompt from everywhere"

NEUTRAL: Mapping[str, tuple[object, str]] = {
    "id_slot": (-1, _NO_SLOTS),
    "n_keep": (0, _NO_SHIFT),
    "n_discard": (0, _NO_SHIFT),
    "n_cache_reuse": (0, "cached prompts are found by their beginning only"),
    "t_max_prompt_ms": (0, "prompts are computed to their end"),
    "dynatemp_range": (0.0, _NO_DYNAMIC),
    "dynatemp_exponent": (1.0, _NO_DYNAMIC),
    "mirostat": (0, _NO_MIROSTAT),
    "mirostat_tau": (5.0, _NO_MIROSTAT),
    "mirostat_eta": (0.1, _NO_MIROSTAT),
    "adaptive_target": (-1.0, _NO_ADAPTIVE),
    "adaptive_decay": (0.9, _NO_ADAPTIVE),
    "min_keep": (0, "filters keep at least the most likely token"),
    "backend_sampling": (False, "there is one way to sample"),
    "sse_ping_interval": (-1, "the operator decides when silent streams are kept alive"),
    "verbose": (False, "answers have no further details"),
    "grammar_triggers": ([], "they are of lazy grammars"),
    "preserved_tokens": ([], "no token is split"),
}
"""Parameters that are known and have no effect: at which value they ask for nothing, and why they do nothing."""

REASONS: Mapping[str, str] = {
    **{name: reason for name, (_, reason) in NEUTRAL.items()},
    "return_progress": "the answer is not streamed, or the engine does not tell how far it is",
    "repeat_last_n": WHOLE_TEXT,
    "samplers": UNORDERED,
    "post_sampling_probs": "n_probs is 0",
    **IDLE_REASONS,
}


class Parameters(NamedTuple):
    """The parameters of a body, in neutral words. `ignored`: names without effect, in the body's order;
    `reasons`: why some of them do nothing.

    `max_tokens` None = as many as fit. `settings`: as in the answer, without the seed. `adapter`: as in requests.
    """

    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    biased_texts: Mapping[str, float]
    lines: LineLimits | None
    adapter: str | None
    settings: dict[str, Any]
    ignored: tuple[str, ...]
    reasons: Mapping[str, str]


class _Bias(NamedTuple):
    token_ids: dict[int, float]
    texts: dict[str, float]


def read_parameters(
    raw: Mapping[str, Any], body: LlamaSharedBody, profile: ModelProfile, default_adapter: str | None
) -> Parameters:
    """The parameters of a body that is typed; `default_adapter` where it names none. Raises: InvalidRequest."""
    for name, bounds in RANGES.items():
        if (value := getattr(body, name)) is not None:
            check_number(name, value, bounds, WORDS)
    samplers = tuple(name for name in read_samplers(body.samplers, WORDS) if name not in profile.lacks)
    bias = _logit_bias(body, profile)
    sampling = _sampling(body, profile, frozenset(samplers), bias.token_ids)
    max_tokens = max_tokens_of(body)
    stop = _stop_strings(body, profile)
    not_listed = {name for sampler in ORDER if sampler not in samplers for name in OF_SAMPLERS[sampler] if name in raw}
    idle = not_listed if not body.return_progress or tells_progress(body, profile) else {*not_listed, "return_progress"}
    ignored = _without_effect(raw, body, sampling, samplers, idle)
    known = {**REASONS, **dict.fromkeys(not_listed, NOT_LISTED)}
    return Parameters(
        sampling=sampling,
        max_tokens=max_tokens,
        stop=stop,
        biased_texts=bias.texts,
        lines=line_limits(body.n_indent, body.t_max_predict_ms),
        adapter=_adapter(body.lora, profile, default_adapter),
        settings=_settings(body, sampling, samplers, profile, max_tokens, stop, bias),
        ignored=tuple(ignored),
        reasons={name: known[name] for name in ignored if name in known},
    )


def tells_progress(body: LlamaSharedBody, profile: ModelProfile) -> bool:
    """True if the stream is asked to report progress on prompts, and can."""
    return bool(body.stream and body.return_progress and profile.tells_progress)


def default_settings(profile: ModelProfile) -> dict[str, Any]:
    """The settings of a call that says nothing."""
    return read_parameters({}, LlamaSharedBody(), profile, None).settings | {"seed": UINT32_MAX}


# --- sampling ---------------------------------------------------------------------------------------------------------


def _sampling(
    body: LlamaSharedBody, profile: ModelProfile, on: frozenset[str], logit_bias: dict[int, float]
) -> SamplingParams:
    found = sampling_fields(body, profile.generation_defaults, DEFAULTS, repetition="repeat_penalty")
    found["temperature"] = max(found["temperature"], 0.0)
    if "penalties" not in on or body.repeat_last_n == 0:  # they look at no token then
        found = without_penalties(found)
    off = {name for sampler in ORDER if sampler not in on for name in OF_SAMPLERS[sampler]}
    return SamplingParams(
        **{name: value for name, value in found.items() if name not in off},
        seed=None if body.seed is None or body.seed in (-1, UINT32_MAX) else body.seed % 2**64,
        n=_num_answers(body, profile),
        ignore_eos=bool(body.ignore_eos),
        infill="infill" in on,
        logit_bias=logit_bias,
        logprobs=_num_probs(body, profile),
        post_sampling_probs=bool(body.post_sampling_probs and _num_probs(body, profile)),
        grammar=_grammar(body),
    )


def _num_answers(body: LlamaSharedBody, profile: ModelProfile) -> int:
    name, value = ("n", body.n) if body.n_cmpl is None else ("n_cmpl", body.n_cmpl)
    if value is None:
        return 1
    check_number(name, value, Bounds(1, profile.limits.max_best_of), WORDS)
    return value


def _num_probs(body: LlamaSharedBody, profile: ModelProfile) -> int | None:
    name, value = ("logprobs", body.logprobs) if body.n_probs is None else ("n_probs", body.n_probs)
    if value is None:
        return None
    check_number(name, value, Bounds(0, profile.limits.max_logprobs), WORDS)
    return value or None


def _grammar(body: LlamaSharedBody) -> Grammar | None:
    """The grammar that the answer must match. Raises: InvalidRequest."""
    if body.grammar and body.json_schema is not None:
        message = "json_schema cannot be used together with grammar: give one of them"
        raise WORDS.fault("json_schema", "conflict", message)
    try:
        if body.grammar:
            return read_gbnf("grammar", body.grammar)
        return None if body.json_schema is None else read_schema_or_object("json_schema", body.json_schema)
    except GrammarFault as fault:
        raise WORDS.fault(fault.param, fault.problem, f"{fault.param} {fault}") from None


def _logit_bias(body: LlamaSharedBody, profile: ModelProfile) -> _Bias:
    """The biases of token ids and of texts. Raises: InvalidParameter."""
    given, bias = body.logit_bias or [], _Bias({}, {})
    check_count("logit_bias", len(given), profile.limits.max_token_ids, WORDS)
    entries: Sequence[Sequence[Any]] = list(given.items()) if isinstance(given, dict) else given
    for position, entry in enumerate(entries):
        if len(entry) != 2:
            place = f"logit_bias[{position}]"
            raise WORDS.fault(place, "type", f"{place} must be a token id or text and its bias, got {shown(entry)}")
        key, value = entry
        place = f"logit_bias[{key if isinstance(given, dict) else position}]"
        if value is True or isinstance(value, str) or not math.isfinite(value):
            raise WORDS.fault(place, "type", f"{place} must be a number, or false for never, got {shown(value)}")
        number = BANNED if value is False else float(value)
        if isinstance(given, dict) and isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10:
            key = int(key)
        if isinstance(key, str):
            check_word_lengths("logit_bias", [key], profile.limits.max_word_chars, WORDS)
            bias.texts[key] = number
        elif isinstance(key, int) and not isinstance(key, bool):
            bias.token_ids[key] = number
        else:
            raise WORDS.fault(place, "type", f"{place} must begin with a token id or a text, got {shown(key)}")
    return bias


# --- the rest ---------------------------------------------------------------------------------------------------------


def max_tokens_of(body: LlamaSharedBody) -> int | None:
    """The most tokens to generate, None = as many as fit."""
    given = (body.n_predict, body.max_completion_tokens, body.max_tokens)
    value = next((one for one in given if one is not None), -1)
    return None if value < 0 else value


def _stop_strings(body: LlamaSharedBody, profile: ModelProfile) -> tuple[str, ...]:
    """The texts that end an answer; empty ones end none. Raises: InvalidParameter."""
    given = [body.stop] if isinstance(body.stop, str) else body.stop or []
    stop = [text for text in given if text]
    return read_stop("stop", stop, profile.limits.max_stop_strings, profile.limits.max_word_chars, WORDS)


def _adapter(lora: list[LlamaLora] | None, profile: ModelProfile, default: str | None) -> str | None:
    """The adapter that is applied, "" = none. Raises: InvalidRequest."""
    return default if lora is None else applied_adapter("lora", lora, tuple(profile.adapter_names()), WORDS)


def refuse_lazy(raw: Mapping[str, Any]) -> None:
    """Raises: UnsupportedFeature for a grammar that is to begin later."""
    if raw.get("grammar_lazy"):
        raise UnsupportedFeature(
            "grammar_lazy is not supported: a grammar holds from the first token on", param="grammar_lazy"
        )


def _settings(
    body: LlamaSharedBody,
    sampling: SamplingParams,
    samplers: tuple[str, ...],
    profile: ModelProfile,
    max_tokens: int | None,
    stop: tuple[str, ...],
    bias: _Bias,
) -> dict[str, Any]:
    """The settings that an answer reports, in llama.cpp's words."""
    biases = [{"token": key, "bias": None if one == BANNED else one} for key, one in bias.token_ids.items()]
    if sampling.ignore_eos:
        biases += [{"token": token_id, "bias": None} for token_id in sorted(profile.end_token_ids)]
    num_tokens = -1 if max_tokens is None else max_tokens
    grammar = sampling.grammar
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_last_n": 0 if body.repeat_last_n == 0 else -1,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **{name: getattr(sampling, name) for name in FIELDS},
        **{name: value for name, (value, _) in NEUTRAL.items() if name in _SHOWN},
        "stop": list(stop),
        "max_tokens": num_tokens,
        "n_predict": num_tokens,
        "ignore_eos": sampling.ignore_eos,
        "stream": bool(body.stream),
        "logit_bias": biases,
        "n_probs": sampling.logprobs or 0,
        "post_sampling_probs": sampling.post_sampling_probs,
        "grammar": grammar.source if grammar is not None and grammar.kind == "lark" else "",
        "samplers": [name for name in ORDER if name in samplers],
        "timings_per_token": bool(body.timings_per_token),
        "lora": [{"id": one.id, "scale": one.scale} for one in body.lora or ()],
    }


_SHOWN = frozenset((
    "dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay",
    "n_keep", "n_discard", "min_keep",
))  # fmt: skip
"""Parameters without effect that settings tell all the same, at the values at which they ask for nothing."""


def _without_effect(
    raw: Mapping[str, Any],
    body: LlamaSharedBody,
    sampling: SamplingParams,
    samplers: tuple[str, ...],
    others: Collection[str],
) -> list[str]:
    """Names in the body that change nothing, `others` among them, in its order."""
    idle = {name for name in raw if name not in body.__struct_fields__}
    idle -= {name for name, (value, _) in NEUTRAL.items() if raw.get(name) == value}
    idle -= {"grammar_lazy", "stream_options"} if not raw.get("grammar_lazy") else {"stream_options"}
    if body.repeat_last_n not in (None, -1, 0) and has_penalty(sampling):
        idle.add("repeat_last_n")
    if body.samplers is not None and read_samplers(body.samplers, WORDS) != in_order(samplers):
        idle.add("samplers")
    if body.post_sampling_probs and not sampling.logprobs:
        idle.add("post_sampling_probs")
    idle |= idle_samplers(sampling, body) | set(others)
    return [name for name in raw if name in idle]
