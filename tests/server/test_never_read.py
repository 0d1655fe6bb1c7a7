"""Clients that never read: what is held for them is bounded, others do not notice, and in the end they are cut."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack

import httpx
import msgspec
import pytest

from dragoman.errors import Cancelled
from dragoman.server.api import Call, Dialect, HttpCall, Reply
from dragoman.server.generation import call_events
from dragoman.server.generation.call_events import MAX_BATCH, MAX_WAITING_BYTES, CallEvents
from dragoman.server.run import ListenConfig
from dragoman.types import (
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    TextPrompt,
    TokenOutput,
    TopToken,
)
from tests.support.fake_service import FakeService
from tests.support.line_dialect import LineDialect, LineEncoder, line_dialects
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, post_bytes, running_server
from tests.support.streaming import never
from tests.support.tables import Rows, table

NUM_CLIENTS = 50
LONG_TOKEN = 8000  # characters: the kernel's buffers are full soon
SMALL_BYTES = 1 << 19
LONG_BYTES = 20 << 20
ENDLESS = "endless"
REQUEST = GenerationRequest("r", TextPrompt(ENDLESS))


def token(number: int, num_alternatives: int, length: int) -> TokenOutput:
    """A token as a service makes one: nothing of it is shared with others."""
    text = f"word {number}".ljust(length)
    top = tuple(
        TopToken(place, f"{text}.{place}", -number / 7.0 - place, f"{text}.{place}".encode())
        for place in range(num_alternatives)
    )
    return TokenOutput(number, text, f"{text}!", text.encode(), -number / 3.0, top)


class EndlessService(FakeService):
    """Answers the prompt `endless` until it is told to stop, and other prompts as its parent does."""

    def __init__(self, num_alternatives: int = 0, length: int = 0) -> None:
        """`length`: characters of a token, at the least."""
        super().__init__()
        self._length = length
        self._num_alternatives = num_alternatives
        self.num_made = 0

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        if not isinstance(request.prompt, TextPrompt) or request.prompt.text != ENDLESS:
            async for event in super().stream(request):
                yield event
            return
        try:
            prompt: PromptInfo | None = PromptInfo(ENDLESS, ())
            while True:
                self.num_made += 1
                one = token(self.num_made, self._num_alternatives, self._length)
                yield GenerationEvent(0, one.text, (one,), prompt=prompt, content=one.text)
                prompt = None
                await asyncio.sleep(0)
        finally:
            self.journal.write(f"abort {request.request_id}")


@table("num_alternatives", [0, 5, 20])
def test_the_events_that_wait_take_no_more_memory_than_is_said(num_alternatives: int) -> None:
    service = EndlessService(num_alternatives)

    async def pile_up() -> tuple[int, int]:
        running = CallEvents(service, [REQUEST])
        tracemalloc.start()
        try:
            running.start(never)
            await running.first_batch()
            await asyncio.to_thread(service.journal.wait_for, lambda lines: "abort r" in lines)
            return tracemalloc.get_traced_memory()[0], service.num_made
        finally:
            tracemalloc.stop()
            await running.aclose()

    held, num_made = asyncio.run(pile_up())
    assert held < MAX_WAITING_BYTES * 1.2
    assert held > MAX_WAITING_BYTES / 4, "or it is cut long before it has to be"
    assert num_made > 1000


def test_all_that_waited_is_handed_out_in_pieces_before_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_events, "MAX_WAITING_BYTES", SMALL_BYTES)
    service = EndlessService()

    async def read_late() -> list[int]:
        running = CallEvents(service, [REQUEST])
        running.start(never)
        first = await running.first_batch()
        await asyncio.to_thread(service.journal.wait_for, lambda lines: "abort r" in lines)
        numbers = [event.tokens[0].id for _, event in first]
        while len(numbers) < service.num_made:
            batch = await running.next_batch()
            assert 0 < len(batch) <= MAX_BATCH
            numbers += [event.tokens[0].id for _, event in batch]
        with pytest.raises(Cancelled, match="the answer is read too slowly"):
            await running.next_batch()
        await running.aclose()
        return numbers

    numbers = asyncio.run(read_late())
    assert numbers == list(range(1, service.num_made + 1))
    assert len(numbers) > 2 * MAX_BATCH


def test_an_answer_that_is_held_back_on_purpose_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_events, "MAX_WAITING_BYTES", 1)
    service = FakeService()

    async def hold() -> int:
        request = GenerationRequest("r", TextPrompt("x"), max_tokens=40)
        running = CallEvents(service, [request] * 20)
        running.start(never)
        try:
            return len(await running.first_batch(hold_s=PATIENCE_S))
        finally:
            await running.aclose()

    assert asyncio.run(hold()) > 64


def ask_and_never_read(server: RunningServer, number: int) -> socket.socket:
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    lazy.settimeout(PATIENCE_S)
    lazy.connect(("127.0.0.1", server.port))
    body = json.dumps({"model": "fake", "prompt": ENDLESS, "stream": True, "max_tokens": 60}).encode()
    headers = ("content-type: application/json", f"x-request-id: lazy-{number}")
    lazy.sendall(post_bytes("/v1/completions", body, *headers))
    return lazy


def whole_answer(server: RunningServer) -> tuple[int, str]:
    body = {"model": "fake", "prompt": "hello", "max_tokens": 20}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
    return answer.status_code, answer.json()["choices"][0]["text"]


def test_fifty_streams_that_nobody_reads_end_and_disturb_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_events, "MAX_WAITING_BYTES", 2 * SMALL_BYTES)
    server = RunningServer(dialects=real_dialects(), listen=ListenConfig(port=0))
    service = server.service = EndlessService(length=LONG_TOKEN)
    server.start()
    try:
        alone = whole_answer(server)
        tracemalloc.start()
        with ExitStack() as stack:
            for number in range(NUM_CLIENTS):
                stack.enter_context(ask_and_never_read(server, number))
            answers = [whole_answer(server) for _ in range(5)]
            service.journal.wait_for(lambda lines: sum(line.startswith("abort") for line in lines) == NUM_CLIENTS)
            held = tracemalloc.get_traced_memory()[0]
            assert server.admission.num_in_flight == NUM_CLIENTS, "they still wait for their clients"
            answers.append(whole_answer(server))
        assert alone[0] == 200
        assert answers == [alone] * 6
        piece = MAX_BATCH * 3 * LONG_TOKEN  # as it is on its way into the transport, which then holds it
        most = 2 * SMALL_BYTES * 1.2 + piece + 2 * (1 << 16)
        assert held < NUM_CLIENTS * most
    finally:
        tracemalloc.stop()
        server.http.stop()
        server.http.stop()
        server.join()


def wait_for_reset(connection: socket.socket) -> None:
    """Until the server has dropped the connection, and what it had to say with it."""
    poller = select.poll()
    poller.register(connection, select.POLLERR)
    assert poller.poll(PATIENCE_S * 1000), "the connection was not dropped"


CLOSING: dict[str, Callable[[bytes], bytes]] = {
    "the last answer": lambda body: post_bytes("/invocations", body, "connection: close"),
    "an answer before silence": lambda body: post_bytes("/invocations", body),
    "an answer before half a request": lambda body: (
        post_bytes("/invocations", body) + b"POST /invocations HTTP/1.1\r\n"
    ),
}


class LongEncoder(LineEncoder):
    """Whole answers that no buffer of the kernel takes in at once."""

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        return Reply(200, b" " * LONG_BYTES + b"the end", "text/plain")


class LongDialect(LineDialect):
    def parse(self, http: HttpCall) -> Call:
        return msgspec.structs.replace(super().parse(http), encoder=LongEncoder())


def long_answers() -> dict[str, Dialect]:
    return {name: LongDialect(name) for name in line_dialects()}


def test_an_answer_that_nobody_takes_does_not_keep_its_connection() -> None:
    listen = ListenConfig(port=0, stall_timeout_s=0.2, arrival_timeout_s=0.2, keep_alive_s=1)
    with running_server(listen=listen, dialects=long_answers()) as server, ExitStack() as stack, Rows() as rows:
        clients = {name: stack.enter_context(server.connect()) for name in CLOSING}
        for name, lazy in clients.items():
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            lazy.sendall(CLOSING[name](b"{}"))
        for name, lazy in clients.items():
            with rows.row(name):
                wait_for_reset(lazy)


def test_an_answer_that_somebody_takes_slowly_is_whole() -> None:
    listen = ListenConfig(port=0, stall_timeout_s=0.4, arrival_timeout_s=0.1)
    with running_server(listen=listen, dialects=long_answers()) as server, server.connect() as reader:
        reader.sendall(post_bytes("/invocations", b"{}", "connection: close"))
        answer, ended_s = bytearray(), time.monotonic() + 1.2
        while piece := reader.recv(LONG_BYTES // 100):
            answer += piece
            due_s = ended_s - 1.2 * (1 - len(answer) / LONG_BYTES)
            time.sleep(max(due_s - time.monotonic(), 0))  # the whole takes three times as long as nothing may be read
        assert answer.endswith(b"the end")
