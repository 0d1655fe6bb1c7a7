"""Spans for OpenTelemetry: one for each call and one for each of its phases, made from recorded times.

Used on the event loop; a thread of the SDK sends the spans. Source: OpenTelemetry's semantic conventions for generative
AI (gen_ai.*), error.type and http.*.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dragoman import __version__
from dragoman.errors import how_to_install
from dragoman.server.observation.record import CallRecord, Outcome, RequestRecord
from dragoman.types import ChatPrompt, TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

TraceProtocol = Literal["http/protobuf", "grpc"]

_PACKAGES: Mapping[TraceProtocol, tuple[str, str]] = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http", how_to_install("otel")),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc", "pip install opentelemetry-exporter-otlp-proto-grpc"),
}
CLOSE_TIMEOUT_S = 3.0

_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TraceExport:
    endpoint: str
    protocol: TraceProtocol = "http/protobuf"


def missing_package(protocol: TraceProtocol) -> str:
    """The package to install for sending spans by that protocol, "" if it is installed."""
    module, package = _PACKAGES[protocol]
    parts = module.split(".")
    for length in range(1, len(parts) + 1):  # looking for a module imports its parents
        if importlib.util.find_spec(".".join(parts[:length])) is None:
            return package
    return ""


class Tracing:
    """The spans of one server. The SDK reads OTEL_* variables: sampler, headers, batches, names."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry import trace
        from opentelemetry.propagate import extract
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.version": __version__})
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "dragoman"}))
        self._trace, self._extract = trace, extract
        self._exporter = exporter
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("dragoman", __version__)

    def begin(self, record: CallRecord, headers: Mapping[str, str]) -> Any:
        """The call's span, in the trace that its header fields name, else in a new one. Sets: `record.trace`."""
        span = self._tracer.start_span(
            record.api,
            self._extract(dict(headers)),
            self._trace.SpanKind.SERVER,
            start_time=_unix_ns(record, record.begin_s),
        )
        context = span.get_span_context()
        if context.is_valid:
            record.trace = TraceContext(
                self._trace.format_trace_id(context.trace_id),
                context.trace_flags.sampled,
                context.trace_state.to_header(),
                self._trace.format_span_id(context.span_id) if span.is_recording() else "",
            )
        return span

    def end(self, span: Any, record: CallRecord) -> None:
        if span.is_recording():
            self._tell(span, record)
        span.end(_unix_ns(record, record.end_s))

    def close(self) -> None:
        """Send the rest, for a bounded time: a missing collector must not keep the server from ending."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_TIMEOUT_S)
        if sending.is_alive():
            self._exporter.shutdown()

    def _tell(self, span: Any, record: CallRecord) -> None:
        attributes = dict(_attributes(record))
        span.update_name(f"{attributes['gen_ai.operation.name']} {record.model}".strip())
        span.set_attributes(attributes)
        if record.outcome is Outcome.FAILED or record.status >= 500:
            kind = "" if record.error is None else record.error.kind  # its message may cite what the client sent
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, kind))
        inside = self._trace.set_span_in_context(span)
        for request in record.requests:
            for phase in _phases(request):
                start, end = _unix_ns(record, phase.begin_s), _unix_ns(record, phase.end_s)
                child = self._tracer.start_span(phase.name, inside, attributes=phase.attributes, start_time=start)
                child.end(end)


def open_tracing(export: TraceExport) -> Tracing:
    """Spans sent to that endpoint. Raises: ImportError if the packages are missing."""
    exporter: SpanExporter
    if export.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter(endpoint=export.endpoint, insecure=not export.endpoint.startswith("https"))
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=export.endpoint)
    return Tracing(exporter)


class _Phase(NamedTuple):
    name: str
    begin_s: float
    end_s: float
    attributes: dict[str, Any]


def _phases(request: RequestRecord) -> Iterator[_Phase]:
    at_s, named = request.begin_s, {"dragoman.request.id": request.request_id}
    if request.pictured_s is not None:
        yield _Phase("pictures", at_s, request.pictured_s, named)
        at_s = request.pictured_s
    if request.prepared_s is None:
        return
    yield _Phase("prepare", at_s, request.prepared_s, named)
    if request.first_token_s is None:
        return
    at_s, first_s = request.prepared_s, request.begin_s + request.first_token_s
    if request.queue_s is not None:
        queued_s = min(request.first_step_s, first_s)
        yield _Phase("queue", at_s, queued_s, named)
        at_s = queued_s
    cached = {"gen_ai.usage.cache_read.input_tokens": request.num_cached_tokens}
    yield _Phase("prefill", at_s, first_s, {**named, **cached, "gen_ai.usage.input_tokens": request.num_prompt_tokens})
    last_s = max(times[-1] for times in request.event_s)
    attributes = {
        "gen_ai.usage.output_tokens": request.num_completion_tokens,
        "dragoman.preemptions": request.num_preemptions,
    }
    if request.num_draft_tokens:
        attributes["dragoman.draft_tokens"] = request.num_draft_tokens
        attributes["dragoman.accepted_tokens"] = request.num_accepted_tokens
    yield _Phase("decode", first_s, last_s, {**named, **attributes})


def _attributes(record: CallRecord) -> Iterator[tuple[str, Any]]:
    """The attributes of a call's span; never prompts or answers."""
    asked_request = next((request.asked for request in record.requests if request.asked is not None), None)
    is_chat = asked_request is not None and isinstance(asked_request.prompt, ChatPrompt)
    yield "gen_ai.operation.name", "chat" if is_chat else "text_completion"
    yield "gen_ai.provider.name", "dragoman"
    yield "gen_ai.response.id", record.call_id
    yield "http.request.method", "POST"
    yield "url.path", record.path
    yield "dragoman.api", record.api
    yield "dragoman.outcome", str(record.outcome)
    if record.status:
        yield "http.response.status_code", record.status
    if record.error is not None:
        yield "error.type", record.error.kind
    if record.model:
        yield "gen_ai.request.model", record.adapter or record.model
        yield "gen_ai.response.model", record.model
    yield "gen_ai.usage.input_tokens", record.num_prompt_tokens
    yield "gen_ai.usage.output_tokens", record.num_completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", record.num_cached_tokens
    reasons = [reason for request in record.requests for reason in request.finish_reasons]
    if reasons:
        yield "gen_ai.response.finish_reasons", reasons
    if asked_request is None:
        return
    sampling = asked_request.sampling
    named = {
        "max_tokens": asked_request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        "seed": sampling.seed if sampling.seed is None or sampling.seed < 2**63 else None,
        "choice.count": sampling.n if sampling.n > 1 else None,
    }
    yield from ((f"gen_ai.request.{name}", value) for name, value in named.items() if value is not None)


def _unix_ns(record: CallRecord, at_s: float) -> int:
    """A time of the monotonic clock in nanoseconds since the epoch."""
    return int((record.began_s + at_s - record.begin_s) * _NANOSECONDS)
