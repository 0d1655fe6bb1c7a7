"""`GET /debug/requests` and `POST /cancel/{request_id}`, on the event loop. They show no prompts."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Literal

import msgspec

from dragoman.errors import NotFound
from dragoman.server.api import HttpCall
from dragoman.server.describe.answers import json_teller
from dragoman.server.error_kinds import statuses
from dragoman.server.observation.record import CallRecord
from dragoman.server.operations import Server
from dragoman.server.progress import ToldProgress, progress_of


class Failure(msgspec.Struct):
    """The body of an error."""

    error: str


ERRORS = json_teller(
    statuses(overloaded=503, cancelled=500, engine_dead=500), Failure, lambda error, http: Failure(error.message)
)

_LOOK_S = 0.15
_MOST_LOOKS = 3  # in whose time most steps end


class RunningCall(msgspec.Struct, frozen=True):
    """One call. `caller`: the name of its key. `age_s`: since it came; `since_last_token_s`: null = it has none yet.

    `progress`: how far it is while it waits; null = it has a token, or the engine does not tell.
    """

    id: str
    api: str
    path: str
    caller: str
    model: str
    state: Literal["waiting", "running"]
    requests: int
    age_s: float
    since_last_token_s: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    progress: ToldProgress | None = None


class CancelledCalls(msgspec.Struct, frozen=True):
    """The number of calls with that id that were told to end."""

    cancelled: int


async def cancel_call(http: HttpCall, server: Server) -> CancelledCalls:
    request_id = http.path_params["request_id"]
    if not server.watch.cancel(request_id):
        raise NotFound(f"no request {request_id[:100]!r} is running", param="request_id")
    return CancelledCalls(1)


async def running_calls(http: HttpCall, server: Server) -> list[RunningCall]:
    progress = _progress(server)
    for _ in range(_MOST_LOOKS):
        if None not in progress.values():
            break
        await asyncio.sleep(_LOOK_S)  # the engine looks when it is asked
        progress = _progress(server)
    now_s = perf_counter()
    return [_told(record, now_s, progress.get(id(record))) for record in server.watch.running]


def _progress(server: Server) -> dict[int, ToldProgress | None]:
    """The progress of calls that wait for an engine which reports it, by their records' identities; None = not known yet."""
    found: dict[int, ToldProgress | None] = {}
    for record in server.watch.running:
        model = server.models.get(record.model)
        waiting = [request for request in record.requests if request.prepared_s is not None and not request.event_s]
        if model is not None and model.profile.tells_progress and waiting:
            found[id(record)] = progress_of(model.service, [request.request_id for request in waiting])
    return found


def _told(record: CallRecord, now_s: float, progress: ToldProgress | None) -> RunningCall:
    last_s = max((times[-1] for request in record.requests for times in request.event_s), default=None)
    return RunningCall(
        id=record.call_id,
        api=record.api,
        path=record.path,
        caller=record.caller,
        model=record.model,
        state="waiting" if last_s is None else "running",
        requests=len(record.requests),
        age_s=round(now_s - record.begin_s, 3),
        since_last_token_s=None if last_s is None else round(now_s - last_s, 3),
        prompt_tokens=record.num_prompt_tokens,
        cached_tokens=record.num_cached_tokens,
        completion_tokens=record.num_completion_tokens,
        progress=progress,
    )
