"""What the store of responses keeps, for how long and for whom; and what it says of those that it has no more."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import NotFound
from dragoman.server.apis.responses.schema import Response, ToldFormat, ToldReasoning, ToldText
from dragoman.server.apis.responses.store import ResponseDisk, ResponseDocument, ResponseStore, StoreLimits

ITEMS = ({"type": "message", "id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},)


class Clock:
    """Seconds that a test lets pass."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def response_of(response_id: str, *, is_stored: bool = True) -> Response:
    return Response(
        id=response_id,
        created_at=1,
        status="completed",
        model="m",
        reasoning=ToldReasoning(),
        text=ToldText(ToldFormat("text")),
        store=is_stored,
    )


def keep(store: ResponseStore, caller: str = "", text: str = "", *, is_stored: bool = True) -> str:
    """Make and end a response; its id."""
    response = response_of(store.new_id(caller, is_stored=is_stored), is_stored=is_stored)
    store.begin(ResponseDocument.begun(response, ITEMS, caller, "call"))
    store.end(response, [{"type": "message", "id": f"msg_{response.id[5:]}o0", "text": text}])
    return response.id


def why(store: ResponseStore, response_id: str, caller: str = "") -> str:
    """Why there is no such response."""
    with pytest.raises(NotFound) as caught:
        store.get(response_id, caller)
    return caught.value.message


def test_a_stored_response_is_found_with_what_it_was_made_of() -> None:
    store = ResponseStore()
    response_id = keep(store, text="answer")
    kept = store.get(response_id, "")
    assert (kept.response.id, kept.items, kept.output[0]["text"]) == (response_id, ITEMS, "answer")


def test_the_longest_unused_goes_when_there_are_too_many() -> None:
    store = ResponseStore(StoreLimits(max_responses=2))
    first, second = keep(store), keep(store)
    store.get(first, "")
    third = keep(store)
    assert len(store) == 2
    assert store.get(first, "").response.id == first
    assert store.get(third, "").response.id == third
    assert "has expired (at most 2 responses" in why(store, second)


def test_the_longest_unused_go_when_they_are_too_large_together() -> None:
    store = ResponseStore(StoreLimits(max_size_bytes=20_000))
    ids = [keep(store, text="x" * 6_000) for _ in range(5)]
    assert 0 < store.size_bytes <= 20_000
    assert len(store) == 2
    assert "has expired" in why(store, ids[0])
    too_large = keep(store, text="x" * 30_000)
    assert "has expired" in why(store, too_large)
    assert len(store) == 2  # it pushed nobody out


def test_sizes_are_given_back() -> None:
    store = ResponseStore()
    for response_id in [keep(store, text="x" * 100) for _ in range(3)]:
        store.delete(response_id, "")
    assert (len(store), store.size_bytes) == (0, 0)


def test_a_response_goes_when_nobody_used_it_for_long_enough() -> None:
    clock = Clock()
    store = ResponseStore(StoreLimits(max_age_s=60), clock)
    used, unused = keep(store), keep(store)
    clock.now_s = 50
    store.get(used, "")
    clock.now_s = 100
    assert store.get(used, "").response.id == used
    assert "has expired (at most 1000 responses" in why(store, unused)
    assert "60 s after its last use" in why(store, unused)


def test_nothing_is_kept_where_nothing_may_be() -> None:
    store = ResponseStore(StoreLimits(max_responses=0))
    assert "has expired" in why(store, keep(store))


def test_it_is_told_apart_why_a_response_is_not_there() -> None:
    store = ResponseStore()
    deleted = keep(store)
    store.delete(deleted, "")
    assert "it was deleted, did not end, or has expired" in why(store, deleted)
    assert "store: false" in why(store, keep(store, is_stored=False))
    for never in ("resp_1", "resp_" + "0" * 48, "", "resp_" + "é" * 48, keep(ResponseStore())):
        assert "this server does not know it" in why(store, never)


def test_what_one_caller_stored_no_other_one_sees() -> None:
    store = ResponseStore()
    response_id = keep(store, "alice")
    assert store.get(response_id, "alice").response.id == response_id
    for other in ("bob", ""):
        assert "this server does not know it, or it belongs to another key" in why(store, response_id, other)
        with pytest.raises(NotFound, match="another key"):
            store.delete(response_id, other)
        with pytest.raises(NotFound, match="another key"):
            store.item(f"msg_{response_id[5:]}o0", other)
    assert len(store) == 1


def test_items_are_found_by_their_ids() -> None:
    store = ResponseStore()
    response_id = keep(store, text="answer")
    assert store.item(f"msg_{response_id[5:]}o0", "")["text"] == "answer"
    with pytest.raises(NotFound, match="has no item with that id"):
        store.item(f"msg_{response_id[5:]}o9", "")
    with pytest.raises(NotFound, match="did not make it"):
        store.item("msg_mine", "")
    store.delete(response_id, "")
    with pytest.raises(NotFound, match="has expired"):
        store.item(f"msg_{response_id[5:]}o0", "")


def test_a_running_response_is_its_caller_s_and_only_while_its_call_runs() -> None:
    calls = ["call"]
    store = ResponseStore(running_calls=lambda: calls)
    response = response_of(store.new_id("alice", is_stored=True))
    running = ResponseDocument.begun(response, ITEMS, "alice", "call")
    store.begin(running)
    assert store.running(response.id, "alice") is running
    assert store.running(response.id, "bob") is None
    calls.clear()
    assert store.running(response.id, "alice") is None


def test_calls_that_ended_without_a_word_are_forgotten() -> None:
    store = ResponseStore()
    for number in range(500):
        store.begin(ResponseDocument.begun(response_of(store.new_id("", is_stored=True)), ITEMS, "", f"call-{number}"))
    assert len(vars(store)["_running"]) < 100


def test_an_end_is_told_once() -> None:
    store = ResponseStore()
    response = response_of(store.new_id("", is_stored=True))
    store.begin(ResponseDocument.begun(response, ITEMS, "", "call"))
    cancelled: Any = response_of(response.id)
    cancelled.status = "cancelled"
    store.end(cancelled, [])
    store.end(response, [{"id": "late"}])
    kept = store.get(response.id, "")
    assert (kept.response.status, kept.output) == ("cancelled", ())


def test_what_an_earlier_process_kept_is_read_once_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []
    read = ResponseDisk.read

    def noted(disk: ResponseDisk) -> list[tuple[ResponseDocument, int]]:
        readers.append(threading.get_ident())
        return read(disk)

    monkeypatch.setattr(ResponseDisk, "read", noted)

    async def first() -> tuple[str, int]:
        store = ResponseStore(disk=ResponseDisk(tmp_path))
        await store.until_read()
        response_id = keep(store, text="answer")
        await store.aclose()
        return response_id, store.size_bytes

    async def second(response_id: str, size_bytes: int) -> None:
        store = ResponseStore(disk=ResponseDisk(tmp_path))
        await asyncio.gather(*(store.until_read() for _ in range(3)))
        assert (store.get(response_id, "").output[0]["text"], store.size_bytes) == ("answer", size_bytes)
        await store.aclose()

    asyncio.run(second(*asyncio.run(first())))
    assert len(readers) == 2
    assert threading.get_ident() not in readers


def test_files_that_cannot_be_read_are_tried_again(tmp_path: Path) -> None:
    class Failing(ResponseDisk):
        num_reads = 0

        def read(self) -> list[tuple[ResponseDocument, int]]:
            self.num_reads += 1
            if self.num_reads == 1:
                raise OSError("the disk is asleep")
            return super().read()

    async def read_twice() -> None:
        store = ResponseStore(disk=Failing(tmp_path))
        with pytest.raises(OSError, match="asleep"):
            await store.until_read()
        await store.until_read()
        await store.aclose()

    asyncio.run(read_twice())
