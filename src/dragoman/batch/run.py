"""Runs a batch: sends the unanswered requests, many at once, and writes each answer as it comes. On the event loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from dragoman import __version__
from dragoman.batch.files import (
    Answered,
    AnswerFile,
    BadLine,
    BatchError,
    BatchRequest,
    RequestIndex,
    answer_line,
    bad_line,
    numbered_lines,
    read_line,
    usage_of,
)
from dragoman.coroutines import cancel_all

SYNC_S = 1.0  # see `answers`
BUSY = (429, 503)
MAX_REPEATS = 12  # of a request to a busy server: with the delays below, about five minutes
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
PATIENCE_S = 60.0  # a server that answers nothing for this long is gone

# On /v1/chat/completions the client's name selects one of two formats; batches are OpenAI's.
USER_AGENT = f"dragoman-batch/{__version__} (openai)"


class Unreachable(Exception):
    """There was no answer; a retry may help."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. `headers`: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Sender(Protocol):
    """Sends requests and returns their answers."""

    async def send(self, path: str, body: bytes) -> Answer:
        """The answer to `POST path`. Raises: Unreachable; BatchError if every further request would fail too."""
        ...


@dataclass(slots=True)
class Tally:
    """Counts of a batch. `num_before`, `num_errors_before`: of earlier runs. `num_errors` includes `num_bad` lines."""

    num_lines: int
    num_before: int = 0
    num_errors_before: int = 0
    num_answered: int = 0
    num_errors: int = 0
    num_bad: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    @property
    def num_done(self) -> int:
        return self.num_before + self.num_answered + self.num_errors

    @property
    def num_left(self) -> int:
        return self.num_lines - self.num_done

    @property
    def has_errors(self) -> bool:
        """True if the file of answers holds errors."""
        return bool(self.num_errors or self.num_errors_before)


Watch = Callable[[Tally], None]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    requests: Path
    answers: AnswerFile
    index: RequestIndex
    tally: Tally


def open_files(requests: Path, answers: AnswerFile, *, retries_errors: bool) -> BatchFiles:
    """Read both files. `retries_errors`: remove answers with errors. Raises: BatchError if they do not match, OSError."""
    index = RequestIndex(requests)
    tally = _noted(requests, answers, index)
    if retries_errors and tally.num_errors_before:
        answers.drop(lambda answer: answer.is_error)
        index.is_answered[:] = False
        tally = _noted(requests, answers, index)
    return BatchFiles(requests, answers, index, tally)


def _noted(requests: Path, answers: AnswerFile, index: RequestIndex) -> Tally:
    """Mark the answered lines in the index, and count them. Raises: BatchError, OSError."""
    tally = Tally(index.num_lines)
    read: deque[Answered] = deque()  # whose keys are looked up together

    def keys() -> Iterator[bytes]:
        for answer in answers.answered():
            read.append(answer)
            yield answer.key

    for is_there, was_answered in index.note_answers(keys()):
        answer = read.popleft()
        if not is_there or was_answered:
            raise BatchError(_misplaced(answer, requests, answers.path, is_there=is_there))
        tally.num_before += 1
        tally.num_errors_before += answer.is_error
    return tally


def _misplaced(answer: Answered, requests: Path, answers: Path, *, is_there: bool) -> str:
    shown = "" if answer.custom_id is None else " " + msgspec.json.encode(answer.custom_id).decode()
    which = f"custom_id{shown}" if shown else "a line without custom_id"
    wrong = "is answered there twice" if is_there else f"is not in {requests}"
    place = f"{answers} line {answer.line}"
    return f"{place}: {which} {wrong}; must be the answers of that file, or a file that is not there yet"


@dataclass(slots=True)
class Batch:
    """One run over the files. `watch` is called after each answer. `patience_s`: the longest time without any answer."""

    files: BatchFiles
    sender: Sender
    concurrency: int
    watch: Watch
    patience_s: float = PATIENCE_S

    async def run(self) -> Tally:
        """Send all unanswered requests. Cancelling keeps answers. Raises: BatchError if going on is useless; OSError."""
        begin = time.monotonic()
        tally = self.files.tally
        left = self._left()
        syncing = asyncio.create_task(self._sync_regularly())
        workers = [
            asyncio.create_task(self._work(left)) for _ in range(min(self.concurrency, self.files.index.num_left))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            await cancel_all((*workers, syncing))
            tally.seconds = time.monotonic() - begin
            await asyncio.to_thread(self.files.answers.sync)
        return tally

    def _left(self) -> Iterator[BatchRequest | BadLine]:
        """The unanswered requests in the order of the file, read one by one."""
        index = self.files.index
        lines = zip(index.is_answered, numbered_lines(self.files.requests), strict=False)  # the file may grow meanwhile
        for is_answered, (number, line) in lines:
            if not is_answered:
                yield read_line(number, line)

    async def _work(self, left: Iterator[BatchRequest | BadLine]) -> None:
        """Answer one line after the other; all workers take from the same `left`."""
        tally = self.files.tally
        for entry in left:
            if isinstance(entry, BadLine):
                self.files.answers.add(bad_line(entry))
                tally.num_bad += 1
                tally.num_errors += 1
                await asyncio.sleep(0)  # a file of bad lines must not block other tasks
            else:
                answer = await self._answer(entry)
                request_id = answer.headers.get("x-request-id", "")
                self.files.answers.add(answer_line(entry.custom_id, answer.status, request_id, answer.body))
                self._count(answer)
            self.watch(tally)

    async def _answer(self, request: BatchRequest) -> Answer:
        """Raises: BatchError."""
        num_repeats, delay_s, failing_since = 0, FIRST_DELAY_S, 0.0
        while True:
            wait_s = delay_s
            try:
                answer = await self.sender.send(request.path, request.body)
            except Unreachable as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since >= self.patience_s:
                    raise BatchError(f"{error}; gave up after {self.patience_s:g} s") from error
            else:
                failing_since = 0.0
                num_repeats += 1
                if answer.status not in BUSY or num_repeats > MAX_REPEATS:
                    return answer
                wait_s = _asked_delay(answer) or delay_s
            await asyncio.sleep(wait_s * random.uniform(0.75, 1.25))  # not all at once
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    def _count(self, answer: Answer) -> None:
        tally = self.files.tally
        if answer.status >= 400:
            tally.num_errors += 1
            return
        tally.num_answered += 1
        usage = usage_of(answer.body)
        tally.prompt_tokens += usage["input"]
        tally.completion_tokens += usage["output"]

    async def _sync_regularly(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            await asyncio.to_thread(self.files.answers.sync)


def _asked_delay(answer: Answer) -> float | None:
    """The delay that a busy server asks for, in seconds; None without a number."""
    value = answer.headers.get("retry-after", "")
    return min(float(value), MAX_DELAY_S) if value.isdecimal() else None
