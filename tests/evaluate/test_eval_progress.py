"""`dragoman eval` shows how far it is on stderr, and keeps stdout for what it found."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from demo.corpus.mix import sample_document
from dragoman.cli import main
from dragoman.config.resolve import demo_model_dir

DEMO = demo_model_dir()
NUM_TOKENS = 2048


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """An evaluation in many windows, so that reading takes many times as long as a line stays on a terminal."""
    stream = Random(1)
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>".join("".join(part for part, _ in sample_document(stream)) for _ in range(60)))
    words = [sys.executable, "-m", "dragoman", "eval", str(DEMO), "--cache-dir", str(tmp_path), "--dtype", "f32"]
    return [*words, "--text", str(text), "--tokens", str(NUM_TOKENS), "--window", "64", "--json"]


def test_a_terminal_shows_how_far_the_reading_is_and_the_answer_is_json_alone(command: list[str]) -> None:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []
    watcher = threading.Thread(target=_watch, args=(ours, shown))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)  # or the terminal never ends
        watcher.start()
        assert process.stdout is not None
        answer = process.stdout.read()
        watcher.join()
        assert process.wait() == 0
    os.close(ours)

    lines = b"".join(shown).decode().split("\x1b[K")
    reading = [line for line in lines if line.startswith("  reading ...")]
    assert reading[0] == "  reading ...\r"  # nothing is done yet, and the next one is drawn over it
    done = [int(match[1]) for line in reading if (match := re.fullmatch(r"  reading \.\.\. +(\d+)%\r", line))]
    assert len(done) == len(reading) - 1
    assert done == sorted(done)
    assert done, "nothing was shown between the beginning and the end"
    assert re.fullmatch(r"  reading: \d+\.\d s\r\n", lines[-1])
    assert answer.count(b"\n") == 1
    assert json.loads(answer)["num_tokens"] == _num_scored()


def _watch(terminal: int, shown: list[bytes]) -> None:
    """Take what is shown until nobody holds the other end."""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux's way of telling that
            return
        if not part:
            return
        shown.append(part)


def _num_scored() -> int:
    """The first token of a window foretells nothing: nothing stands before it."""
    return NUM_TOKENS - NUM_TOKENS // 64


def test_elsewhere_each_stage_is_one_plain_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command[3:]) == 0
    out, errors = capsys.readouterr()
    assert json.loads(out)["num_tokens"] == _num_scored()
    assert "\x1b" not in errors
    assert "\r" not in errors
    stages = [line.strip().partition(": ") for line in errors.splitlines() if line.startswith("  ")]
    assert re.fullmatch(r"\d+\.\d s", stages[-1][2])
    assert [name for name, _, _ in stages].count("reading") == 1
    assert stages[-1][0] == "reading"
