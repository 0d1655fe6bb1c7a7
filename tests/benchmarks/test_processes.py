"""Processes under measurement: they start, answer, pause, and say why they died."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from benchmarks.serving.processes import JsonWorker, ProcessFailed, Server, ServerProcess
from benchmarks.serving.turns import Contender, take_turns
from tests.support.server_process import free_port

ECHO = """
import json, os, sys
print("a library says hello")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked == {"die": True}:
        sys.exit("Error: asked to die")
    print(json.dumps({"asked": asked, "pid": os.getpid()}), flush=True)
"""

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def worker(directory: Path) -> JsonWorker:
    return JsonWorker("echo", [sys.executable, "-c", ECHO], directory)


def state(pid: int) -> str:
    """The kernel's letter for what a process is doing: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_answers_each_question(tmp_path: Path) -> None:
    with worker(tmp_path) as echo:
        assert echo.ask({"number": 1})["asked"] == {"number": 1}
        assert echo.ask({"number": 2})["asked"] == {"number": 2}
        assert echo.rss_bytes() > 2**20


def test_a_paused_process_stands_still_outside_its_turn_only(tmp_path: Path) -> None:
    with worker(tmp_path) as echo:
        pid = echo.ask({})["pid"]
        with echo.awake():
            assert state(pid) != "T"
            assert echo.ask({})["pid"] == pid
        assert state(pid) == "T"


def test_a_worker_that_dies_is_told_with_what_it_said_last(tmp_path: Path) -> None:
    with worker(tmp_path) as echo:
        with pytest.raises(ProcessFailed, match="echo ended with code 1: Error: asked to die"):
            echo.ask({"die": True})
        with pytest.raises(ProcessFailed, match="asked to die"):
            echo.check_alive()


def test_a_server_is_ready_when_it_answers_and_gone_when_it_is_left(tmp_path: Path) -> None:
    server = Server("small", [sys.executable, "-c", SERVER, port := str(free_port())], int(port), "openai")
    with ServerProcess(server, tmp_path) as process:
        assert process.ready_s > 0
        with socket.create_connection(("127.0.0.1", int(port))):
            pass
    with pytest.raises(ProcessFailed, match="small ended"):
        process.check_alive()


def test_a_server_that_does_not_start_is_told_with_its_message(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('Error: this processor is too old')"]
    with pytest.raises(ProcessFailed, match="old ended with code 1: Error: this processor is too old"):
        ServerProcess(Server("old", command, free_port(), "openai"), tmp_path)


def test_contenders_take_turns_and_one_that_dies_is_left_out(tmp_path: Path) -> None:
    order: list[str] = []

    def turn(process: JsonWorker, name: str, question: dict[str, bool]) -> float:
        order.append(name)
        return float(process.ask(question)["pid"] > 0)

    with worker(tmp_path / "a") as first, worker(tmp_path / "b") as second:
        lasting = Contender("lasting", first, lambda: turn(first, "lasting", {}))
        dying = Contender("dying", second, lambda: turn(second, "dying", {"die": True}))
        take_turns([lasting, dying], 3, str)
    assert order == ["lasting", "dying", "lasting", "lasting"]
    assert lasting.runs == [1.0, 1.0, 1.0]
    assert not lasting.failure
    assert "asked to die" in dying.failure


def test_an_interrupt_keeps_what_was_measured_once_there_is_a_whole_round(tmp_path: Path) -> None:
    def interrupted_after(num_runs: int) -> list[float]:
        def turn() -> float:
            if len(contender.runs) == num_runs:
                raise KeyboardInterrupt
            return 1.0

        with worker(tmp_path) as process:
            contender = Contender("one", process, turn)
            take_turns([contender], 5, str)
        return contender.runs

    assert interrupted_after(2) == [1.0, 1.0]
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(0)
