"""Answers that are fetched later: a call with `x-synchronous: false` is answered at once, with a token to poll with.

Runs such a call as if its client waited, records its answer, hands the record out piece by piece. On the event loop.
Source: LMI's front end, asynchronous results (`x-synchronous`, `x-next-token`, `x-starting-token`, `x-max-items`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.coroutines import cancel_all
from dragoman.errors import InvalidRequest, Overloaded
from dragoman.server.api import TEXT_MEDIA_TYPE, Head, HttpCall, Reply
from dragoman.server.apis.lmi.errors import bad_request, front_error
from dragoman.server.http.exchange import Exchange, RecordedAnswer
from dragoman.server.operations import Proceed, Server

SYNCHRONOUS = "x-synchronous"
STARTING_TOKEN = "x-starting-token"
MAX_ITEMS = "x-max-items"
NEXT_TOKEN = "x-next-token"
HANDLER = "handler"
_FIELDS = frozenset({SYNCHRONOUS, STARTING_TOKEN, HANDLER})

CUSTOM_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"

MAX_RECORDS = 1000  # as many as LMI's job queue takes by default
MAX_BYTES = 256 * 2**20  # of all answers together
RETENTION_S = 900.0  # how long an answer that is complete waits for the next poll

# Of a recorded head, what belongs to the connection and not to the answer.
_CONNECTION_HEADERS = ("content-length", "x-request-id", "content-type", "trailer")

_TOKEN = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-([0-9]{1,9}))?")  # the first has no position

logger = logging.getLogger("dragoman.server")


class _Record(RecordedAnswer):
    """The answer of one call. `caller`: the key whose it is."""

    def __init__(self, touched_s: float, caller: str) -> None:
        super().__init__()
        self.touched_s = touched_s
        self.caller = caller
        self.task: asyncio.Task[None] | None = None


class DeferredAnswers:
    """Beyond `max_records`, or `max_bytes`, the oldest complete answers are forgotten. `clock`: seconds, monotonic."""

    def __init__(
        self,
        max_records: int = MAX_RECORDS,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._clock = clock
        self._records: dict[str, _Record] = {}

    @classmethod
    def of(cls, server: object) -> DeferredAnswers:
        return cls()

    def start(self, exchange: Exchange, work: Proceed) -> Reply:
        """Begin `work` on a detached exchange; the answer is empty and carries the first token. Raises: Overloaded."""
        self._make_room()
        token = str(uuid.uuid4())
        record = self._records[token] = _Record(self._clock(), exchange.caller)
        record.task = asyncio.create_task(self._run(record, work, exchange.detached(record.send)))
        return Reply(200, b"", TEXT_MEDIA_TYPE, _token_headers(token))

    def poll(self, http: HttpCall, caller: str = "") -> tuple[Reply, bool]:
        """The items since the token was made, 202 if there are none yet; True if the answer broke off. May be repeated.

        Raises: InvalidRequest for a bad token, such as one of another caller.
        """
        written = http.headers[STARTING_TOKEN].strip()
        match = _TOKEN.fullmatch(written)
        token, position = (match[1], int(match[2] or 0)) if match else ("", 0)
        record = self._records.get(token)
        if record is None or record.caller != caller or position > len(record.items):
            raise InvalidRequest(f"Invalid {STARTING_TOKEN}: {written}")
        limit = http.headers.get(MAX_ITEMS, "")
        if limit and not re.fullmatch(r"[1-9][0-9]{0,8}", limit):
            raise InvalidRequest(f"{MAX_ITEMS} must be an integer of at least 1, got {limit!r}")
        record.touched_s = self._clock()
        end = min(len(record.items), position + int(limit)) if limit else len(record.items)
        is_last = end == len(record.items) and record.is_over
        if end == position and not is_last:
            return Reply(202, b"", "", _token_headers(written)), False
        headers = {name: value for name, value in record.headers.items() if name not in _CONNECTION_HEADERS}
        headers |= {} if is_last else _token_headers(f"{token}-{end}")
        reply = Reply(record.status, b"".join(record.items[position:end]), record.media_type, headers)
        return reply, is_last and record.is_cut

    async def aclose(self) -> None:
        tasks = [record.task for record in self._records.values() if record.task is not None]
        self._records.clear()
        await cancel_all(tasks)

    async def _run(self, record: _Record, work: Proceed, exchange: Exchange) -> None:
        try:
            await work(exchange)
        except Exception:  # request boundary, as in the app: a defect must not leave a record that never ends
            logger.exception("request %s to %s failed", exchange.request_id, exchange.path)
            if not exchange.is_started:
                await exchange.send_reply(front_error(500, "InternalServerException", "Internal server error"))
        finally:
            record.end()
            record.touched_s = self._clock()

    def _make_room(self) -> None:
        expired_s = self._clock() - RETENTION_S
        complete = deque(token for token, record in self._records.items() if record.is_over)
        for token in [token for token in complete if self._records[token].touched_s < expired_s]:
            del self._records[token]
            complete.remove(token)
        while (problem := self._problem()) is not None:
            if not complete:
                raise Overloaded(f"Too many asynchronous requests are running: {problem}; try again later")
            del self._records[complete.popleft()]

    def _problem(self) -> str | None:
        if len(self._records) >= self._max_records:
            return f"{self._max_records} are allowed"
        if sum(record.size_bytes for record in self._records.values()) >= self._max_bytes:
            return f"their answers may take {self._max_bytes} bytes"
        return None


@dataclass(frozen=True, slots=True)
class Polling:
    """The step before a call. `wrap_refusal`: the shape that the operation gives to the front end's refusals."""

    wrap_refusal: Callable[[Reply], Reply] = lambda reply: reply

    async def __call__(self, exchange: Exchange, http: HttpCall, server: Server, proceed: Proceed) -> bool:
        """Answer a poll, or start a call whose answer is polled for; False for a call that is to take its common path."""
        if _FIELDS.isdisjoint(http.headers):
            return False
        deferred = server.shared(DeferredAnswers.of)
        try:
            if http.headers.get(STARTING_TOKEN):
                await _send(exchange, *deferred.poll(http, exchange.caller))
            elif HANDLER in http.headers:
                raise InvalidRequest("The handler can't be overridden in a request")
            elif http.headers.get(SYNCHRONOUS, "").lower() == "false":
                await exchange.send_reply(deferred.start(exchange, proceed))
            else:
                return False
        except InvalidRequest as error:
            await exchange.send_reply(self.wrap_refusal(bad_request(error.message)))
        return True


async def _send(exchange: Exchange, reply: Reply, is_cut: bool) -> None:
    if not is_cut:
        return await exchange.send_reply(reply)
    await exchange.send_head(Head(reply.media_type, reply.status, reply.headers))
    await exchange.send_chunk(reply.body)
    return await exchange.cut()


def _token_headers(token: str) -> dict[str, str]:
    """The next token, also where SageMaker lets a container's own values through."""
    return {NEXT_TOKEN: token, CUSTOM_ATTRIBUTES: f"{NEXT_TOKEN}={token}"}
