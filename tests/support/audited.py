"""Has programs write down what they, and those that they start, do: connections, look-ups of names, files, processes.

The hook is Python's own (`sys.addaudithook`): it sees what Python code does, not what a compiled library does by itself.
So programs do without uvloop, which connects on its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

_HOOK = '''
"""Imported by every Python that starts with this folder on its path, before anything else."""
import json, os, sys

_log = os.open(os.environ["DRAGOMAN_TEST_DEEDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_NAMES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}
_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty", "os.spawn"}


def _deed(event, args):
    if event == "open":
        return isinstance(args[0], (str, bytes)) and args[2] & _WRITES and ("write", os.path.abspath(os.fsdecode(args[0])))
    if event in _NAMES:
        return isinstance(args[0], (str, bytes)) and ("write", os.path.abspath(os.fsdecode(args[0])))
    if event in ("socket.connect", "socket.sendto"):
        return "connect", args[1][0] if isinstance(args[1], tuple) else "a local socket"
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        return "look up", os.fsdecode(args[0] or "")
    return event in _STARTS and ("start", f"{event} {args[0] if args else ''}")


def _hook(event, args):
    deed = _deed(event, args)
    if deed:
        os.write(_log, (json.dumps(deed) + "\\n").encode())


sys.modules["uvloop"] = None
sys.addaudithook(_hook)
'''


@dataclass(frozen=True, slots=True)
class Audit:
    """Where programs run: `home` is their user's, `environ` is to be given to them."""

    directory: Path

    @property
    def home(self) -> Path:
        """The home directory, in which nothing is."""
        return self.directory / "home"

    @property
    def cache(self) -> Path:
        """Where dragoman keeps its files unless it is told otherwise."""
        return self.home / ".cache" / "dragoman"

    @property
    def environ(self) -> dict[str, str]:
        """Variables for every program, over those of the tests."""
        paths = [str(self.directory), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "HOME": str(self.home),
            "TMPDIR": str(self.directory / "temporary"),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DRAGOMAN_TEST_DEEDS": str(self.directory / "deeds"),
            **dict.fromkeys(("CI", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"), ""),
        }

    def deeds(self) -> list[tuple[str, str]]:
        """What was done, and to what, in the order of deeds."""
        lines = (self.directory / "deeds").read_text(encoding="utf-8").splitlines()
        return [(kind, what) for kind, what in map(json.loads, lines)]


def audited(directory: Path) -> Audit:
    """An audit whose programs have an empty home below `directory`."""
    for name in ("home", "temporary"):
        (directory / name).mkdir()
    (directory / "sitecustomize.py").write_text(_HOOK, encoding="utf-8")
    return Audit(directory)
