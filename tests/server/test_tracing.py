"""Spans of calls, as a collector receives them. Skipped where the extra `otel` is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.config.resolve import ConfigError, demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.errors import how_to_install
from dragoman.host import settings
from dragoman.server.app import ServerConfig
from dragoman.server.observation.tracing import TraceExport, missing_package
from dragoman.types import TraceContext
from tests.support.collector import Collector, attributes
from tests.support.fake_service import Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server

NEEDS_SDK = pytest.mark.skipif(bool(missing_package("http/protobuf")), reason="needs dragoman[otel]")

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "a=1"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def traced(collector: Collector, **more: Any) -> Any:
    return running_server(ServerConfig(traces=TraceExport(collector.url)), dialects=real_dialects(), **more)


def ask(server: RunningServer, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"prompt": "one two", "max_tokens": 3, "temperature": 0.5, **more}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)


@NEEDS_SDK
def test_a_call_is_a_span_in_its_clients_trace(collector: Collector) -> None:
    with traced(collector) as server:
        assert ask(server, {**PARENT, "x-request-id": "mine"}).status_code == 200
        [trace] = server.service.traces
    [span] = collector.spans  # the fake service tells no phases
    assert span.name == "text_completion fake"
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE_ID, PARENT_ID, "a=1")
    assert trace == TraceContext(TRACE_ID, True, "a=1", span.span_id.hex())  # an upstream's are its children
    told = attributes(span)
    assert told.items() >= {
        "gen_ai.operation.name": "text_completion", "gen_ai.response.model": "fake", "gen_ai.response.id": "mine",
        "gen_ai.usage.input_tokens": 2, "gen_ai.usage.output_tokens": 3, "http.response.status_code": 200,
        "url.path": "/v1/completions", "dragoman.api": "openai", "dragoman.outcome": "finished",
    }.items()  # fmt: skip
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert "one two" not in str(span)
    [name] = [one.value.string_value for one in collector.resources[0].attributes if one.key == "service.name"]
    assert name == "dragoman"


@NEEDS_SDK
def test_a_call_without_a_trace_begins_one_which_metrics_name(collector: Collector) -> None:
    with traced(collector) as server:
        ask(server)
        text = httpx.get(f"{server.url}/metrics", headers={"accept": "application/openmetrics-text"}).text
    [span] = collector.spans
    assert not span.parent_span_id
    assert f'trace_id="{span.trace_id.hex()}"' in text


@NEEDS_SDK
def test_what_the_client_does_not_record_is_not_recorded(collector: Collector) -> None:
    with traced(collector) as server:
        ask(server, {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"})
        [trace] = server.service.traces
    assert not collector.spans
    assert trace is not None
    assert (trace.trace_id, trace.is_sampled) == (TRACE_ID, False)


@NEEDS_SDK
def test_errors_are_told(collector: Collector) -> None:
    with traced(collector) as server:
        server.service.script = Script(failures={1: RuntimeError("broken")})
        assert ask(server).status_code == 500
        assert ask(server, max_tokens=-1).status_code == 400
    failed, refused = collector.spans
    assert attributes(failed)["error.type"] == "server_error"
    assert failed.status.code == 2
    assert attributes(refused)["error.type"] == "invalid_parameter"
    assert refused.status.code == 0  # the client's fault is none of the server's


@NEEDS_SDK
def test_the_environment_of_opentelemetry_counts(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with traced(collector) as server:
        ask(server)
    told = {one.key: one.value.string_value for one in collector.resources[0].attributes}
    assert told["service.name"] == "mine"
    assert told["deployment.environment.name"] == "test"
    collector.spans.clear()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with traced(collector) as server:
        ask(server)
    assert not collector.spans


@NEEDS_SDK
def test_the_sdk_can_be_switched_off(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with traced(collector) as server:
        assert ask(server, PARENT).status_code == 200
        [trace] = server.service.traces
    assert not collector.spans
    assert trace == TraceContext(TRACE_ID, True, "a=1")


@NEEDS_SDK
def test_a_collector_that_is_gone_delays_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.2")
    config = ServerConfig(traces=TraceExport("http://127.0.0.1:9/v1/traces"))
    with running_server(config, dialects=real_dialects()) as server:
        assert all(ask(server).status_code == 200 for _ in range(20))


@NEEDS_SDK
def test_phases_follow_each_other(collector: Collector) -> None:
    from dragoman.server.observation.record import CallRecord, RequestRecord, SequenceRecord
    from dragoman.server.observation.tracing import open_tracing

    made = open_tracing(TraceExport(collector.url))
    call = CallRecord("id", "openai", "/v1/completions", model="m", begin_s=100.0, began_s=1000.0, end_s=104.0)
    span = made.begin(call, {})
    call.requests = [
        RequestRecord(
            "id", begin_s=100.0, pictured_s=100.5, prepared_s=101.0, queue_s=0.25, num_prompt_tokens=9,
            sequences=[SequenceRecord([102.0, 103.0], num_tokens=2, num_draft_tokens=4)],
        )
    ]  # fmt: skip
    made.end(span, call)
    made.close()
    whole = collector.spans.pop()
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (1000 * 10**9, 1004 * 10**9)
    assert {span.parent_span_id for span in collector.spans} == {whole.span_id}
    assert [(span.name, span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9) for span in collector.spans] == [
        ("pictures", 1000.0, 1000.5), ("prepare", 1000.5, 1001.0), ("queue", 1001.0, 1001.25), ("prefill", 1001.25, 1002.0),
        ("decode", 1002.0, 1003.0),
    ]  # fmt: skip
    assert attributes(collector.spans[-1])["dragoman.draft_tokens"] == 4


def test_without_the_packages_the_option_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "missing_package", lambda protocol: how_to_install("otel"))
    given = [Given("otlp_traces_endpoint", "otlp_traces_endpoint", "http://x/v1/traces", "a test")]
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint=http://x/v1/traces.*pip install '.\[otel\]'"):
        settings.server_config(resolve(given, {}, demo_model_dir()))


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_package("http/protobuf") == how_to_install("otel")
    assert missing_package("grpc") == "pip install opentelemetry-exporter-otlp-proto-grpc"


def test_a_variable_that_is_meant_for_all_programs_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}
    config = resolve([], environ, demo_model_dir())
    assert config.server.otlp_traces_endpoint == "http://x:4318/v1/traces"
    monkeypatch.setattr(settings, "missing_package", lambda protocol: how_to_install("otel"))
    assert settings.server_config(config).traces is None
    monkeypatch.setattr(settings, "missing_package", lambda protocol: "")
    assert settings.server_config(config).traces == TraceExport("http://x:4318/v1/traces")
