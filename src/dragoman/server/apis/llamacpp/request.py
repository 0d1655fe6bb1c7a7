"""The bodies of `/completion` and `/infill`, how their parameters are read, the settings that answers report, and errors.

On the event loop. Source: llama.cpp, tools/server/README.md, "POST /completion" and "API errors".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import CapacityError, ServerError, UnsupportedFeature
from dragoman.parameters import FURTHER, UINT32_MAX, Bounds, SamplingFields
from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.common import Reading
from dragoman.server.apis.openai_wire.fields import (
    check_bounds,
    check_count,
    check_number,
    check_word_lengths,
    is_token_id,
    shown,
)
from dragoman.server.apis.openai_wire.llamacpp_names import NO_MIROSTAT, LlamaLora, in_order, read_samplers
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.sampling import (
    NO_PROGRESS,
    logprob_bounds,
    shared_body,
    shared_request,
    without_effect,
)
from dragoman.server.descriptions import json_teller, statuses
from dragoman.types import GenerationRequest, TokenPrompt

# --- bodies -----------------------------------------------------------------------------------------------------------


class LlamaFile(msgspec.Struct):
    """A piece of other code."""

    text: str
    filename: str = "tmp"


class LlamaSharedBody(SamplingFields, kw_only=True):
    """Fields that `/completion` and `/infill` share and that have an effect; None = not given."""

    model: str | None = None
    stream: bool | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_cmpl: int | None = None
    n: int | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    response_fields: list[str] | None = None
    samplers: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    ignore_eos: bool | None = None
    logit_bias: list[list[int | float | str | bool]] | dict[str, float | bool] | None = None
    n_probs: int | None = None
    post_sampling_probs: bool | None = None
    logprobs: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    lora: list[LlamaLora] | None = None


class LlamaCompletionBody(LlamaSharedBody, kw_only=True):
    """The body of POST /completion; `prompt` may be many things."""

    prompt: Any = None


class LlamaInfillBody(LlamaSharedBody, kw_only=True):
    """The body of POST /infill."""

    input_prefix: str
    input_suffix: str
    input_extra: list[LlamaFile] | None = None
    prompt: str | None = None


# --- errors -----------------------------------------------------------------------------------------------------------

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "not_supported_error",
    "unavailable_error",
    "exceed_context_size_error",
    "server_error",
]


class LlamaErrorDetails(msgspec.Struct):
    """An error. `n_prompt_tokens`, `n_ctx`: of a prompt that is too long."""

    code: int
    message: str
    type: ErrorType
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class LlamaError(msgspec.Struct):
    """The body of an error."""

    error: LlamaErrorDetails


STATUSES = statuses(unsupported=501, overloaded=503)
_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "unavailable_error",
    501: "not_supported_error",
    503: "unavailable_error",
    507: "unavailable_error",
}


def error_body(error: ServerError) -> LlamaError:
    status = STATUSES[error.kind]
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    details = LlamaErrorDetails(
        status, error.message, "exceed_context_size_error" if error.kind == "capacity" else kind
    )
    if isinstance(error, CapacityError) and error.num_prompt_tokens is not None and error.max_model_len is not None:
        # Clients look for these words, and shorten the prompt.
        details.message = (
            f"the request ({error.num_prompt_tokens} tokens) exceeds the available context size "
            f"({error.max_model_len} tokens): shorten the prompt"
        )
        details.n_prompt_tokens, details.n_ctx = error.num_prompt_tokens, error.max_model_len
    return LlamaError(details)


ERRORS = json_teller(STATUSES, LlamaError, lambda error, http: error_body(error))

# --- parameters -------------------------------------------------------------------------------------------------------

INT32_MAX = 2**31 - 1
BANNED = -1e9  # a bias that no logit makes up for

_NO_ADAPTIVE = "there is no adaptive sampling here"
_NO_DYNAMIC = "the temperature does not change"
_NO_SLOTS = "there are no slots: a request runs where there is room, and finds its cached prompt from everywhere"

NEUTRAL: Mapping[str, tuple[object, str]] = {
    "id_slot": (-1, _NO_SLOTS),
    "n_cache_reuse": (0, "cached prompts are found by their beginning only"),
    "t_max_prompt_ms": (0, "prompts are computed to their end"),
    "dynatemp_range": (0.0, _NO_DYNAMIC),
    "dynatemp_exponent": (1.0, _NO_DYNAMIC),
    "mirostat": (0, NO_MIROSTAT),
    "mirostat_tau": (5.0, NO_MIROSTAT),
    "mirostat_eta": (0.1, NO_MIROSTAT),
    "adaptive_target": (-1.0, _NO_ADAPTIVE),
    "adaptive_decay": (0.9, _NO_ADAPTIVE),
    "min_keep": (0, "filters keep at least the most likely token"),
    "backend_sampling": (False, "there is one way to sample"),
    "sse_ping_interval": (-1, "the operator decides when silent streams are kept alive"),
    "verbose": (False, "answers have no further details"),
    "grammar_triggers": ([], "they are of lazy grammars"),
    "preserved_tokens": ([], "no token is split"),
}
"""Parameters without effect: the values at which they ask for nothing, and the reasons."""

WORDS = Profile(
    name="llamacpp",
    bounds={
        **dict.fromkeys(("n_predict", "max_tokens", "max_completion_tokens", "repeat_last_n"), Bounds(-1, INT32_MAX)),
        **dict.fromkeys(("n_indent", "n_discard"), Bounds(0, INT32_MAX)),
        "n_keep": Bounds(-1, INT32_MAX),
        "temperature": Bounds(),
    },
    clips_overflow=True,
    defaults={"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    random_seeds=frozenset({-1, UINT32_MAX}),
    ignored={name: reason for name, (_, reason) in NEUTRAL.items()} | {"post_sampling_probs": "n_probs is 0"},
    asks_nothing={name: value for name, (value, _) in NEUTRAL.items()} | {"grammar_lazy": False},
)


class Parameters(NamedTuple):
    """A request without its prompt, in neutral words. `settings`: as in the answer, without the seed.

    `idle`: fields without effect, and why.
    """

    request: GenerationRequest
    settings: dict[str, Any]
    idle: dict[str, str]


class _Bias(NamedTuple):
    token_ids: dict[int, float]
    texts: dict[str, float]


def read_parameters(
    raw: Mapping[str, Any],
    body: LlamaSharedBody,
    profile: ModelProfile,
    reading: Reading,
    default_adapter: str | None,
    request_id: str = "",
) -> Parameters:
    """`default_adapter`: where the body names none. Raises: InvalidRequest."""
    if raw.get("grammar_lazy"):
        why = "grammar_lazy is not supported: a grammar holds from the first token on"
        raise UnsupportedFeature(why, param="grammar_lazy")
    check_bounds(raw, body, WORDS)
    bias = _logit_bias(body, profile)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    shared = shared_body(
        body,
        model=body.model if body.model in profile.adapter_names() else None,
        temperature=None if body.temperature is None else max(body.temperature, 0.0),
        max_tokens=max_tokens_of(body),
        logit_bias=None,
        stop=[text for text in stop if text],  # empty ones end none
    )
    prompt, logprobs = TokenPrompt(()), _num_probs(body, reading)
    request = shared_request(shared, reading, request_id=request_id, prompt=prompt, logprobs=logprobs)
    request = msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(request.sampling, logit_bias=bias.token_ids),
        adapter=default_adapter if body.lora is None else request.adapter,
        biased_texts=bias.texts,
    )
    idle = without_effect(raw, shared, request, reading, type(body))
    idle.pop("stream_options", None)
    if body.return_progress and not tells_progress(body, profile):
        idle["return_progress"] = NO_PROGRESS
    return Parameters(request, _settings(body, request, profile, bias), idle)


def tells_progress(body: LlamaSharedBody, profile: ModelProfile) -> bool:
    return bool(body.stream and body.return_progress and profile.tells_progress)


def default_settings(profile: ModelProfile) -> dict[str, Any]:
    found = read_parameters({}, LlamaSharedBody(), profile, Reading(WORDS, profile), None)
    seed = found.request.sampling.seed
    return {**found.settings, "seed": UINT32_MAX if seed is None else seed}


def max_tokens_of(body: LlamaSharedBody) -> int | None:
    """None = as many as fit."""
    counts = (body.max_completion_tokens, body.max_tokens, body.n_predict)
    value = next((count for count in counts if count is not None), -1)
    return None if value < 0 else value


def _num_probs(body: LlamaSharedBody, reading: Reading) -> int | None:
    name, value = ("n_probs", body.n_probs) if body.logprobs is None else ("logprobs", body.logprobs)
    if value is None:
        return None
    check_number(name, value, logprob_bounds(reading), WORDS)
    return value or None


def _logit_bias(body: LlamaSharedBody, profile: ModelProfile) -> _Bias:
    written, bias = body.logit_bias or [], _Bias({}, {})
    check_count("logit_bias", len(written), profile.limits.max_token_ids, WORDS)
    entries: Sequence[Sequence[Any]] = list(written.items()) if isinstance(written, dict) else written
    for position, entry in enumerate(entries):
        if len(entry) != 2:
            raise WORDS.wrong(f"logit_bias[{position}]", "a token id or text and its bias", entry)
        key, value = entry
        place = f"logit_bias[{key if isinstance(written, dict) else position}]"
        if value is True or isinstance(value, str) or not math.isfinite(value):
            raise WORDS.wrong(place, "a number, or false for never", value)
        number = BANNED if value is False else float(value)
        if isinstance(written, dict) and isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10:
            key = int(key)
        if isinstance(key, str):
            check_word_lengths("logit_bias", [key], profile.limits.max_word_chars, WORDS)
            bias.texts[key] = number
        elif is_token_id(key):
            bias.token_ids[key] = number
        else:
            raise WORDS.fault(place, "type", f"{place} must begin with a token id or a text, got {shown(key)}")
    return bias


def _settings(body: LlamaSharedBody, request: GenerationRequest, profile: ModelProfile, bias: _Bias) -> dict[str, Any]:
    sampling = request.sampling
    samplers = [name for name in in_order(read_samplers(body.samplers, WORDS)) if name not in profile.lacks]
    biases = [{"token": key, "bias": None if value == BANNED else value} for key, value in bias.token_ids.items()]
    if sampling.ignore_eos:
        biases += [{"token": token_id, "bias": None} for token_id in sorted(profile.end_token_ids)]
    num_tokens = -1 if request.max_tokens is None else request.max_tokens
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
        **{name: getattr(sampling, name) for name in FURTHER},
        **{name: value for name, (value, _) in NEUTRAL.items() if name in _SHOWN},
        "n_keep": request.n_keep,
        "n_discard": request.n_discard,
        "stop": list(request.stop),
        "max_tokens": num_tokens,
        "n_predict": num_tokens,
        "ignore_eos": sampling.ignore_eos,
        "stream": bool(body.stream),
        "logit_bias": biases,
        "n_probs": sampling.logprobs or 0,
        "post_sampling_probs": sampling.post_sampling_probs,
        "grammar": grammar.source if grammar is not None and grammar.kind == "lark" else "",
        "samplers": samplers,
        "timings_per_token": bool(body.timings_per_token),
        "lora": [{"id": adapter.id, "scale": adapter.scale} for adapter in body.lora or ()],
    }


_SHOWN = frozenset((
    "dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay",
    "min_keep",
))  # fmt: skip
"""Parameters without effect that settings report all the same."""
