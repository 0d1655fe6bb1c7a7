"""The log of a server: nobody waits for who reads it, and exceptions tell nothing of what clients sent."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dragoman.errors import ModelError
from dragoman.logs import BackgroundWriter, OperatorFormatter, hide_messages, start_logging, tell_task, write_to
from tests.support.patience import PATIENCE_S

SECRET = "my ssn 078"


@contextmanager
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """Both ends of a pipe."""
    reading, writing = os.pipe()
    stream = open(writing, "w")  # noqa: SIM115  # closed below
    try:
        yield reading, stream
    finally:
        os.close(reading)
        stream.close()


def read(reading: int) -> bytes:
    """What comes next, which must not take long."""
    assert select.select([reading], [], [], PATIENCE_S)[0]
    return os.read(reading, 65_536)


def counts_of(received: bytes) -> tuple[int, int]:
    """How many whole lines came, and how many are told to have been dropped."""
    lines = received.decode().splitlines(keepends=True)
    dropped = [int(line.split()[0]) for line in lines if line.endswith("\n") and "dropped" in line]
    return sum(line.startswith("line ") and line.endswith("\n") for line in lines), sum(dropped)


class TestWriting:
    def test_who_logs_does_not_wait_for_a_pipe_that_nobody_reads(self) -> None:
        with pipe() as (reading, stream):
            writer = BackgroundWriter(stream, max_chars=200_000)
            for number in range(10_000):
                writer.write(f"line {number:05}".ljust(99) + "\n")  # a megabyte; the pipe takes 64 KiB
            received = b""
            while sum(counts_of(received)) < 10_000:  # somebody reads again
                received += read(reading)
        kept = [int(line.split()[1]) for line in received.decode().splitlines() if line.startswith("line ")]
        assert kept == sorted(kept)
        assert kept[0] == 0
        assert sum(counts_of(received)) == 10_000
        assert len(kept) < 4000

    def test_lines_that_were_dropped_behind_the_last_one_that_is_written_are_told_at_once(self) -> None:
        with pipe() as (reading, stream):
            writer = BackgroundWriter(stream, max_chars=100_000)
            writer.write("first".ljust(99_999) + "\n")  # the thread cannot write all of it
            received = os.read(reading, 1)
            writer.write("second\n")
            while b"1 lines of the log were dropped" not in received:
                received += read(reading)

    def test_a_full_disk_stops_nobody_and_lines_are_counted(self) -> None:
        with open("/dev/full", "w") as full:
            writer = BackgroundWriter(full)
            writer.write("lost\n")
            writer.drain()
            assert write_to(full, "lost as well\n") == "No space left on device"
            assert write_to(full, "it leads nowhere now\n") == ""
        target = io.StringIO()
        assert write_to(target, "here\n") == ""
        assert target.getvalue() == "here\n"

    def test_lines_come_in_their_order_from_all_threads(self) -> None:
        target = io.StringIO()
        writer = BackgroundWriter(target)
        threads = [threading.Thread(target=lambda: [writer.write(f"{one}\n") for one in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.drain()
        assert sorted(map(int, target.getvalue().split())) == sorted(list(range(200)) * 4)


def failed() -> BaseException:
    """An exception that cites a client, in every way that there is."""
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            try:
                raise ValueError(f"again {SECRET}")
            except ValueError:
                raise ExceptionGroup(SECRET, [error, RuntimeError(SECRET)]) from None
    except ExceptionGroup as error:
        try:
            raise RuntimeError(SECRET) from error
        except RuntimeError as last:
            last.add_note(SECRET)
            return last


def line_of(name: str, error: BaseException, formatter: OperatorFormatter) -> str:
    record = logging.LogRecord(name, logging.ERROR, "", 0, "it failed", None, (type(error), error, None))
    return formatter.format(record)


class TestExceptions:
    @pytest.mark.parametrize(
        "name", ["dragoman.server", "dragoman.hooks", "dragoman.engine.x", "asyncio", "uvicorn.error"]
    )
    def test_those_of_requests_are_told_by_type_and_place(self, name: str) -> None:
        text = line_of(name, failed(), OperatorFormatter())
        assert SECRET not in text
        assert "builtins.KeyError (its message may hold" in text
        assert text.count("in failed") >= 2
        assert SECRET in line_of(name, failed(), OperatorFormatter(shows_values=True))

    def test_those_of_the_operators_are_told_whole(self) -> None:
        assert SECRET in line_of("dragoman.host", failed(), OperatorFormatter())
        assert SECRET in line_of("dragoman.server.run", failed(), OperatorFormatter())
        expected = line_of("dragoman.host", ModelError("config.json: no"), OperatorFormatter((ModelError,)))
        assert expected.endswith("it failed\nconfig.json: no")

    def test_other_programs_formatters_tell_no_more(self) -> None:
        kept = logging.getLogRecordFactory()
        try:
            hide_messages()
            error = failed()
            for name, is_whole in (("dragoman.server", False), ("ray.serve", False), ("dragoman.host", True)):
                exc_info = (type(error), error, error.__traceback__)
                record = logging.getLogger(name).makeRecord(name, logging.ERROR, "", 0, "it failed", (), exc_info)
                assert (SECRET in logging.Formatter().format(record)) is is_whole
        finally:
            logging.setLogRecordFactory(kept)

    def test_what_nobody_catches_in_a_thread_or_task_is_told_likewise(self) -> None:
        target, root = io.StringIO(), logging.getLogger()
        kept = root.handlers[:], root.level, threading.excepthook
        writer = BackgroundWriter(target)

        def fail() -> None:
            raise KeyError(SECRET)

        async def lose() -> None:
            asyncio.get_running_loop().set_exception_handler(tell_task)

            async def fail_later() -> None:
                fail()

            task = asyncio.create_task(fail_later())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            del task

        try:
            start_logging(writer, OperatorFormatter(), "info")
            thread = threading.Thread(target=fail, name="worker")
            thread.start()
            thread.join()
            asyncio.run(lose())
            writer.drain()
        finally:
            root.handlers[:], root.level, threading.excepthook = kept
        text = target.getvalue()
        assert "the thread worker ended" in text
        assert "never retrieved" in text
        assert text.count("builtins.KeyError (its message") == 2
        assert SECRET not in text
