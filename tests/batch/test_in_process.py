"""The application in this process as a batch asks it, and how far it is as people see it."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from dragoman.batch.files import BatchError
from dragoman.batch.run import Tally
from dragoman.cli.batch_run import AnswerDisplay
from dragoman.cli.local_app import AppSender
from dragoman.errors import EngineDead
from dragoman.server.admission import Admission
from dragoman.server.app import ServerConfig, build_app
from dragoman.server.registry import ModelRegistry, ServedModel
from tests.support.fake_service import FakeEngine, FakeService, Script
from tests.support.real_dialects import real_dialects

BODY = b'{"prompt": "Hi", "max_tokens": 2}'


def sender(engine: FakeEngine, script: Script | None = None) -> AppSender:
    """The real application with its real dialects, over an engine that a test can kill."""
    dialects = real_dialects()
    registry, service = ModelRegistry(dialects), FakeService()
    service.script = script or service.script
    registry.add(ServedModel("fake", service, engine, dialects, Admission("fake")))
    registry.mark_ready()
    return AppSender(build_app(registry, ServerConfig(max_request_size_bytes=1000)), engine)


def test_the_application_answers_as_it_would_over_http() -> None:
    async def asked() -> None:
        app = sender(FakeEngine())
        answer = await app.send("/v1/completions", BODY)
        assert answer.status == 200
        assert json.loads(answer.body)["object"] == "text_completion"
        assert answer.headers["x-request-id"]
        wrong = await app.send("/v1/completions", b'{"prompt": 7.5}')
        assert wrong.status == 400
        assert "prompt" in json.loads(wrong.body)["error"]["message"]
        large = await app.send("/v1/completions", b"x" * 2000)
        assert large.status == 413

    asyncio.run(asked())


def test_a_dead_engine_ends_the_batch_and_is_no_answer() -> None:
    async def asked() -> None:
        engine = FakeEngine()
        app = sender(engine, Script(failures={1: EngineDead("The engine is dead: out of memory")}))
        assert (await app.send("/v1/completions", BODY)).status == 503, "it has failed this request, and goes on"
        engine.death = "out of memory"
        with pytest.raises(BatchError, match="the engine has died: out of memory"):
            await app.send("/v1/completions", BODY)

    asyncio.run(asked())


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(stream: io.StringIO) -> str:
    """What is shown after 0, 10 and 45 seconds."""
    now = [0.0]
    display = AnswerDisplay(stream, lambda: now[0])
    for seconds, num_answered in ((0.0, 0), (10.0, 20), (45.0, 90)):
        now[0] = seconds
        display(Tally(400, num_before=100, num_answered=num_answered, num_errors=10, completion_tokens=900))
    display.finish()
    return stream.getvalue()


def test_a_terminal_shows_a_bar_that_is_redrawn_and_taken_away() -> None:
    clear = "\r\x1b[K"
    assert drawn(Terminal()) == (
        f"{clear}  [########................] 130 of 400, 10 errors, 90 tokens/s, 1:30 left"
        f"{clear}  [############............] 200 of 400, 10 errors, 20 tokens/s, 1:30 left{clear}"
    )


def test_elsewhere_it_is_a_line_from_time_to_time() -> None:
    assert drawn(io.StringIO()) == "  [############............] 200 of 400, 10 errors, 20 tokens/s, 1:30 left\n"
