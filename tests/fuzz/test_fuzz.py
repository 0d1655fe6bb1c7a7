"""Some hundred spoiled requests of every API: none fails in the server, hangs, or changes what another one is told."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.fuzz import described
from tests.fuzz.__main__ import main
from tests.fuzz.cases import DOCUMENT, OPERATIONS, Case, Maker
from tests.fuzz.files import Reader
from tests.fuzz.files import run as run_files
from tests.fuzz.run import Answer, Run
from tests.fuzz.talks import Talk
from tests.fuzz.target import Target, running_target
from tests.support.tables import table

NUM_CASES = 450
NUM_FILES = 30


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with running_target() as target:
        yield target


def test_every_answer_is_a_documented_one_and_nobody_else_is_hurt(target: Target) -> None:
    run = Run(target.server.port, Maker(random.Random(5)), NUM_CASES)
    report = asyncio.run(run.run())
    assert report.problems == []
    assert (report.num_cases, target.idle_state(), target.defects.texts) == (NUM_CASES, {}, [])
    assert report.num_canaries > 1
    assert report.num_talks > NUM_CASES // 10
    assert report.statuses[200] > NUM_CASES // 20  # what is spoiled is not all spoiled at the door
    assert report.statuses[400] > NUM_CASES // 20


def test_files_that_are_nearly_right_are_taken_or_refused_in_a_line() -> None:
    report = run_files(random.Random(5), NUM_FILES)
    assert report.problems == []
    assert min(report.num_taken, report.num_refused) > NUM_FILES // 10


def test_a_file_that_ends_its_reader_is_found(tmp_path: Path) -> None:
    reader = Reader()
    try:
        assert reader.read(tmp_path / "missing") is not None
        assert reader._process is not None
        reader._process.kill()
        reader._process.wait()
        assert reader.read(tmp_path / "missing") is None
        assert reader.read(tmp_path / "missing") is not None
    finally:
        reader.end()


def test_equal_dice_make_equal_cases_of_every_operation() -> None:
    first, second = Maker(random.Random(3)), Maker(random.Random(3))
    cases = [first.case() for _ in range(6000)]
    assert cases[:100] == [second.case() for _ in range(100)]
    reached = {(case.operation.method, case.operation.path) for case in cases if case.operation}
    assert reached == {(operation.method, operation.path) for operation in OPERATIONS}


@table(
    ("answer", "kind"),
    [
        (Answer(500, "application/json", [], b"{}", is_whole=True), "500"),
        (Answer(418, "application/json", [], b"{}", is_whole=True), "undocumented status"),
        (Answer(422, "application/json", [], b'{"oops": 1}', is_whole=True), "undocumented body"),
        (Answer(422, "text/html", [], b"<p>", is_whole=True), "undocumented body"),
        (Answer(200, "application/json", [], b"{", is_whole=False), "cut"),
        (Answer(), "unanswered"),
        (Answer(200, "application/json", [(b"X-Evil", b"1")], b"{}", is_whole=True), "injection"),
    ],
)
def test_what_the_fuzz_looks_for_it_finds(answer: Answer, kind: str) -> None:
    run = Run(0, Maker(random.Random(0)), 0)
    maker = Maker(random.Random(1))
    case = next(case for case in iter(maker.case, None) if case.operation and case.operation.path == "/generate")
    assert run.problem(case, answer).startswith(kind)
    assert "/generate" in DOCUMENT["paths"]


CLOSE = (b"connection", b"close")


@table(
    ("is_odd", "answers", "kind"),
    [
        (False, [Answer(200, "", [], b"", is_whole=True)] * 2, "unanswered"),
        (False, [Answer(200, "", [CLOSE], b"", is_whole=True)] * 2, "answered on"),
        (
            False,
            [Answer(200, "", [], b"", is_whole=True)] * 2 + [Answer(200, "", [CLOSE], b"", is_whole=True)],
            "smuggling",
        ),
        (True, [Answer(200, "", [], b"", is_whole=True)] * 2 + [Answer(200, "", [CLOSE], b"", is_whole=True)], "odd"),
        (False, [Answer(200, "", [CLOSE, (b"x-request-id", b"smuggled")], b"", is_whole=True)], "smuggling"),
        (False, [Answer(200, "", [CLOSE], b"", is_whole=False)], "cut"),
        (False, [], "unanswered"),
        (False, [Answer(404, "", [CLOSE], b"", is_whole=True)], ""),
        (True, [Answer(200, "", [], b"", is_whole=True)] * 2 + [Answer(400, "", [CLOSE], b"", is_whole=True)], ""),
    ],
)
def test_what_the_fuzz_looks_for_on_a_connection_it_finds(is_odd: bool, answers: list[Answer], kind: str) -> None:
    run = Run(0, Maker(random.Random(0)), 0)
    found = run.talk_problem(Talk((Case("GET", "/none"), Case("GET", "/none")), (), is_odd), answers)
    assert found.startswith(kind)
    assert bool(found) is bool(kind)


def test_the_dice_are_those_of_schemathesis_too(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were ignored: every run of it made the same requests."""
    monkeypatch.setattr(described, "running_target", lambda **_: nullcontext(target))
    command: list[str] = []

    def run(words: list[str], *, check: bool) -> CompletedProcess[str]:
        command.extend(words)
        return CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("sys.argv", ["fuzz", "--schemathesis", "tool", "--dice", "7"])
    assert main() == 0
    assert command[command.index("--seed") + 1] == "7"
