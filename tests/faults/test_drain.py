"""The end of a server as every API's clients see it: what runs finishes, what comes is refused, what is cut is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.errors import Cancelled
from dragoman.server.app import ServerConfig
from dragoman.server.hosting import ModelOwner
from dragoman.server.run import HttpServer, ListenConfig
from tests.engine.forward_gate import ForwardGate
from tests.faults.neighbours import checker
from tests.support.every_api import Calling, dialects_of, name_of_dialect
from tests.support.patience import PATIENCE_S
from tests.support.small_server import (
    CALLS,
    PROFILE,
    LetterRunner,
    Parts,
    SmallServer,
    id_of,
    length_of,
    run,
)

READINESS = ("/ping", "/health", "/v2/health/ready", "/")
TOLD = "the server is shutting down"


class Answer:
    """What one client has received so far."""

    def __init__(self, calling: Calling) -> None:
        self.calling = calling
        self.status = 0
        self.media_type = ""
        self.body = b""
        self.headers: dict[str, str] = {}
        self.is_cut = False
        self.has_begun = asyncio.Event()

    async def read(self, client: httpx.AsyncClient) -> Answer:
        """Ask, and read to the end."""
        http = self.calling.http
        headers = {"content-type": "application/json", "x-amzn-sagemaker-target-model": "fake"}
        try:
            async with client.stream("POST", http.path, content=http.body, headers=headers) as response:
                self.status, self.headers = response.status_code, dict(response.headers)
                self.media_type = response.headers["content-type"]
                async for piece in response.aiter_raw():
                    self.body += piece
                    self.has_begun.set()
        except httpx.RemoteProtocolError:
            self.is_cut = True
        return self


class Served:
    """A small server behind a port, on this event loop."""

    def __init__(self, server: SmallServer, listen: ListenConfig) -> None:
        self.server = server
        self._is_listening = asyncio.Event()
        self.port = 0

        async def load(registry: Any) -> None:
            """The model is there."""

        async def end() -> None:
            await server.engine.shutdown(0.0)
            await server.admission.wait_idle()

        def listening(_host: str, port: int) -> None:
            self.port = port
            self._is_listening.set()

        self.http = HttpServer(server.registry, ServerConfig(), listen, load, listening, owner=ModelOwner(None, end))
        self.serving = asyncio.create_task(self.http.serve())

    async def client(self) -> httpx.AsyncClient:
        """A client of it."""
        await self._is_listening.wait()
        limits = httpx.Limits(max_connections=200)
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", limits=limits, timeout=PATIENCE_S)


@asynccontextmanager
async def served(runner: LetterRunner, **listen: Any) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """A server and a client; nothing of them is left."""
    server = SmallServer(Parts(runner, config=RollingConfig(prefix_cache="off", max_num_seqs=128)))
    await server.engine.start()
    found = Served(server, ListenConfig(port=0, **listen))
    async with await found.client() as client:
        try:
            yield found, client
        finally:
            found.http.stop()
            found.http.stop()
            async with asyncio.timeout(PATIENCE_S):
                assert await found.serving == 0


async def status_of(client: httpx.AsyncClient, path: str) -> int:
    return (await client.get(path)).status_code


async def asked(client: httpx.AsyncClient) -> list[Answer]:
    """Every call of every API, answered."""
    return list(await asyncio.gather(*(Answer(calling).read(client) for calling in CALLS)))


def is_streamed(calling: Calling) -> bool:
    """True if the answer begins before it is complete."""
    return bool(opened(calling).stream)


def opened(calling: Calling) -> Any:
    """The call as its dialect understands it."""
    dialect = dialects_of(PROFILE)[name_of_dialect(calling)]
    wrap = calling.operation.wrap
    return (dialect if wrap is None else wrap(dialect)).open(calling.http).parse()


def is_cut_without_words(calling: Calling) -> bool:
    """True if that API has nothing to say inside a stream."""
    encoder = opened(calling).encoder
    encoder.head(())
    return encoder.stream_error(Cancelled(TOLD)) is None


def test_what_runs_finishes_while_readiness_is_off_and_new_calls_are_refused() -> None:

    async def test() -> None:
        async with served(LetterRunner()) as (_, client):
            expected = [(one.status, length_of(one.body)) for one in await asked(client)]
        gate = ForwardGate()
        async with served(LetterRunner(before_forward=gate, num_blocks=2000), drain_s=PATIENCE_S) as (found, client):
            running = [asyncio.create_task(Answer(calling).read(client)) for calling in CALLS]
            while found.server.admission.num_in_flight < len(CALLS):  # noqa: ASYNC110
                await asyncio.sleep(0)
            gate.pass_some(5)  # from here on: a short answer might end while later calls come in
            await gate.reached()
            found.http.stop()
            while not found.server.admission.is_draining:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert [await status_of(client, path) for path in READINESS] == [503] * 4
            assert await status_of(client, "/v2/health/live") == 200
            for answer in await asked(client):
                assert answer.status in (424, 429, 503, 529), id_of(answer.calling)
                assert "retry-after" in answer.headers
                checker().check_answer(answer.calling.key, answer.status, answer.media_type, answer.body)
            gate.open()
            answers = [await one for one in running]
            assert [(one.status, length_of(one.body)) for one in answers] == expected
            assert not any(one.is_cut for one in answers)

    run(test)


def test_calls_of_every_api_are_taken_while_load_balancers_look() -> None:
    async def test() -> None:
        async with served(LetterRunner(), drain_delay_s=PATIENCE_S) as (found, client):
            assert await status_of(client, "/ping") == 200
            found.http.stop()
            while await status_of(client, "/ping") == 200:
                pass
            assert [await status_of(client, path) for path in READINESS] == [503] * 4
            answers = await asked(client)
            assert all(one.status < 300 and not one.is_cut for one in answers)

    run(test)


@pytest.mark.parametrize("num_stops", [1, 2])
def test_what_does_not_finish_in_time_is_told_in_the_words_of_its_api(num_stops: int) -> None:

    async def test() -> None:
        async with served(LetterRunner()) as (found, client):
            await asked(client)
            num_requests = found.server.engine.num_requests
        gate = ForwardGate()
        drain_s = 0.0 if num_stops == 1 else PATIENCE_S
        async with served(LetterRunner(before_forward=gate, num_blocks=2000), drain_s=drain_s) as (found, client):
            answers = [Answer(calling) for calling in CALLS]
            running = [asyncio.create_task(one.read(client)) for one in answers]
            while found.server.engine.num_open < num_requests:  # noqa: ASYNC110
                await asyncio.sleep(0)
            gate.pass_some(6)  # all begin in the same steps, however slowly the calls came in
            await asyncio.gather(*(one.has_begun.wait() for one in answers if is_streamed(one.calling)))
            await gate.reached()
            for _ in range(num_stops):
                found.http.stop()
            await asyncio.gather(*running)
            gate.open()
        for answer in answers:
            calling = answer.calling
            if not is_streamed(calling):
                assert answer.status >= 400, id_of(calling)
                checker().check_answer(calling.key, answer.status, answer.media_type, answer.body)
            assert answer.is_cut == (is_streamed(calling) and is_cut_without_words(calling)), id_of(calling)
            assert answer.is_cut or TOLD.encode() in answer.body, (id_of(calling), answer.body)

    run(test)


HANGING = """
import sys, time
import dragoman.server.run as process
from dragoman.server.app import ServerConfig
from dragoman.server.registry import ModelRegistry
from dragoman.server.run import ListenConfig, run
from tests.support.line_dialect import line_dialects
from tests.server.test_app_life import model
import asyncio

def freeze():
    print("frozen", flush=True)
    return 7 ** 10 ** 9  # for hours, in one call that holds the interpreter's lock

async def load(registry):
    served = model("fake")
    if sys.argv[1] == "frozen before":
        asyncio.get_running_loop().call_later(0.05, freeze)

    async def shutdown(drain_s):
        print("ending", flush=True)
        if sys.argv[1] == "frozen after":
            freeze()
        await asyncio.to_thread(time.sleep, 600)

    served.engine.shutdown = shutdown
    registry.add(served)

def on_listening(host, port):
    print("ready", flush=True)

process.FORCED_EXIT_S, process.FROZEN_EXIT_S = 0.3, 1.0
sys.exit(run(ModelRegistry(line_dialects()), ServerConfig(), ListenConfig(port=0), load, on_listening))
"""


@pytest.mark.parametrize("hangs", ["in an engine", "frozen before", "frozen after"])
def test_a_second_signal_ends_the_process_whatever_hangs(hangs: str) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, "-c", HANGING, hangs]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if hangs == "frozen before":
            assert process.stdout.readline() == "frozen\n"
        process.send_signal(signal.SIGTERM)
        if hangs != "frozen before":
            assert process.stdout.readline() == "ending\n"
        if hangs == "frozen after":
            assert process.stdout.readline() == "frozen\n"
        begin_s = time.monotonic()
        while process.poll() is None and hangs == "frozen before":
            process.send_signal(signal.SIGTERM)  # two that come at the same moment are one to the kernel
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) != 0
        assert time.monotonic() - begin_s < PATIENCE_S / 2
