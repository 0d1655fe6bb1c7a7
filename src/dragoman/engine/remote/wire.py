"""The format between this engine and an upstream: bodies of `/v1/completions`, and the events of their answers.

Sources: OpenAI API reference, completions; WHATWG HTML, server-sent events; vLLM's extensions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.engine.remote.profile import AS_TEXT, SENT, Kind, Profile, kind_of
from dragoman.errors import CapacityError, InvalidParameter, InvalidRequest
from dragoman.types import EngineRequest, Grammar, SamplingParams, TraceContext

_NEUTRAL = SamplingParams()
_ALWAYS = frozenset({"temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "seed"})
"""Sent at their neutral values too, because servers take what is left out from generation_config.json."""

_TOKEN_ID = "token_id:"  # vLLM's prefix of token ids in place of texts
_MAX_ERROR_CHARS = 1000


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to an upstream. `count`: sequences. `seed`: that of the first. `by_ids`: requests token ids."""

    prompt: Sequence[int] | str
    request: EngineRequest
    count: int
    seed: int
    logprobs: int | None = None
    by_ids: bool = True


class Trace:
    """The parent in each `headers` is the call's span, or a new id if none is recorded."""

    __slots__ = ("_context", "_request_id")

    def __init__(self, request_id: str, context: TraceContext | None = None) -> None:
        self._request_id = request_id
        self._context = context or TraceContext(os.urandom(16).hex(), is_sampled=True)

    def headers(self) -> Mapping[str, str]:
        context = self._context
        span_id = context.span_id or os.urandom(8).hex()
        parent = f"00-{context.trace_id}-{span_id}-0{int(context.is_sampled)}"
        headers = {"traceparent": parent, "x-request-id": self._request_id}
        return headers | {"tracestate": context.state} if context.state else headers


def body(ask: Ask, profile: Profile) -> bytes:
    usage = {"stream_options": {"include_usage": True}} if profile.has_usage else {}
    return msgspec.json.encode(fields(ask, profile) | {"stream": True} | usage)


def prompt_body(ask: Ask, profile: Profile, num_top: int | None) -> bytes:
    """The body of a request that only reads the prompt, with its log-probabilities unless `num_top` is None."""
    few: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1, "stream": False}
    if num_top is not None:
        few["prompt_logprobs"] = num_top
    return msgspec.json.encode(_addressed(ask, profile) | few)


def fields(ask: Ask, profile: Profile) -> dict[str, Any]:
    request, sampling = ask.request, ask.request.sampling
    found = _addressed(ask, profile) | {"max_tokens": request.max_tokens}
    for name in SENT:
        there = profile.names.get(name)
        value = getattr(sampling, name)
        if there is not None and (name in _ALWAYS or value != getattr(_NEUTRAL, name)):
            found[there] = value
    if "top_k" in profile.names and not sampling.top_k:
        found[profile.names["top_k"]] = -1  # the one number that means all tokens on every server
    if "seed" in profile.names:
        found[profile.names["seed"]] = ask.seed % (profile.kind.max_seed + 1)
    if sampling.logit_bias:
        found[profile.names["logit_bias"]] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    ends = sorted(request.end_reasons())
    if ends and ask.by_ids and "stop_token_ids" in profile.names:
        found[profile.names["stop_token_ids"]] = ends
    if ask.count > 1:
        found["n"] = ask.count
    if sampling.grammar is not None:
        _put(found, profile.grammars[sampling.grammar.kind], sampling.grammar)
    _ask_for_tokens(found, ask, profile)
    return found


def _addressed(ask: Ask, profile: Profile) -> dict[str, Any]:
    """The fields of every request: prompt, cache salt, priority, and the model's or adapter's name."""
    found: dict[str, Any] = {"model": ask.request.adapter or profile.model, "prompt": ask.prompt}
    if salt := ask.request.cache_partition if profile.cache_salt else ask.request.cache_salt:
        found["cache_salt"] = salt
    if ask.request.priority:
        found["priority"] = -ask.request.priority  # on servers the smallest goes first
    return found


def _ask_for_tokens(found: dict[str, Any], ask: Ask, profile: Profile) -> None:
    logprobs = ask.logprobs
    if ask.by_ids:
        if profile.kind.ids_from_logprobs:
            logprobs = max(logprobs or 0, 1)
        else:
            found["return_token_ids"] = True
    if logprobs is not None:
        found["logprobs"] = logprobs
        found["return_tokens_as_token_ids"] = True


def _put(found: dict[str, Any], path: str, grammar: Grammar) -> None:
    """Set a grammar at `path`; the part after a dot is a key within an object."""
    outer, _, inner = path.removesuffix(AS_TEXT).partition(".")
    value: Any = grammar.source
    if grammar.kind == "json_object":
        value = True
    elif grammar.kind == "choice" or (grammar.kind == "json_schema" and not path.endswith(AS_TEXT)):
        value = msgspec.Raw(grammar.source.encode())
    found[outer] = {inner: value} if inner else value


# --- answers ----------------------------------------------------------------------------------------------------------


class TokenLogprob(msgspec.Struct):
    id: int
    logprob: float
    top_logprobs: list[TokenLogprob] = []


class Logprobs(msgspec.Struct):
    """In OpenAI's form with ids for tokens, or in llama.cpp's (`content`)."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[TokenLogprob] | None = None

    def ids(self) -> list[int] | None:
        """The token ids, None if the tokens are texts."""
        if self.content is not None:
            return [token.id for token in self.content]
        return [token_id(token) for token in self.tokens] if all(map(is_token_id, self.tokens)) else None


class Candidate(msgspec.Struct):
    """One candidate for a token of the prompt; `rank` counts from 1."""

    logprob: float | None
    rank: int | None = None


class Choice(msgspec.Struct):
    index: int = 0
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[dict[str, Candidate] | None] | None = None
    prompt_token_ids: list[int] | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct):
    """One event of a stream, or a whole answer. `error`, or an `object` of that name: the stream has failed."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None

    @property
    def num_cached_tokens(self) -> int:
        details = None if self.usage is None else self.usage.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0


class ModelMeta(msgspec.Struct):
    """llama.cpp's further facts of a model. `n_ctx`: tokens of one sequence."""

    n_ctx: int | None = None


class Model(msgspec.Struct):
    """One entry of `/v1/models`. `parent`: the base model of an adapter."""

    id: str
    owned_by: str | None = ""
    parent: str | None = None
    max_model_len: int | None = None
    meta: ModelMeta | None = None

    @property
    def context_len(self) -> int | None:
        return self.max_model_len or (None if self.meta is None else self.meta.n_ctx)

    @property
    def kind(self) -> Kind:
        return kind_of(self.owned_by or "", self.id)


class ModelList(msgspec.Struct):
    data: list[Model] = []


def adapters_of(model: str, listed: Sequence[Model]) -> tuple[str, ...]:
    return tuple(entry.id for entry in listed if entry.parent == model and entry.id != model)


chunks = msgspec.json.Decoder(Chunk)
models = msgspec.json.Decoder(ModelList)


def is_token_id(token: str) -> bool:
    return token.startswith(_TOKEN_ID)


def token_id(token: str) -> int:
    return int(token[len(_TOKEN_ID) :])


class EventReader:
    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        rest = self._rest + data if self._rest else data
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        *events, self._rest = rest.split(b"\n\n")
        return [payload for event in events if (payload := _data(event))]


def _data(event: bytes) -> bytes:
    """The content of an event's data lines; b"" for comments."""
    if event.startswith(b"data: ") and b"\n" not in event:  # the usual case
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


# --- errors -----------------------------------------------------------------------------------------------------------


def error_text(content: bytes) -> str:
    """The message in an error's body, of any server, on one line."""
    return _details(content)[0]


def client_error(content: bytes, label: str) -> InvalidRequest | CapacityError:
    """The client's error for a request that the upstream `label` refused."""
    message, code, param = _details(content)
    text = f"{message} (said by {label})"
    if code == "context_length_exceeded" or "maximum context length" in message:
        return CapacityError(text, param=param)
    return InvalidRequest(text, param=param) if param is None else InvalidParameter(text, param=param)


def chunk_error(chunk: Chunk) -> str | None:
    if chunk.error is None and chunk.object != "error":
        return None
    return _message(chunk.error if chunk.error is not None else chunk.message)


def _details(content: bytes) -> tuple[str, str | None, str | None]:
    try:
        decoded = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return _message(content.decode("utf-8", "replace")), None, None
    inner = decoded.get("error", decoded) if isinstance(decoded, dict) else decoded
    if not isinstance(inner, dict):
        return _message(inner), None, None
    code, param = inner.get("code"), inner.get("param")
    return _message(inner), code if isinstance(code, str) else None, param if isinstance(param, str) else None


def _message(value: Any) -> str:
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("message", "detail", "error") if value.get(key)), value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return " ".join(text.split())[:_MAX_ERROR_CHARS] or "no reason was told"
