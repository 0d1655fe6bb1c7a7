"""The lines of calls for who watches a terminal."""

from __future__ import annotations

import logging

import pytest

from dragoman.errors import InvalidRequest
from dragoman.server.observation.record import CallRecord, RequestRecord, SequenceRecord
from dragoman.server.observation.request_log import LogForm, RequestLog


def line(caplog: pytest.LogCaptureFixture, record: CallRecord, form: LogForm = "short") -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        RequestLog(form).write(record)
    return caplog.messages[0]


def call(path: str = "/v1/chat/completions", status: int = 200, seconds: float = 0.345) -> CallRecord:
    return CallRecord("id", "OpenAI", path, begin_s=10.0, end_s=10.0 + seconds, status=status)


def test_a_call_is_a_few_words(caplog: pytest.LogCaptureFixture) -> None:
    answered = call()
    answered.requests = [RequestRecord("r", num_prompt_tokens=31, sequences=[SequenceRecord(num_tokens=40)])]
    assert line(caplog, answered) == "POST /v1/chat/completions 200 345 ms 31+40 tokens"
    assert line(caplog, answered, "coloured") == "POST /v1/chat/completions \x1b[32m200\x1b[0m 345 ms 31+40 tokens"
    refused = call(status=400, seconds=12.34)
    refused.error = InvalidRequest("what the client sent", param="prompt")
    assert line(caplog, refused) == f"POST /v1/chat/completions 400 12.3 s {refused.error.kind}"
    gone = call(status=0)
    gone.is_client_gone = True
    assert line(caplog, gone, "coloured") == "POST /v1/chat/completions \x1b[31m-\x1b[0m 345 ms client gone"


def test_a_path_moves_no_cursor_and_fills_no_screen(caplog: pytest.LogCaptureFixture) -> None:
    shown = line(caplog, call("/predictions/\x1b[2J\n" + "x" * 1000))
    assert shown.isprintable()
    assert len(shown) < 120
