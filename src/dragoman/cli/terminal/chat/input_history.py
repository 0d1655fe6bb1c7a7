"""Keeps typed entries in a file that only its owner can read: one line of JSON per entry, the oldest first."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

MAX_ENTRIES = 1000
_FILE = Path("dragoman") / "chat_history"


def history_path(environ: Mapping[str, str]) -> Path | None:
    """The path of the history file, by the XDG base directories; None without a home directory."""
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if os.path.isabs(state):  # the specification ignores relative paths
        return Path(state) / _FILE
    return Path(home) / ".local" / "state" / _FILE if home else None


class InputHistory:
    """The entries. `problem`: the reason why they are not kept, "" = they are. `path` None = keep nothing."""

    def __init__(self, path: Path | None) -> None:
        self.entries: list[str] = []
        self.problem = ""
        self._path = path
        if path is not None:
            try:
                self._begin(path)
            except OSError as error:
                self._give_up(error)

    def add(self, entry: str) -> None:
        if not entry.strip() or (self.entries and self.entries[-1] == entry):
            return
        self.entries.append(entry)
        if self._path is not None:
            try:
                _write(self._path, [entry], os.O_APPEND)
            except OSError as error:
                self._give_up(error)

    def _begin(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            path.chmod(0o600)
            self.entries = _read(path)
        else:
            _write(path, [], os.O_APPEND)
        if len(self.entries) > MAX_ENTRIES:
            self.entries = self.entries[-MAX_ENTRIES // 2 :]  # drop half, so that this is rare
            new = path.with_name(f"{path.name}.{os.getpid()}")
            _write(new, self.entries, os.O_TRUNC)
            new.replace(path)

    def _give_up(self, error: OSError) -> None:
        self.problem = f"what you type is not kept for the next time: {error.filename}: {error.strerror}"
        self._path = None


def _read(path: Path) -> list[str]:
    """The entries; skips malformed lines, such as of an interrupted write."""
    entries: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, str):
            entries.append(entry)
    return entries


def _write(path: Path, entries: list[str], flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(entry, ensure_ascii=True) + "\n" for entry in entries)
