"""A terminal that a test types into and looks at: a session of tmux, on a server of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

PATIENCE_S = 60.0
POLL_S = 0.05

HAS_TMUX = shutil.which("tmux") is not None


class Pane:
    """The terminal. Everything that was on it since the start is seen."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def type(self, text: str) -> None:
        """Type the text as it is."""
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names: Enter, C-c, Escape."""
        self._tmux("send-keys", *keys)

    def enter(self, text: str) -> None:
        """Type a line and end it, once the terminal shows the line."""
        self.type(text)
        self.wait_for(text)
        self.press("Enter")

    def text(self) -> str:
        """What is seen, with the lines that a narrow terminal had broken joined again."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def wait_for(self, *texts: str, times: int = 1) -> str:
        """What is seen once it holds each of the texts, `times` times each. Raises: AssertionError if it never does."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(self.text().count(text) >= times for text in texts):
            assert time.monotonic() < deadline_s, f"waited for {texts}; seen:\n{self.text()}"
            time.sleep(POLL_S)
        return self.text()

    def wait_for_end(self) -> int:
        """The exit code of the command. Raises: AssertionError if it does not end."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (told := self._tmux("display-message", "-p", "#{?pane_dead,#{pane_dead_status},}").strip()):
            assert time.monotonic() < deadline_s, f"still runs; seen:\n{self.text()}"
            time.sleep(POLL_S)
        return int(told)

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self._socket, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


@contextmanager
def terminal(command: Sequence[str], environ: Mapping[str, str], *, width: int = 160) -> Iterator[Pane]:
    """A terminal that runs `command` with nothing in its environment but `environ` and what finds programs."""
    socket = f"dragoman-{uuid.uuid4().hex[:8]}"
    base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "screen-256color"}
    variables = [f"{name}={value}" for name, value in {**base, **environ}.items()]
    line = shlex.join(["exec", "env", "-i", *variables, *command])
    subprocess.run(
        ["tmux", "-L", socket, "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", "50", line,
         ";", "set-option", "-g", "remain-on-exit", "on"],
        check=True, timeout=30, env={**os.environ, "LANG": "C.UTF-8"},
    )  # fmt: skip
    try:
        yield Pane(socket)
    finally:
        subprocess.run(["tmux", "-L", socket, "kill-server"], check=False, timeout=30)
