"""Runs `dragoman batch`: answers a file of requests, by a model loaded here or by a server elsewhere.

Handles signals, progress and errors; `dragoman.batch` runs the batch. Called by `main`, on the main thread.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from typing import TextIO

from dragoman.batch.files import AnswerFile, BatchError
from dragoman.batch.run import USER_AGENT, Answer, Batch, BatchFiles, Sender, Tally, Unreachable, open_files
from dragoman.cli.batch import BatchArguments
from dragoman.cli.progress import REDRAW_S, StatusLine
from dragoman.cli.subcommand import Console
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import ModelError, ServerError
from dragoman.server.process import handle_once
from dragoman.tools.bench.client import Collected, HttpClient, NotHttp, read_target

FAILURES = (BatchError, ConfigError, ModelError, ServerError, OSError)
HAS_ERRORS = 3
SIGNALLED = 128  # plus a signal's number: the exit code of a process that it ended
FILLS_ENGINE = 2  # times max_num_seqs: equally many wait, so that each finished request is replaced at once
CONCURRENCY_ELSEWHERE = 32  # of a server with unknown options
REFUSED = (401, 403)
TIMEOUT_S = 3600.0  # for an answer; bounds silently dead connections
_LINE_S = 30.0  # between lines of progress without a terminal


def run(config: Config | None, arguments: BatchArguments, console: Console) -> int:
    """Answer the file and return the exit code: 0, or 3 if there are errors among the answers.

    128 and a signal's number = that signal stopped it. `config` None = the server at `asked.url` answers.
    """
    with AnswerFile(arguments.answers) as answers:
        console.display("reading", 0.0)
        files = open_files(arguments.requests, answers, retries_errors=arguments.retry_errors)
        console.display.finish()
        with asyncio.Runner() as runner:
            stopped_by = runner.run(_run(config, arguments, files, console))
    console.stdout.write(_summary(files.tally))
    if stopped_by is not None:
        console.tell(f"stopped; the same command goes on with the {files.tally.num_left} lines that are left")
        return SIGNALLED + stopped_by
    return HAS_ERRORS if files.tally.has_errors else 0


async def _run(config: Config | None, arguments: BatchArguments, files: BatchFiles, console: Console) -> int | None:
    """Run the batch. Returns the signal that stopped it, None = it is finished. Raises: the errors that `run` reports."""
    task = asyncio.current_task()
    assert task is not None
    found: list[int] = []
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        found.append(number)
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)  # a second signal ends at once; the file has only whole lines
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
        handle_once(number)
    try:
        await _asked_all(config, arguments, files, console)
    except asyncio.CancelledError:
        if not found:
            raise
        return found[0]
    return None


async def _asked_all(config: Config | None, arguments: BatchArguments, files: BatchFiles, console: Console) -> None:
    if not files.tally.num_left:
        return
    progress = AnswerDisplay(console.stderr)
    sender: Sender
    async with AsyncExitStack() as stack:
        if config is None:
            concurrency = CONCURRENCY_ELSEWHERE
            sender = stack.enter_context(
                closing(HttpSender(str(arguments.url), console.variables.get("DRAGOMAN_API_KEY", "")))
            )
        else:
            from dragoman.cli.local_app import app_sender  # imports the server, which takes a second

            concurrency = FILLS_ENGINE * config.engine.max_num_seqs
            sender = await stack.enter_async_context(app_sender(config, console.display))
        stack.callback(progress.finish)
        await Batch(files, sender, arguments.concurrency or concurrency, progress).run()


class HttpSender:
    """Sends requests over reused connections. Raises: BatchError for a malformed `url` or a refused key."""

    def __init__(self, url: str, api_key: str) -> None:
        try:
            target = read_target(url)
        except ValueError as error:
            raise BatchError(f"--url={url} (command line): {error}") from None
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._url, self._prefix = url, target.path.removesuffix("/v1")
        self._client = HttpClient(target, {"user-agent": USER_AGENT, **key})

    async def send(self, path: str, body: bytes) -> Answer:
        answer = Collected()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._client.post(self._prefix + path, body, answer)
        except (OSError, NotHttp) as error:
            raise Unreachable(f"{self._url} does not answer: {error or type(error).__name__}") from error
        if answer.status in REFUSED:
            text = answer.body[:300].decode("utf-8", "replace").strip()
            hint = "set the variable DRAGOMAN_API_KEY to a key that it takes"
            raise BatchError(f"{self._url} answered {answer.status}: {' '.join(text.split())}; {hint}")
        return Answer(answer.status, answer.headers, answer.body)

    def close(self) -> None:
        """Close the connections. A cancelled call has closed its own, which ends the request at the server."""
        self._client.close()


class AnswerDisplay:
    """Shows the number of answered lines: redrawn on a terminal, elsewhere as occasional plain lines."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = StatusLine(stream)
        self._clock = clock
        self._begin_s = self._drawn_s = clock()
        self._begin_done: int | None = None

    def __call__(self, tally: Tally) -> None:
        now = self._clock()
        if self._begin_done is None:
            self._begin_done = tally.num_before
        if now - self._drawn_s < (REDRAW_S if self._line.is_terminal else _LINE_S):
            return
        self._drawn_s = now
        line = _progress_line(tally, now - self._begin_s, self._begin_done)
        if self._line.is_terminal:
            self._line.draw(line)
        else:
            self._line.end(f"{line}\n")

    def finish(self) -> None:
        self._line.end()


_BAR = 24


def _progress_line(tally: Tally, seconds: float, num_before: int) -> str:
    part = tally.num_done / tally.num_lines
    bar = ("#" * round(_BAR * part)).ljust(_BAR, ".")
    errors = f", {tally.num_errors} errors" if tally.num_errors else ""
    left_s = seconds * tally.num_left / max(1, tally.num_done - num_before)
    rate = tally.completion_tokens / max(seconds, 1e-9)
    speed = f", {rate:.0f} tokens/s" if tally.completion_tokens else ""
    return f"  [{bar}] {tally.num_done} of {tally.num_lines}{errors}{speed}, {_time(left_s)} left"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _summary(tally: Tally) -> str:
    counts = [f"{tally.num_answered} answered"]
    if tally.num_errors:
        bad = f", {tally.num_bad} of them lines that cannot be asked" if tally.num_bad else ""
        counts.append(f"{tally.num_errors} with errors{bad}")
    if tally.num_before:
        errors = f" ({tally.num_errors_before} with errors)" if tally.num_errors_before else ""
        counts.append(f"{tally.num_before} before{errors}")
    if tally.num_left:
        counts.append(f"{tally.num_left} left")
    line = f"{tally.num_lines} lines: {', '.join(counts)}; {tally.seconds:.1f} s"
    if tally.prompt_tokens or tally.completion_tokens:
        total = tally.prompt_tokens + tally.completion_tokens
        line += f", {tally.prompt_tokens} prompt and {tally.completion_tokens} completion tokens"
        line += (
            f", {tally.completion_tokens / tally.seconds:.0f} completion tokens/s ({total / tally.seconds:.0f} of all)"
        )
    return line + "\n"
