"""The log of a server: nobody waits for who reads it, and exceptions tell nothing of what clients sent."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dragoman.errors import ModelError
from dragoman.logs import BackgroundWriter, OperatorFormatter, hide_messages, start_logging, tell_task, write_to

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


class TestWriting:
    def test_who_logs_does_not_wait_for_a_pipe_that_nobody_reads(self) -> None:
        with pipe() as (reading, stream):
            writer = BackgroundWriter(stream, max_chars=200_000)
            for number in range(10_000):
                writer.write(f"line {number:05}".ljust(99) + "\n")  # a megabyte; the pipe takes 64 KiB
            received = os.read(reading, 65_536)  # somebody reads again
            while b"last" not in received:
                if b"were dropped" in received:
                    writer.write("last\n")
                received += os.read(reading, 65_536)
        lines = received.decode().splitlines()
        num_dropped = sum(int(line.split()[0]) for line in lines if "dropped" in line)
        kept = [int(line.split()[1]) for line in lines if line.startswith("line ")]
        assert kept == sorted(kept)
        assert kept[0] == 0
        assert len(kept) + num_dropped == 10_000
        assert len(kept) < 4000

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
