"""The LMI dialect: `inputs` and `parameters` in, `generated_text`, token lines or `outputs` lines out.

Chooses which bodies on the LMI routes are its own; chat and completion bodies go elsewhere. Models that embed or score
have a dialect of their own. One instance per served model, on the event loop.
Sources: LMI's adapters schema, v0.31; the LMI 0.31 text embedding guide: the Java engines' answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import CapacityError, InvalidPayload, InvalidRequest, ServerError
from dragoman.server.api import (
    JSONLINES_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Call,
    CallSwitches,
    Dialect,
    Encoder,
    HttpCall,
    Opening,
    PureDialect,
    Reply,
    json_reply,
)
from dragoman.server.apis.lmi.errors import error_reply, front_error, generation_body
from dragoman.server.apis.lmi_wire.answers import Framing, OutputsEncoder, TokenEncoder
from dragoman.server.apis.lmi_wire.body import ADAPTERS, Payload, read_boolean, read_payload, show
from dragoman.server.apis.lmi_wire.parameters import LmiOptions, ParameterReader, Parsed
from dragoman.server.apis.lmi_wire.request import AnswerPlan, make_requests, read_prompts
from dragoman.server.apis.openai_wire.fields import check_count, shown
from dragoman.server.apis.openai_wire.pooling import TextsField, encoded_arrays, read_string, read_texts
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.json_body import NotJson, TooMuchJson, decode_json
from dragoman.server.pooling.base import (
    AnsweringDialect,
    EmbedRequest,
    PoolingKind,
    ScoreRequest,
    Truncation,
    embedder,
    scorer,
)
from dragoman.server.responder import note_ignored
from dragoman.types import GenerationRequest

INPUTS = "lmi"
CHAT = "lmi.chat"
V1_CHAT = "lmi.v1_chat"
COMPLETIONS = "lmi.completions"

# `curl -d` calls its body a form whatever it holds; a real form is not a JSON object and goes to LMI
_JSON_TYPES = ("", "application/json", "application/x-www-form-urlencoded")

_NULL = msgspec.Raw(b"null")


class _Keys(msgspec.Struct):
    """The keys that decide. One that is null counts as absent."""

    messages: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    inputs: msgspec.Raw = _NULL


def dialect_of_body(http: HttpCall) -> str:
    """The dialect's name: an object with `messages` is a conversation, one with `prompt` and no `inputs` a completion."""
    if http.media_type not in _JSON_TYPES:
        return INPUTS
    keys = _keys(http)
    if keys.get("messages") is not None:
        return CHAT
    return COMPLETIONS if keys.get("prompt") is not None and keys.get("inputs") is None else INPUTS


def _keys(http: HttpCall) -> Mapping[str, Any]:
    try:
        value = http.json()
    except TooMuchJson:
        return {}
    except NotJson:
        return _undecoded(http.body)
    return value if isinstance(value, dict) else {}


def _undecoded(body: bytes) -> Mapping[str, Any]:
    try:
        keys = decode_json(body, _Keys)
    except (NotJson, msgspec.ValidationError):
        return {}
    values = msgspec.structs.asdict(keys)
    return {name: value for name, value in values.items() if bytes(value).strip() != b"null"}


_ADAPTER_QUERY = "adapter"
_ADAPTER_HEADER = "x-amzn-sagemaker-adapter-identifier"  # SageMaker's, for inference components with adapters


def with_adapters(requests: Sequence[GenerationRequest], in_body: Any, http: HttpCall) -> tuple[GenerationRequest, ...]:
    """The requests, each with the adapter that the call names for it: in the header, the query or the body, in this order.

    Raises: InvalidPayload.
    """
    named = http.headers.get(_ADAPTER_HEADER) or http.query.get(_ADAPTER_QUERY)
    if named is None and in_body is None:
        return tuple(requests)
    names = in_body if named is None and isinstance(in_body, list) else [named or in_body] * len(requests)
    if len(names) != len(requests) or not all(isinstance(name, str) for name in names):
        raise InvalidPayload(
            f"Field '{ADAPTERS}' must be a name, or an array of one name for each of {len(requests)} inputs, "
            f"got {show(in_body)}",
            param=ADAPTERS,
        )
    return tuple(msgspec.structs.replace(request, adapter=name) for request, name in zip(requests, names, strict=True))


class WithAdapters:
    """A dialect of OpenAI's wire format that also reads LMI's adapters."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def open(self, http: HttpCall) -> Opening:
        opening = self._dialect.open(http)

        def parse() -> Call:
            call = opening.parse()
            requests = with_adapters(call.requests, http.field(ADAPTERS), http)
            idle = {name: why for name, why in call.idle.items() if name != ADAPTERS}
            return msgspec.structs.replace(call, requests=requests, idle=idle)

        return msgspec.structs.replace(opening, parse=parse)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return self._dialect.error_reply(error, http)


FORMATTERS = ("json", "jsonlines", "sse")


class LmiDialect(PureDialect):
    def __init__(self, options: LmiOptions) -> None:
        self.options = options
        self._reader = ParameterReader(options)

    def parse(self, http: HttpCall) -> Call:
        return self.parse_payload(read_payload(http), http)

    def parse_payload(self, payload: Payload, http: HttpCall) -> Call:
        """The call of a payload that was read already, perhaps by an operator's input formatter. Raises: InvalidRequest."""
        prompts = read_prompts(payload.inputs)
        parsed = self._reader.read(payload.parameters)
        formatter = parsed.values.output_formatter
        stream = payload.stream
        if stream is None and parsed.has("stream"):
            stream = parsed.values.stream
        is_stream = self._is_stream(stream, formatter)
        requests, answer, ignored = make_requests(prompts, parsed, self.options, http.request_id, is_stream=is_stream)
        framing, unknown = self._framing(formatter, http.accept), payload.unknown
        if self.options.model.takes_adapters:
            requests = with_adapters(requests, payload.adapters, http)
            unknown = tuple(name for name in unknown if name != ADAPTERS)
        overruled = _overruled(payload, parsed, is_stream=is_stream)
        return Call(
            requests=requests,
            encoder=self._encoder(answer, framing, is_stream=is_stream),
            stream=is_stream,
            idle={**dict.fromkeys((*unknown, *ignored, *overruled), ""), **ignored},
        )

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return error_reply(error, self.options, is_stream=self._asked_for_stream(http))

    def _encoder(self, answer: AnswerPlan, framing: Framing, *, is_stream: bool) -> Encoder:
        options = self.options
        stream_error = partial(generation_body, options=options, is_stream=is_stream)
        if options.is_dynamic or (is_stream and answer.prompts.is_array):
            return OutputsEncoder(framing, stream_error, options, answer)
        is_list = answer.prompts.is_array or options.is_tgi
        return TokenEncoder(framing, stream_error, options, answer, is_list=is_list)

    def _is_stream(self, stream: bool | None, formatter: str | None) -> bool:
        """No request can switch off streaming that the operator switched on for all dynamic requests."""
        if self.options.is_dynamic and self.options.enable_streaming:
            return True
        if stream is not None:
            return stream
        chosen = formatter if formatter in FORMATTERS else self.options.output_formatter
        return chosen in ("jsonlines", "sse")

    def _framing(self, formatter: str | None, accept: str) -> Framing:
        for name in (formatter, _accepted(accept), self.options.output_formatter):
            if name == "sse":
                return "sse"
            if name == "jsonlines":
                return "jsonlines"
        return "sse" if self.options.is_tgi else "jsonlines"

    def _asked_for_stream(self, http: HttpCall) -> bool:
        try:
            payload = read_payload(http)
        except ServerError:
            return False
        formatter, stream = payload.parameters.get("output_formatter"), payload.stream
        if stream is None:
            with suppress(ValueError):
                stream = read_boolean(payload.parameters.get("stream"))
        return self._is_stream(stream, formatter if isinstance(formatter, str) else None)


def _accepted(accept: str) -> str | None:
    if SSE_MEDIA_TYPE in accept:
        return "sse"
    return "jsonlines" if JSONLINES_MEDIA_TYPE in accept else None


def _overruled(payload: Payload, parsed: Parsed, *, is_stream: bool) -> list[str]:
    """Names of the parameters about the answer's form that have no effect."""
    values, names = parsed.values, []
    if payload.stream is not None and parsed.has("stream") and values.stream is not payload.stream:
        names.append("stream")
    formatter = values.output_formatter
    if formatter is not None and (formatter not in FORMATTERS or (formatter != "json" and not is_stream)):
        names.append("output_formatter")
    return names


WORDS = Profile(name="lmi")
"""Its errors are told in general words."""

_PAIR_KEYS = ("key", "value")


class LmiPoolingDialect(AnsweringDialect):
    """For models that embed or score: `inputs` in, vectors or scores out."""

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The Java engines' translator tells what the client did wrong."""
        if isinstance(error, InvalidRequest | CapacityError):
            return front_error(400, "TranslateException", error.message)
        return error_reply(error, LmiOptions())

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        payload = read_payload(http)
        if payload.inputs is None:
            raise InvalidPayload('Missing "inputs" in json.', param="inputs")
        idle = [f"parameters.{name}" for name in payload.parameters]
        if payload.stream is not None:
            idle.append("stream")
        headers = note_ignored(switches, [*payload.unknown, *idle])
        is_scorer = self._profile.pooling.facts.kind is PoolingKind.SCORE
        made = await (self._scores if is_scorer else self._vectors)(payload, http.request_id)
        return json_reply(200, made, headers)

    async def _vectors(self, payload: Payload, request_id: str) -> Any:
        field, texts = read_texts("inputs", payload.inputs, self._profile.limits, WORDS)
        request = EmbedRequest(texts=texts, request_id=request_id, truncation=Truncation.RIGHT)
        made = await field.asked(embedder(self._profile).embed, request)
        if not field.is_list:
            return made.values[0].tolist()
        return await encoded_arrays(made.values, lambda _, row: row.tolist())

    async def _scores(self, payload: Payload, request_id: str) -> list[float]:
        values = payload.inputs if isinstance(payload.inputs, list) else [payload.inputs]
        request = ScoreRequest(pairs=self._pairs(values), request_id=request_id, truncation=Truncation.RIGHT)
        made = await TextsField("inputs").asked(scorer(self._profile).score, request)
        scores: list[float] = made.values.tolist()
        return scores

    def _pairs(self, values: Sequence[Any]) -> list[tuple[str, str]]:
        if not values:
            raise WORDS.fault("inputs", "empty", "inputs must hold at least one pair, got none")
        check_count("inputs", len(values), self._profile.limits.max_prompts, WORDS)
        return [self._pair(f"inputs[{index}]", value) for index, value in enumerate(values)]

    def _pair(self, name: str, value: Any) -> tuple[str, str]:
        if not isinstance(value, dict) or not value.keys() >= set(_PAIR_KEYS):
            raise WORDS.fault(name, "type", f"{name} must be an object with key and value, got {shown(value)}")
        key, document = (read_string(f"{name}.{part}", value[part], self._profile.limits, WORDS) for part in _PAIR_KEYS)
        return key, document
