"""Reads typed messages: by the line editor of the extra `dragoman[terminal]`, else by readline.

Keeps them in a file that only its owner can read: one line of JSON per entry, the oldest first.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dragoman.errors import how_to_install

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

QUOTES = '"""'
MORE = "... "  # the prompt of a message's further lines
MAX_ENTRIES = 1000
_FILE = Path("dragoman") / "chat_history"
PLAIN_EDITOR_NOTE = f"{how_to_install('terminal')}: brings editing of several lines and completion of commands"

Complete = Callable[[str], Iterable[str]]
"""What a line that begins so could be: whole lines."""


class Dropped(Exception):
    """Ctrl-C dropped a partly typed entry."""


class LineEditor(Protocol):
    def read(self, prompt: str) -> str:
        """One entry. Raises: EOFError for Ctrl-D; for Ctrl-C Dropped after some text, else KeyboardInterrupt."""
        ...


def read_message(editor: LineEditor, history: InputHistory, prompt: str) -> str:
    """One message: an entry, and further ones if it ends with a backslash or begins with three quotes."""
    text = _joined(editor, editor.read(prompt))
    history.add(text)
    return text


def _joined(editor: LineEditor, entry: str) -> str:
    if entry.lstrip().startswith(QUOTES):
        text = entry.lstrip()[len(QUOTES) :]
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + _further(editor)
        return text.rstrip()[: -len(QUOTES)].strip("\n")
    while entry.endswith("\\"):
        entry = entry[:-1] + "\n" + _further(editor)
    return entry


def _further(editor: LineEditor) -> str:
    try:
        return editor.read(MORE)
    except KeyboardInterrupt:
        raise Dropped from None


def open_editor(history: InputHistory, complete: Complete) -> tuple[LineEditor, bool]:
    """The best available editor, and whether it is the extra's."""
    try:
        return FullEditor(history, complete), True
    except ImportError:
        return PlainEditor(history), False


class PlainEditor:
    def __init__(self, history: InputHistory) -> None:
        self._history = history
        try:
            import readline
        except ImportError:  # Python was built without
            self._readline = None
            return
        self._readline = readline
        readline.set_auto_history(False)
        readline.clear_history()
        for entry in history.entries:
            readline.add_history(entry)

    def read(self, prompt: str) -> str:
        try:
            entry = input(prompt)
        except KeyboardInterrupt:
            print()
            if self._readline is not None and self._readline.get_line_buffer():
                raise Dropped from None
            raise
        if self._readline is not None and entry.strip():
            self._readline.add_history(entry)
        return entry


class FullEditor:
    """Reads by prompt_toolkit: Esc-Enter begins another line, Tab completes commands. Raises: ImportError."""

    def __init__(self, history: InputHistory, complete: Complete) -> None:
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(
            history=_shared_history(history),
            completer=_completer(complete),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,  # needed for Esc-Enter; Enter is bound to end the entry
            prompt_continuation=MORE,
        )

    def read(self, prompt: str) -> str:
        try:
            return self._session.prompt(prompt)
        except KeyboardInterrupt:
            if self._session.default_buffer.text:
                raise Dropped from None
            raise


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _completer(complete: Complete) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            before = document.text_before_cursor
            return [Completion(line, start_position=-len(before)) for line in complete(before)]

    return Commands()


def _shared_history(kept: InputHistory) -> History:
    """The entries for the arrow keys: whole messages, added by `read_message`."""
    from prompt_toolkit.history import History

    class Kept(History):
        async def load(self) -> AsyncGenerator[str, None]:
            for entry in reversed(kept.entries):
                yield entry

        def get_strings(self) -> list[str]:
            return list(kept.entries)

        def append_string(self, string: str) -> None:
            """Do nothing: `read_message` adds the whole message."""

        def load_history_strings(self) -> Iterable[str]:
            return reversed(kept.entries)

        def store_string(self, string: str) -> None:
            """Do nothing, likewise."""

    return Kept()


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
