"""Sends cases and holds every answer to the document, while a canary's answers must not change.

Does: send over sockets, a connection for each case, and several on one; check statuses, bodies, ends and times; count.
Does not: make cases.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httptools

from dragoman.server.operations import Operation
from tests.fuzz.cases import DOCUMENT, Case, Maker, shown
from tests.fuzz.talks import Talk, make_talk
from tests.support.api_document import Checker

PATIENCE_S = 30.0  # for one answer
NUM_SHOWN = 20
# Of what is unknown, or refused before there is an operation, no path's description speaks.
COMMON_STATUSES = frozenset({400, 404, 405, 413, 431})
ODD_STATUSES = frozenset({400, 408, 413, 431, 505})  # of what cannot be read
TALK_SHARE = 0.15  # of connections, those on which several requests are sent
CANARY_BODY = {"model": "fake", "prompt": "tweet", "max_tokens": 24, "temperature": 0.7, "seed": 11, "logprobs": 1}


@dataclass
class Answer:
    """What came back. `is_whole`: its end was seen."""

    status: int = 0
    media_type: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers.append((name, value))
        if name.lower() == b"content-type":
            self.media_type = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        """Called by the parser."""
        self.body += piece

    def on_message_complete(self) -> None:
        """Called by the parser; also at the end of `100 Continue`."""
        self.is_whole = True


async def send(port: int, case: Case) -> Answer:
    """The answer to a case. Raises: TimeoutError, httptools.HttpParserError if it is no HTTP."""
    answer = Answer()
    parser = httptools.HttpResponseParser(answer)
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(case.head() + case.body)
            while piece := await reader.read(65_536):
                if case.method != "HEAD":
                    parser.feed_data(piece)
                    answer.status = parser.get_status_code()
                elif not answer.status:
                    answer.status, answer.is_whole = int(piece.split(b" ", 2)[1]), True
        except ConnectionResetError:
            pass  # an answer that had begun is not whole then
        finally:
            writer.close()
    return answer


class _Answers:
    """All answers on one connection, in their order."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, piece: bytes) -> None:
        """Raises: httptools.HttpParserError if it is no HTTP."""
        self._parser.feed_data(piece)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self.answers.append(Answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.answers[-1].on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.answers[-1].status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """Called by the parser."""
        self.answers[-1].on_body(piece)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.answers[-1].is_whole = True


async def hold_talk(port: int, talk: Talk) -> list[Answer]:
    """The answers on a connection. Raises: TimeoutError, httptools.HttpParserError if it is no HTTP."""
    received = _Answers()
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in talk.pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            while not talk.is_left and (piece := await reader.read(65_536)):
                received.feed(piece)
        except (ConnectionResetError, BrokenPipeError):
            pass
        finally:
            writer.close()
    return received.answers


@dataclass
class Report:
    """What was found. `problems`: the first of each kind, as lines."""

    num_cases: int = 0
    num_talks: int = 0
    num_canaries: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    num_problems: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, kind: str, problem: str) -> None:
        """Count it, and keep it if it is among the first of its kind."""
        self.num_problems[kind] += 1
        if self.num_problems[kind] <= NUM_SHOWN:
            self.problems.append(f"{kind}: {problem}")


class Run:
    """One run: so many cases from so many clients at once."""

    def __init__(self, port: int, maker: Maker, num_cases: int, num_clients: int = 8) -> None:
        self.report = Report()
        self._port = port
        self._maker = maker
        self._num_left = num_cases
        self._num_clients = num_clients
        self._checker = Checker(DOCUMENT)
        self._is_over = asyncio.Event()

    async def run(self) -> Report:
        """All cases, with the canary beside them."""
        begin = time.perf_counter()
        canary = asyncio.create_task(self._canary())
        await asyncio.gather(*(self._client() for _ in range(self._num_clients)))
        self._is_over.set()
        await canary
        self.report.seconds = time.perf_counter() - begin
        return self.report

    async def _client(self) -> None:
        while self._num_left > 0:
            self._num_left -= 1
            if self._maker.dice.random() < TALK_SHARE:
                await self._try_talk(make_talk(self._maker))
            await self._try(self._maker.case())

    async def _try_talk(self, talk: Talk) -> None:
        try:
            answers = await hold_talk(self._port, talk)
        except TimeoutError:
            problem = "hang: "
        except httptools.HttpParserError as error:
            problem = f"no HTTP: {error}"
        else:
            self.report.num_talks += 1
            problem = "" if talk.is_left else self.talk_problem(talk, answers)
        if problem:
            kind, _, detail = problem.partition(": ")
            sent = b"".join(talk.pieces)[:3000].decode("latin-1")
            self.report.add(kind, f"{detail} {json.dumps([len(one) for one in talk.pieces])} {json.dumps(sent)}")

    def talk_problem(self, talk: Talk, answers: list[Answer]) -> str:
        """What is wrong with the answers on a connection, "" if nothing is."""
        for case, answer in zip(talk.requests, answers, strict=False):
            if problem := self.problem(case, answer):
                return f"{problem} -> {answer.status} {answer.body[:300]!r}"
        names = [value for answer in answers for name, value in answer.headers if name == b"x-request-id"]
        if b"smuggled" in names or b"trailer" in names:
            return "smuggling: what is no request was answered, or a trailer believed"
        ended = [any(pair == (b"connection", b"close") for pair in answer.headers) for answer in answers]
        if any(ended[:-1]):
            return "answered on: after an answer that ends the connection"
        if ended[-1:] != [True]:
            return f"unanswered: {len(answers)} answers, and the connection ended"
        most = len(talk.requests) + talk.is_odd
        if len(answers) > most:
            return f"smuggling: {len(answers)} answers to {most} requests"
        if len(answers) == most and talk.is_odd and answers[-1].status not in ODD_STATUSES:
            return f"odd: {answers[-1].status} for what cannot be read"
        return ""

    async def _try(self, case: Case) -> None:
        begin = time.perf_counter()
        try:
            answer = await send(self._port, case)
        except TimeoutError:
            self.report.add("hang", shown(case))
            return
        except httptools.HttpParserError as error:
            self.report.add("no HTTP", f"{error}: {shown(case)}")
            return
        report = self.report
        report.num_cases += 1
        report.slowest_s = max(report.slowest_s, time.perf_counter() - begin)
        report.statuses[answer.status] += 1
        problem = self.problem(case, answer)
        if problem:
            kind, _, detail = problem.partition(": ")
            report.add(kind, f"{detail} {shown(case)} -> {answer.status} {answer.body[:300]!r}")

    def problem(self, case: Case, answer: Answer) -> str:
        """What is wrong with an answer, "" if nothing is."""
        if not answer.status:
            return "unanswered: the connection ended"
        if not answer.is_whole:
            return "cut: the answer has no end"
        if answer.status == 500 or answer.status > 503:
            return f"{answer.status}: a server's fault"
        if any(name.lower() == b"x-evil" for name, _ in answer.headers):
            return "injection: a header of the client's"
        is_described = case.operation is not None and case.method != "HEAD"
        return self._undocumented(case.operation, answer) if is_described and case.operation else _unusual(answer)

    def _undocumented(self, operation: Operation, answer: Answer) -> str:
        key = (operation.method, operation.path)
        if key[1] not in DOCUMENT["paths"]:
            return ""
        responses = DOCUMENT["paths"][key[1]][key[0].lower()]["responses"]
        if str(answer.status) not in responses:
            return "undocumented status: "
        try:
            self._checker.check_answer(key, answer.status, answer.media_type, answer.body)
        except (AssertionError, ValueError) as error:
            return f"undocumented body: {str(error)[:600]}"
        return ""

    async def _canary(self) -> None:
        """A request that is sent all the time, streamed and whole: what it says is always the same."""
        expected: dict[bool, Any] = {}
        while not self._is_over.is_set():
            for is_stream in (False, True):
                body = json.dumps({**CANARY_BODY, "stream": is_stream}).encode()
                case = Case("POST", "/v1/completions", (("content-type", "application/json"),), body)
                try:
                    answer = await send(self._port, case)
                except TimeoutError:
                    self.report.add("hang", "the canary")
                    continue
                said = _said(answer, is_stream=is_stream)
                self.report.num_canaries += 1
                if answer.status != 200 or expected.setdefault(is_stream, said) != said:
                    self.report.add("canary", f"{answer.status} {said!r} instead of {expected.get(is_stream)!r}")


def _unusual(answer: Answer) -> str:
    """The same for a path or method that was changed: an operation's own answer, or one of those that all paths have."""
    is_usual = (
        answer.status < 400 or answer.status in COMMON_STATUSES or answer.status in (403, 412, 422, 424, 501, 503)
    )
    return "" if is_usual else f"unusual status: {answer.status}"


def _said(answer: Answer, *, is_stream: bool) -> Any:
    """The text and the log-probabilities of an answer."""
    if not is_stream:
        choice = json.loads(answer.body)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]
    events = [event.removeprefix("data: ") for event in answer.body.decode().split("\n\n") if event]
    choices = [json.loads(event)["choices"][0] for event in events if event != "[DONE]"]
    return "".join(choice["text"] for choice in choices)
