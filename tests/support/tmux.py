"""A terminal that a test types into and looks at: a session of tmux, on a server of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.support.patience import PATIENCE_S

POLL_S = 0.05
_END = re.compile(r"^\[exit code (\d+)\]$", re.MULTILINE)

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

    def enter(self, text: str, *, behind: str = ">") -> None:
        """Wait for the prompt, type a line, and end it once the terminal shows it."""
        self.wait_for_prompt(behind)
        self.type(text)
        if text:
            self._wait_until(lambda seen: seen.rstrip().endswith(text.rstrip()), text)
        self.press("Enter")

    def wait_for_prompt(self, prompt: str = ">") -> None:
        """Until the last line is the prompt, with nothing behind it: what is typed earlier may get lost."""
        self._wait_until(lambda seen: seen.rstrip().rpartition("\n")[2].endswith(prompt), prompt)

    def text(self) -> str:
        """What is seen, with the lines that a narrow terminal had broken joined again."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def wait_for(self, *texts: str, times: int = 1) -> str:
        """What is seen once it holds each of the texts, `times` times each. Raises: AssertionError if it never does."""
        return self._wait_until(lambda seen: all(seen.count(text) >= times for text in texts), texts)

    def wait_for_end(self) -> int:
        """The exit code of the command. Raises: AssertionError if it does not end."""
        seen = self._wait_until(lambda seen: _END.search(seen) is not None, "the end")
        return int(_END.findall(seen)[-1])

    def _wait_until(self, is_there: Callable[[str], bool], what: object) -> str:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_there(seen := self.text()):
            assert time.monotonic() < deadline_s, f"waited for {what}; seen:\n{seen}"
            time.sleep(POLL_S)
        return seen

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self._socket, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


@contextmanager
def terminal(command: Sequence[str], environ: Mapping[str, str], *, width: int = 160) -> Iterator[Pane]:
    """A terminal that runs `command` with nothing in its environment but `environ` and what finds programs."""
    socket = f"dragoman-{uuid.uuid4().hex[:8]}"
    base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "screen-256color"}
    variables = [f"{name}={value}" for name, value in {**base, **environ}.items()]
    # A shell tells the exit code, which tmux itself now and then misses; Ctrl-C reaches it too, and must not end it.
    line = f'trap : INT; {shlex.join(["env", "-i", *variables, *command])}; echo "[exit code $?]"'
    subprocess.run(
        ["tmux", "-L", socket, "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", "50", line,
         ";", "set-option", "-g", "remain-on-exit", "on"],
        check=True, timeout=30, env={**os.environ, "LANG": "C.UTF-8"},
    )  # fmt: skip
    try:
        yield Pane(socket)
    finally:
        subprocess.run(["tmux", "-L", socket, "kill-server"], check=False, timeout=30)
