"""Runs `dragoman serve` as a process to measure, with the plan's options and a step log, and calls it over HTTP.

Called by the plan command: the process on the main thread, requests on an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from dragoman.tools.bench.answer import Answer as BenchAnswer
from dragoman.tools.bench.answer import AnswerReader
from dragoman.tools.bench.client import HttpClient, NotHttp
from dragoman.tools.bench.target import read_target
from dragoman.tools.plan.calibrate import Answer, CalibrationFailed

_POLL_S = 0.05
_END_LIMIT_S = 30.0


class ServedModel:
    """The server's process, as a context manager: entered when the server is ready; leaving it ends the process.

    SIGTERM leaves the block too, so that no server stays behind. Raises: CalibrationFailed if the server ends early.
    """

    def __init__(self, words: Sequence[str], step_log: Path) -> None:
        self.url = f"http://127.0.0.1:{_free_port()}"
        command = [sys.executable, "-m", "dragoman", "serve", *words, *_settings(read_target(self.url).port)]
        self._command = [*command, "--step-log", str(step_log)]
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            starting.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _leave))
            # In another process group: an interrupted plan ends the server itself.
            process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, process_group=0)
            starting.callback(_end, process)
            asyncio.run(self._wait_until_ready(process))
            self._ending = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    async def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        client = HttpClient(read_target(self.url), {})
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError, NotHttp):
                    if (await client.get("/ping")).status == 200:
                        return
                await asyncio.sleep(_POLL_S)  # a loading process has no event to wait for
        finally:
            client.close()
        raise CalibrationFailed(f"the measured server ended with code {process.returncode}")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _settings(port: int) -> list[str]:
    """Changes of the planned server's options: features that are not simulated are off."""
    place = ["--host", "127.0.0.1", "--port", str(port)]
    return [*place, "--log-level", "error", "--job-queue-size", "1000", "--speculation", "off"]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class HttpService:
    """Streams completions of the model `name`. Prompts have ids below half of `vocab_size`; special ones are above."""

    def __init__(self, url: str, name: str, vocab_size: int) -> None:
        self._target, self._name = read_target(url), name
        self._num_ids = max(vocab_size // 2, 1)
        self._dice = random.Random(0)

    async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        """See `calibrate.Service`. Uses a new connection, which is part of most clients' waiting time."""
        ids = [self._dice.randrange(self._num_ids) for _ in range(prompt_tokens)]
        asked = {"model": self._name, "prompt": ids, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps({**asked, "stream": True}).encode()
        client = HttpClient(self._target, {"connection": "close"})
        reader, sent_s = AnswerReader(_read_event), time.perf_counter()
        try:
            await client.post("/v1/completions", body, reader)
        except (OSError, NotHttp) as error:
            raise CalibrationFailed(f"the connection to the measured server broke off: {error}") from error
        finally:
            client.close()
        reader.finish(time.perf_counter())
        found = reader.answer
        if found.failure is not None or not found.piece_times_s:
            told = found.failure[1] if found.failure is not None else "an answer without tokens"
            raise CalibrationFailed(f"the measured server answered: {told}")
        return Answer(sent_s, found.piece_times_s)


def _read_event(answer: BenchAnswer, event: bytes, now_s: float) -> None:
    """Note the time of an event, even if its token has no text."""
    if event.startswith(b'{"error"'):
        answer.fail(json.loads(event))
    else:
        answer.piece_times_s.append(now_s)
