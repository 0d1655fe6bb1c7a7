"""What clients send comes into no line of the log, no span and no metric, however it is refused or fails."""

from __future__ import annotations

import asyncio
import io
import logging
import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from dragoman.errors import EngineFailed
from dragoman.logs import BackgroundWriter, OperatorFormatter, start_logging
from dragoman.server.app import ServerConfig
from dragoman.server.observation.request_log import LogForm
from dragoman.server.observation.tracing import TraceExport, missing_package
from tests.fuzz import bodies, cases
from tests.fuzz.run import send
from tests.support.collector import Collector
from tests.support.fake_service import Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import running_server

SECRETS = ("my ssn 078", "my_ssn_078", "ssn_078")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
FORMS: tuple[LogForm, ...] = ("text", "json")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the log says; all texts and names in bodies of the fuzz are secrets."""
    monkeypatch.setattr(bodies, "TEXTS", SECRETS)
    monkeypatch.setattr(bodies, "KEYS", SECRETS)
    stream, root = io.StringIO(), logging.getLogger()
    kept = root.handlers[:], root.level, threading.excepthook
    start_logging(BackgroundWriter(stream), OperatorFormatter(), "info")
    yield stream
    root.handlers[:], root.level, threading.excepthook = kept


@pytest.mark.parametrize("form", FORMS)
def test_no_line_holds_what_a_body_held(told: io.StringIO, form: LogForm) -> None:
    maker = cases.Maker(random.Random(7))
    with running_server(ServerConfig(log_requests=form), dialects=real_dialects(), has_hosting=True) as server:

        async def ask() -> None:
            for number in range(100):
                case = maker.case()
                strict = (("x-dragoman-strict", "1"),) if number % 3 == 0 else ()
                await send(server.port, replace(case, headers=(*case.headers, *strict)))

        asyncio.run(ask())
        httpx.post(f"{server.url}/invocations", data={SECRETS[1]: SECRETS[0]})
        head = f'--x\r\ncontent-disposition: form-data; name="{SECRETS[1]}"\r\n\r\n'.encode()
        fields = {"content-type": "multipart/form-data; boundary=x"}
        httpx.post(f"{server.url}/invocations", content=head + b"\xff\r\n--x--", headers=fields)
        metrics = httpx.get(f"{server.url}/metrics").text
    text = told.getvalue()
    assert text.count("invalid") > 15
    assert "messages" in text  # parameters are named
    assert not any(secret in text or secret in metrics for secret in SECRETS)


@pytest.mark.skipif(bool(missing_package("http/protobuf")), reason="needs dragoman[otel]")
def test_no_line_and_no_span_holds_what_a_failure_says(told: io.StringIO) -> None:
    collector = Collector()
    config = ServerConfig(log_requests="json", traces=TraceExport(collector.url))
    with running_server(config, dialects=real_dialects()) as server:
        odd = {"tracestate": f"{SECRETS[0]}=,,{SECRETS[1]}", "baggage": f"{SECRETS[0]}=;=,{SECRETS[2]}"}
        for failure in (RuntimeError(SECRETS[0]), EngineFailed(SECRETS[0])):
            for position in (0, 2):
                for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}):
                    server.service.script = Script(failures={position: failure})
                    httpx.post(f"{server.url}/v1/completions", json=body, headers={**TRACE, **odd})
    assert len(collector.spans) == 8
    assert not any(secret in str(span) for span in collector.spans for secret in SECRETS)
    collector.close()
    text = told.getvalue()
    assert text.count("engine_failed") >= 4
    assert "builtins.RuntimeError (its message" in text
    assert not any(secret in text for secret in SECRETS)
