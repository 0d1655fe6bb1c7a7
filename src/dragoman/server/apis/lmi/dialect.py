"""The LMI dialect: `inputs` and `parameters` in, `generated_text`, token lines or `outputs` lines out.

One instance per served model, on the event loop. Chat and completion bodies go elsewhere (`choose`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from dragoman.errors import ServerError
from dragoman.server.api import (
    JSONLINES_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Call,
    Encoder,
    HttpCall,
    ModelProfile,
    PureDialect,
    Reply,
)
from dragoman.server.apis.lmi.adapters import with_adapters
from dragoman.server.apis.lmi.errors import ErrorContext, error_reply, generation_body
from dragoman.server.apis.lmi_wire.answers import Framing, OutputsEncoder, Shape, TokenEncoder
from dragoman.server.apis.lmi_wire.body import ADAPTERS, Payload, read_boolean, read_payload
from dragoman.server.apis.lmi_wire.parameters import ParameterReader, Parsed
from dragoman.server.apis.lmi_wire.request import AnswerPlan, Rules, make_requests, read_prompts

FORMATTERS = ("json", "jsonlines", "sse")


@dataclass(frozen=True, slots=True)
class LmiOptions:
    """Named as `option.*` in serving.properties, but for the model's facts."""

    rolling_batch: str = "auto"
    lmi_version: str = "0.31"
    batch_size: int = 1
    enable_streaming: bool = False
    output_formatter: str | None = None
    tgi_compat: bool = False
    model: ModelProfile = field(default_factory=ModelProfile)

    @property
    def is_dynamic(self) -> bool:
        return self.rolling_batch == "disable" or self.batch_size > 1

    @property
    def profile(self) -> str:
        return "disable" if self.is_dynamic else self.rolling_batch

    @property
    def has_tgi_shape(self) -> bool:
        return self.tgi_compat and not self.is_dynamic


class LmiDialect(PureDialect):
    def __init__(self, options: LmiOptions) -> None:
        self.options = options
        self._reader = ParameterReader(
            options.profile,
            options.lmi_version,
            options.model,
            with_tgi_names=options.tgi_compat,
        )
        self._rules = Rules(
            sampling="given" if options.lmi_version == "0.32" else "explicit",
            has_details_by_default=options.has_tgi_shape,
            is_dynamic=options.is_dynamic,
            model=options.model,
        )
        is_v026 = options.lmi_version == "0.26"
        self._shape = Shape(is_tgi=options.has_tgi_shape, is_v026=is_v026)

    def parse(self, http: HttpCall) -> Call:
        return self.parse_payload(read_payload(http), http)

    def parse_payload(self, payload: Payload, http: HttpCall) -> Call:
        """The call of a payload that was read already, perhaps by an operator's input formatter. Raises: InvalidRequest."""
        prompts = read_prompts(payload.inputs)
        parsed = self._reader.read(payload.parameters)
        formatter = parsed.values.output_formatter
        asked = payload.stream
        if asked is None and parsed.has("stream"):
            asked = parsed.values.stream
        is_stream = self._is_stream(asked, formatter)
        requests, answer, ignored = make_requests(prompts, parsed, self._rules, http.request_id, is_stream=is_stream)
        framing, unknown = self._framing(formatter, http.accept), payload.unknown
        if self.options.model.takes_adapters:
            requests = with_adapters(requests, payload.adapters, http)
            unknown = tuple(name for name in unknown if name != ADAPTERS)
        return Call(
            requests=requests,
            encoder=self._encoder(answer, framing, is_stream=is_stream),
            stream=is_stream,
            ignored=tuple(dict.fromkeys((*unknown, *ignored, *_overruled(payload, parsed, is_stream=is_stream)))),
            reasons=ignored,
        )

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return error_reply(error, self._error_context(is_stream=self._asked_for_stream(http)))

    def _encoder(self, answer: AnswerPlan, framing: Framing, *, is_stream: bool) -> Encoder:
        context = self._error_context(is_stream=is_stream)
        stream_error = partial(generation_body, context=context)
        if self.options.is_dynamic or (is_stream and answer.prompts.is_array):
            return OutputsEncoder(framing, stream_error, answer, is_v026=self._shape.is_v026)
        is_list = answer.prompts.is_array or self._shape.is_tgi
        return TokenEncoder(framing, stream_error, self._shape, answer, is_list=is_list)

    def _error_context(self, *, is_stream: bool) -> ErrorContext:
        return ErrorContext(is_stream, self.options.is_dynamic, self._shape.is_tgi)

    def _is_stream(self, asked: bool | None, formatter: str | None) -> bool:
        """No request can switch off streaming that the operator switched on for all dynamic requests."""
        if self.options.is_dynamic and self.options.enable_streaming:
            return True
        if asked is not None:
            return asked
        chosen = formatter if formatter in FORMATTERS else self.options.output_formatter
        return chosen in ("jsonlines", "sse")

    def _framing(self, formatter: str | None, accept: str) -> Framing:
        for name in (formatter, _accepted(accept), self.options.output_formatter):
            if name == "sse":
                return "sse"
            if name == "jsonlines":
                return "jsonlines"
        return "sse" if self._shape.is_tgi else "jsonlines"

    def _asked_for_stream(self, http: HttpCall) -> bool:
        try:
            payload = read_payload(http)
        except ServerError:
            return False
        formatter, asked = payload.parameters.get("output_formatter"), payload.stream
        if asked is None:
            with suppress(ValueError):
                asked = read_boolean(payload.parameters.get("stream"))
        return self._is_stream(asked, formatter if isinstance(formatter, str) else None)


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
