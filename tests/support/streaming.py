"""A request's events, one after the other, of services whose `run` hands them over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from dragoman.server.generation.call_events import CallEvents
from dragoman.server.registry import GenerationService
from dragoman.types import GenerationEvent, GenerationRequest


async def stream_of(service: GenerationService, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
    """The events as they come; closing it aborts the request. Raises: what the request fails with, behind its events."""
    running = CallEvents(service, [request])
    running.start(never)
    try:
        while batch := await running.next_batch():
            for _, event in batch:
                yield event
    finally:
        await running.aclose()


async def never() -> Exception:
    """The client stays."""
    await asyncio.Event().wait()
    raise AssertionError("an event that is never set was set")
