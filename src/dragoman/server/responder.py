"""Answers one inference call of any dialect: the only path from a parsed call to bytes on the wire. On the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import TypeVar
from urllib.parse import quote

import msgspec

from dragoman.coroutines import cancel_all, together
from dragoman.errors import (
    CapacityError,
    EngineFailed,
    InvalidPayload,
    InvalidRequest,
    Overloaded,
    QueueTimeout,
    ServerError,
    Unauthorized,
    UnsupportedCoding,
    WrongMethod,
)
from dragoman.server.api import (
    Call,
    CallSwitches,
    Dialect,
    ErrorTeller,
    Head,
    HttpCall,
    IndexedEvent,
    Opening,
    Reply,
    Runner,
    StreamedReply,
)
from dragoman.server.generation.call_events import CallEvents
from dragoman.server.http.exchange import ClientGone, Exchange
from dragoman.server.http.fields import STRICT_HEADER, Switches, refuse_ignored
from dragoman.server.observation.record import CallRecord, current_call, measure_of
from dragoman.server.registry import GenerationService, ServedModel
from dragoman.server.timings import (
    NO_TIMINGS,
    TIMINGS_HEADER,
    ShownTimings,
    ToldProgress,
    progress_of,
)
from dragoman.types import GenerationRequest, GenerationResult

T = TypeVar("T")

PROGRESS_S = 0.5  # between two reports of a prompt's progress

MAX_IGNORED_NAMES = 20  # the names are the client's own: they must not blow up the head
MAX_IGNORED_NAME_LENGTH = 100

OF_ONE_REQUEST = (InvalidRequest, CapacityError, EngineFailed)  # the other errors would meet any request

logger = logging.getLogger("dragoman.server")


async def respond(
    exchange: Exchange,
    model: ServedModel,
    dialect: Dialect,
    http: HttpCall,
    switches: Switches,
    record: CallRecord,
    begun: Call | None = None,
) -> None:
    """Parse `http`, generate, answer. Raises: ClientGone; answers all else.

    `begun`: the same call, parsed without its model, if its stream may have begun.
    """
    headers: Mapping[str, str] = {}
    try:
        model.admission.check(record)  # before any work is done for the call
        opening = dialect.open(http)
        if STRICT_HEADER in http.headers or TIMINGS_HEADER in http.headers:
            switches = switches.for_call(http.headers)
        if opening.answer is not None:
            with model.admission.permit(1, record):
                if await _answer(exchange, opening.answer(switches), http):
                    return
        call = await _parse(exchange, model, opening)
        check_number(call, model)
        if switches.is_strict:
            refuse_ignored(call.ignored)
        note_patience(call, record)
        headers = ignored_header(call.ignored)
        beside = _show_timings(call, record) if switches.has_timings else NO_TIMINGS
        with model.admission.permit(len(call.requests), record, call.requests):
            if call.stream:
                begun = call
                await _stream(exchange, model, call, record, beside, switches.keep_alive_s)
            else:
                work = generate_all(model.service, call.requests, call.labels)
                results = await run_unless_gone(exchange, work)
                reply = await _run(call.run_off_loop, partial(call.encoder.full, results))
                await exchange.send_reply(reply, {**headers, **_timings_fields(beside)})
    except ClientGone:
        raise
    except Exception as error:  # request boundary: one bad request must never touch another
        failure = record.error = as_server_error(error, http)
        if isinstance(failure, QueueTimeout):
            failure.retry_after_s = model.admission.retry_after_s()
        if exchange.is_started:
            await end_stream(exchange, begun, http, record)
        else:
            await exchange.send_reply(error_reply(dialect, failure, http), headers)


async def end_stream(exchange: Exchange, call: Call | None, http: HttpCall, record: CallRecord) -> None:
    """End a stream that has begun with the record's error. Cuts the connection where the stream cannot tell it."""
    last, failure = None, record.error
    if call is not None and failure is not None:
        try:
            last = call.encoder.stream_error(failure)
        except Exception as error:  # the encoder itself failed on a failure
            record.error = as_server_error(error, http)
    if last is None:
        await exchange.cut()
    else:
        await exchange.finish(last)


async def _stream(
    exchange: Exchange,
    model: ServedModel,
    call: Call,
    record: CallRecord,
    beside: ShownTimings,
    keep_alive_s: float,
) -> None:
    """Write events as they come. `beside`: timings for a trailer. `keep_alive_s`: the longest silence, 0 = any."""
    running = CallEvents(model.service, call.requests)
    running.start(exchange.wait_gone)
    due_s = None
    if exchange.is_started:  # the head went out while the call waited for its model
        due_s = partial(float, 0)  # at once
    elif call.is_head_fixed and (head_after_s := getattr(model.service, "head_after_s", None)) is not None:
        due_s = partial(_head_due_s, record, len(call.requests), head_after_s)
    try:
        await _write_events(exchange, running, call, due_s, beside, keep_alive_s)
    finally:
        await running.aclose()


async def _answer(exchange: Exchange, answer: Awaitable[Reply | StreamedReply | None], http: HttpCall) -> bool:
    """Send an answer that needs no generation; False if the call needs it. Raises: ClientGone."""
    made = await run_unless_gone(exchange, answer)
    if made is None:
        return False
    if isinstance(made, Reply):
        await exchange.send_reply(made)
    else:
        await send_streamed(exchange, made, http)
    return True


async def send_streamed(exchange: Exchange, made: StreamedReply, http: HttpCall) -> None:
    """Send an answer in pieces; a failure after the first becomes its last bytes. Raises: ClientGone."""
    last = b""
    async with aclosing(made.chunks):
        try:
            await run_unless_gone(exchange, _write_chunks(exchange, made))
        except ClientGone:
            raise
        except Exception as error:  # request boundary: the answer broke off
            if not exchange.is_started:
                raise
            failure = as_server_error(error, http)
            if (record := current_call()) is not None:
                record.error = failure
            last = made.stream_error(failure)
    await exchange.finish(last)  # nothing runs after it, see `_write_events`


def note_patience(call: Call, record: CallRecord) -> None:
    """Limit an unstreamed answer to the time for which its client waits for the first byte."""
    if record.timeout_s is None and not call.stream:
        record.timeout_s = record.patience_s


async def _write_chunks(exchange: Exchange, made: StreamedReply) -> None:
    await exchange.send_head(made.head)
    async for chunk in made.chunks:
        if chunk:
            await exchange.send_chunk(chunk)


async def _write_events(
    exchange: Exchange,
    running: CallEvents,
    call: Call,
    due_s: Callable[[], float] | None,
    beside: ShownTimings,
    keep_alive_s: float,
) -> None:
    has_head = exchange.is_started
    events = await running.first_batch(call.hold_s, due_s)
    head = call.encoder.head(events)
    if beside is not NO_TIMINGS:
        trailers = ", ".join(filter(None, (head.headers.get("trailer"), TIMINGS_HEADER)))
        head = msgspec.structs.replace(head, headers={**head.headers, "trailer": trailers})
    run = call.run_off_loop
    # Before the head is sent: a failure can still be a status.
    body = await _run(run if events else None, partial(_encode, call, events))
    if not has_head:
        await exchange.send_head(head, ignored_header(call.ignored))
    quiet = None if exchange.is_detached else _Quiet(running, call, head, keep_alive_s)
    try:
        while not running.is_finished:
            if body:
                await exchange.send_chunk(body)
                if quiet is not None:
                    quiet.spoke()
            events = await running.next_batch()
            body = _encode(call, events) if run is None or not events else await run(partial(_encode, call, events))
            if quiet is not None and not body and not running.is_finished:
                body = quiet.bytes(has_begun=bool(events))
    finally:
        if quiet is not None:
            quiet.close()
    body += call.encoder.end()
    await running.aclose()  # before the last bytes: a client that has them finds room for its next call
    await exchange.finish(body, (*call.encoder.trailers(), *_timings_fields(beside).items()))


class _Quiet:
    """Messages for a silent stream: the prompt's progress if the client asked for it, else bytes that clients ignore."""

    def __init__(self, running: CallEvents, call: Call, head: Head, keep_alive_s: float) -> None:
        self._call = call
        self._service = running.service
        self._pulse = call.encoder.keep_alive(head) if keep_alive_s else b""
        self._silence = _Silence(keep_alive_s, running.wake) if self._pulse else None
        self._ticks = _Silence(PROGRESS_S, running.wake) if call.wants_progress else None
        self._told: ToldProgress | None = None
        if call.wants_progress:
            self._look()  # so that the engine measures for the first tick

    def spoke(self) -> None:
        if self._silence is not None:
            self._silence.spoke()

    def bytes(self, *, has_begun: bool) -> bytes:
        """The bytes that are due. `has_begun`: the model has generated something, which cannot be shown yet."""
        if has_begun and self._ticks is not None:
            self._ticks.close()
            self._ticks = None
        if self._ticks is not None and self._ticks.is_due:
            self._ticks.spoke()
            told = self._look()
            if told is not None and told != self._told:
                self._told = told
                if progress := self._call.encoder.progress(told):
                    return progress
        return self._pulse if self._silence is not None and self._silence.is_due else b""

    def _look(self) -> ToldProgress | None:
        return progress_of(self._service, [request.request_id for request in self._call.requests])

    def close(self) -> None:
        for timer in (self._silence, self._ticks):
            if timer is not None:
                timer.close()


def _head_due_s(record: CallRecord, num_requests: int, after_s: float) -> float:
    """Seconds until a stream's head goes out without an event: by then a refusal is unlikely."""
    prepared = [request.prepared_s for request in record.requests if request.prepared_s is not None]
    if len(prepared) < num_requests:
        return after_s
    return max(prepared) + after_s - perf_counter()


def _show_timings(call: Call, record: CallRecord) -> ShownTimings:
    """Have the answer show its timings. Returns those to send as a header or trailer instead."""
    measure = measure_of(record, [request.request_id for request in call.requests])
    shown = ShownTimings(measure, sum(request.sampling.n for request in call.requests))
    return NO_TIMINGS if call.encoder.show_timings(shown) else shown


def _timings_fields(beside: ShownTimings) -> dict[str, str]:
    if beside is NO_TIMINGS:
        return {}
    return {TIMINGS_HEADER: msgspec.json.encode(beside.of()).decode()}


def _encode(call: Call, events: Sequence[IndexedEvent]) -> bytes:
    """All ready events as one piece: one system call instead of one for each token."""
    encode = call.encoder.event
    if len(events) == 1:
        index, event = events[0]
        return encode(index, event)
    return b"".join([encode(index, event) for index, event in events])


async def _parse(exchange: Exchange, model: ServedModel, opening: Opening) -> Call:
    """The parsed call. Raises: as the dialect, ClientGone."""
    if opening.run_off_loop is None:
        return opening.parse()
    with model.admission.visit():  # it has no permit yet, and the model may be replaced meanwhile
        return await run_unless_gone(exchange, opening.run_off_loop(opening.parse))


def check_number(call: Call, model: ServedModel) -> None:
    """Raises: InvalidPayload for more prompts than the operator allows."""
    num_prompts, most = len(call.requests), model.limits.max_prompts
    if num_prompts > most:
        raise InvalidPayload(f"A call may have at most {most} prompts here, got {num_prompts}", param="inputs")


async def _run(run: Runner | None, work: Callable[[], T]) -> T:
    return work() if run is None else await run(work)


async def generate_all(
    service: GenerationService, requests: Sequence[GenerationRequest], labels: Sequence[str] = ()
) -> list[GenerationResult]:
    """The results in order. The first failure cancels the other requests and is raised, with its request's label."""
    labels = labels or [""] * len(requests)
    if len(requests) == 1:
        return [await _generate(service, requests[0], labels[0])]
    return await together(_generate(service, request, label) for request, label in zip(requests, labels, strict=True))


async def _generate(service: GenerationService, request: GenerationRequest, label: str) -> GenerationResult:
    try:
        return await service.generate(request)
    except OF_ONE_REQUEST as error:
        raise (error.of(label) if label else error) from error


async def run_unless_gone(exchange: Exchange, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client leaves.

    Raises: ClientGone, the error that cancelled the call, or as `work`.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(exchange.wait_gone())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise gone.result()
        return task.result()
    finally:
        await cancel_all((task, gone))


def as_server_error(error: Exception, http: HttpCall) -> ServerError:
    """`error` if it is meant for clients, else an internal error; the defect is logged with its traceback."""
    if isinstance(error, ServerError):
        return error
    logger.error("request %s to %s failed", http.request_id, http.path, exc_info=error)
    return ServerError(f"Internal server error, see the server's log for request {http.request_id}")


def error_reply(dialect: ErrorTeller, error: ServerError, http: HttpCall) -> Reply:
    """The dialect's answer to `error`, with the headers that HTTP requires."""
    reply = dialect.error_reply(error, http)
    headers, status = dict(reply.headers), reply.status
    if isinstance(error, UnsupportedCoding):
        status = 415  # not in any API's document, but known to every HTTP client
        headers.setdefault("accept-encoding", error.taken)
    if isinstance(error, Overloaded):
        headers.setdefault("retry-after", str(error.retry_after_s))
    if isinstance(error, Unauthorized):
        headers.setdefault("www-authenticate", "Bearer")
    if isinstance(error, WrongMethod):
        headers.setdefault("allow", error.allow)
    return Reply(status, reply.body, reply.media_type, headers)


def note_ignored(switches: CallSwitches, names: Sequence[str]) -> dict[str, str]:
    """`ignored_header` of these names. Raises: InvalidParameter for a strict call."""
    if switches.is_strict:
        refuse_ignored(names)
    return ignored_header(names)


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """`x-dragoman-ignored` for parameters without effect; {} without any."""
    if not names:
        return {}
    # ASCII that separates or controls is encoded as well: a comma in a made-up name must not look like two names
    encoded = (quote(name[:MAX_IGNORED_NAME_LENGTH], safe="!#$&*+-.^_|~:@/()[]'") for name in names[:MAX_IGNORED_NAMES])
    return {"x-dragoman-ignored": ",".join(encoded)}


class _Silence:
    """Watches one stream. `is_due`: nothing was sent for `after_s` seconds. Calls `wake` when that becomes true."""

    __slots__ = ("_after_s", "_loop", "_spoke_s", "_timer", "_wake", "is_due")

    def __init__(self, after_s: float, wake: Callable[[], None]) -> None:
        self._after_s = after_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._spoke_s = self._loop.time()
        self._timer = self._loop.call_at(self._spoke_s + after_s, self._look)
        self.is_due = False

    def spoke(self) -> None:
        self._spoke_s = self._loop.time()
        self.is_due = False

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        due_s = self._spoke_s + self._after_s
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._look)
            return
        self.is_due = True
        self._timer = self._loop.call_later(self._after_s, self._look)  # once more, if the writer is held up meanwhile
        self._wake()
