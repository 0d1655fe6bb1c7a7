"""The trace that a call belongs to: read from its header fields, and handed on with its requests."""

from __future__ import annotations

import httpx

from dragoman.server.api import HttpCall, trace_of
from dragoman.types import TraceContext
from tests.support.openmetrics import openmetrics_families
from tests.support.running_server import running_server
from tests.support.tables import table

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def trace(parent: str, state: str = "") -> TraceContext | None:
    return trace_of(HttpCall("POST", "/", b"", {"traceparent": parent, "tracestate": state}))


def test_a_clients_trace_is_read() -> None:
    assert trace(PARENT) == TraceContext(TRACE_ID, is_sampled=True)
    assert trace(PARENT[:-2] + "00", "a=1,b=2") == TraceContext(TRACE_ID, state="a=1,b=2")
    assert trace_of(HttpCall("POST", "/", b"")) is None


def test_what_newer_versions_add_is_left_out() -> None:
    assert trace(f"cc{PARENT[2:]}-and-more") == TraceContext(TRACE_ID, is_sampled=True)


@table(
    "parent",
    [
        "",
        "nonsense",
        f"ff{PARENT[2:]}",
        f"{PARENT}-more",
        PARENT.upper(),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        PARENT[:-1],
    ],
)
def test_what_is_no_trace_begins_none(parent: str) -> None:
    assert trace(parent, "a=1") is None


def test_a_state_that_cannot_be_sent_on_is_left_out() -> None:
    assert trace(PARENT, "a=\u00e4") == trace(PARENT, "a" * 3000) == TraceContext(TRACE_ID, is_sampled=True)


def test_each_request_of_a_call_belongs_to_its_trace() -> None:
    with running_server() as server:
        for headers in ({"traceparent": PARENT, "tracestate": "a=1"}, {}):
            httpx.post(f"{server.url}/invocations", json={}, headers=headers)
        first, second = server.service.traces
    assert first == TraceContext(TRACE_ID, is_sampled=True, state="a=1")
    assert second is None


OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"


def test_metrics_name_the_traces_of_calls_where_they_are_asked_for_as_openmetrics() -> None:
    with running_server() as server:
        for parent in (PARENT, PARENT[:-2] + "00"):  # the second one is recorded by nobody
            httpx.post(f"{server.url}/invocations", json={}, headers={"traceparent": parent})
        plain = httpx.get(f"{server.url}/metrics")
        refused = httpx.get(f"{server.url}/metrics", headers={"accept": "application/openmetrics-text;q=0, */*"})
        full = httpx.get(f"{server.url}/metrics", headers={"accept": OPENMETRICS})
    assert (
        plain.headers["content-type"] == refused.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    )
    assert TRACE_ID not in plain.text
    assert full.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    samples = [one for family in openmetrics_families(full.text) for one in family.samples if one.exemplar is not None]
    assert {one.exemplar.labels["trace_id"] for one in samples} == {TRACE_ID}
    assert {one.name for one in samples} >= {
        "dragoman_request_seconds_bucket", "dragoman_time_to_first_token_seconds_bucket",
        "dragoman_inter_token_seconds_bucket", "dragoman_request_prompt_tokens_bucket",
    }  # fmt: skip


def test_loads_are_counted() -> None:
    with running_server() as server:
        server.registry.loads.loaded("one", 2.5)
        server.registry.loads.failed("two")
        text = httpx.get(f"{server.url}/metrics").text
    assert 'dragoman_model_loads_total{model="one",outcome="loaded"} 1.0' in text
    assert 'dragoman_model_loads_total{model="two",outcome="failed"} 1.0' in text
    assert 'dragoman_model_load_seconds_sum{model="one"} 2.5' in text
