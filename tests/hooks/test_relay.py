"""The way back from a handler: order, room, and what a writer learns when nobody reads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dragoman.server.apis.lmi.operator.handlers import MAX_WAITING, Abandoned, End, Relay
from tests.hooks.test_pool import in_loop
from tests.support.patience import PATIENCE_S, until


class Writer:
    """Puts numbered pieces from a thread of its own."""

    def __init__(self, relay: Relay, num_pieces: int) -> None:
        self.num_put = 0
        self.was_abandoned = False
        self._relay = relay
        self._num_pieces = num_pieces
        self.thread = threading.Thread(target=self._write, daemon=True)
        self.thread.start()

    def _write(self) -> None:
        try:
            for number in range(self._num_pieces):
                self._relay.put(b"%d" % number)
                self.num_put += 1
        except Abandoned:
            self.was_abandoned = True


@in_loop
async def test_pieces_arrive_in_their_order() -> None:
    relay = Relay()
    writer = Writer(relay, MAX_WAITING * 3)
    assert [await relay.get() for _ in range(MAX_WAITING * 3)] == [b"%d" % number for number in range(MAX_WAITING * 3)]
    await asyncio.to_thread(writer.thread.join, PATIENCE_S)
    relay.put_last(End())
    assert isinstance(await relay.get(), End)


@in_loop
async def test_a_slow_reader_holds_the_writer_back() -> None:
    relay = Relay()
    writer = Writer(relay, MAX_WAITING * 2)
    await until(lambda: writer.num_put == MAX_WAITING)
    for taken in range(1, MAX_WAITING + 1):
        assert writer.num_put <= MAX_WAITING + taken
        await relay.get()
    await until(lambda: writer.num_put == MAX_WAITING * 2)


@in_loop
async def test_a_writer_that_waits_learns_that_nobody_reads() -> None:
    relay = Relay()
    writer = Writer(relay, MAX_WAITING * 2)
    await until(lambda: writer.num_put == MAX_WAITING)
    relay.close()
    await until(lambda: writer.was_abandoned)
    with pytest.raises(Abandoned):
        relay.put(b"more")
    with pytest.raises(Abandoned):
        await relay.put_soon(b"more")


@in_loop
async def test_a_writer_on_an_event_loop_waits_for_room_too() -> None:
    relay = Relay()
    for _ in range(MAX_WAITING):
        await relay.put_soon(b"")
    waiting = asyncio.create_task(relay.put_soon(b"last"))
    pieces = [await relay.get() for _ in range(MAX_WAITING + 1)]
    assert pieces[-1] == b"last"
    await waiting


def test_a_loop_that_was_closed_has_no_reader() -> None:
    async def make() -> Relay:
        return Relay()

    relay = asyncio.run(make())
    with pytest.raises(Abandoned):
        relay.put(b"")
