"""The door of a model: who is let in, who is told to come again when, and when it is idle."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from dragoman.errors import Overloaded
from dragoman.server.admission import Admission, QueueBounds
from dragoman.server.observation.record import CallRecord, RequestRecord
from dragoman.types import ChatPrompt, GenerationRequest, Standing, TextPrompt, TokenPrompt


def record_of(caller: str = "") -> CallRecord:
    return CallRecord("c", "openai", "/", caller=caller)


def prompt(text: str, **fields: int) -> GenerationRequest:
    return GenerationRequest("r", TextPrompt(text), **fields)  # type: ignore[arg-type]


def tokenised(record: CallRecord, num_tokens: int) -> RequestRecord:
    """A request of the call whose prompt has been found to have so many tokens; as the service does it."""
    request = RequestRecord("r", num_queued_tokens=num_tokens)
    record.requests.append(request)
    record.take(record, request)
    return request


def test_a_call_that_goes_on_at_once_with_another_permit_is_not_taken_for_gone() -> None:
    async def test() -> None:
        admission = Admission("m")
        with admission.permit():
            idle = asyncio.create_task(admission.wait_idle())
            await asyncio.sleep(0)
        with admission.permit():
            for _ in range(5):
                await asyncio.sleep(0)
            assert not idle.done()
        await idle

    asyncio.run(test())


def test_prompt_tokens_that_wait_are_bounded_by_their_exact_number() -> None:
    admission = Admission("m", bounds=QueueBounds(max_tokens=100))
    with ExitStack() as calls:
        first, second, third = record_of(), record_of(), record_of()
        calls.enter_context(admission.permit(1, first, [prompt("a")]))
        waiting = tokenised(first, 60)
        calls.enter_context(admission.permit(1, second, [prompt("b")]))
        with pytest.raises(Overloaded, match="60 prompt tokens are waiting, 100 allowed; this call has at least 41"):
            tokenised(second, 41)
        tokenised(second, 40)
        with (
            pytest.raises(Overloaded, match="100 prompt tokens are waiting"),
            admission.permit(1, third, [prompt("c")]),
        ):
            pass
        with pytest.raises(Overloaded):
            admission.check()
        waiting.num_queued_tokens = 0  # its first output is there
        calls.enter_context(admission.permit(1, third, [prompt("c")]))
        tokenised(third, 60)


def test_a_prompt_that_is_surely_too_long_is_refused_before_it_is_tokenised() -> None:
    admission = Admission("m", bounds=QueueBounds(max_tokens=100, max_token_chars=10))
    first = record_of()
    with admission.permit(1, first, [prompt("a")]):
        tokenised(first, 50)
        long = GenerationRequest("r", ChatPrompt(({"role": "user", "content": "x" * 510},)))
        for refused in (prompt("x" * 510), GenerationRequest("r", TokenPrompt((1,) * 51)), long):
            with (
                pytest.raises(Overloaded, match="this call has at least 51"),
                admission.permit(1, record_of(), [refused]),
            ):
                pass
        for taken in (prompt("x" * 500), prompt("x" * 5000, truncate_prompt_tokens=50)):
            with admission.permit(1, record_of(), [taken]):
                pass


def test_a_call_longer_than_the_bound_is_taken_when_nobody_else_waits() -> None:
    admission = Admission("m", bounds=QueueBounds(max_tokens=100))
    record = record_of()
    with admission.permit(2, record, [prompt("x" * 1000), prompt("y")]):
        tokenised(record, 1000)
    assert admission.is_idle


def test_each_caller_has_so_many_requests_in_flight_and_no_more() -> None:
    admission = Admission("m", bounds=QueueBounds(max_of_caller=2))
    with admission.permit(1, record_of("a")), admission.permit(1, record_of("a")):
        with pytest.raises(Overloaded, match="2 requests of key a in flight, 2 allowed for each key"):
            admission.check(record_of("a"))
        with admission.permit(2, record_of("b")), pytest.raises(Overloaded, match="of key b"):
            admission.check(record_of("b"))
        with admission.permit(2, record_of()), pytest.raises(Overloaded, match=r"\(2 requests in flight"):
            admission.check()
    with admission.permit(5, record_of("a")):  # one call is taken whole
        pass


def test_who_is_refused_leaves_nothing_behind() -> None:
    admission = Admission("m", max_running=1, max_queued=0, bounds=QueueBounds(10, 1))
    for _ in range(3):
        record = record_of("a")
        with admission.permit(1, record, [prompt("x")]):
            with pytest.raises(Overloaded), admission.permit(1, record_of("b"), [prompt("x")]):
                pass
            tokenised(record, 10)
        assert admission.num_in_flight == 0
        assert admission.is_idle


def test_work_that_can_wait_takes_no_room_from_others() -> None:
    admission = Admission("m", max_running=1, max_queued=1)
    waiting = CallRecord("w", "openai", "/", standing=Standing(is_background=True))
    with ExitStack() as calls:
        for _ in range(2):
            calls.enter_context(admission.permit(1, waiting))
        with pytest.raises(Overloaded, match="2 requests in flight, 2 allowed"):
            admission.check(waiting)
        for _ in range(2):
            calls.enter_context(admission.permit(1, CallRecord("c", "openai", "/")))
        with pytest.raises(Overloaded, match="2 requests in flight, 2 allowed"):
            admission.check()
        assert admission.num_in_flight == 4
    assert admission.is_idle
