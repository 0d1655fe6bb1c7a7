"""Reads typed messages: by the line editor of the extra `dragoman[terminal]`, else by readline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from dragoman.cli.terminal.chat.input_history import InputHistory
from dragoman.extras import how_to_install

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

QUOTES = '"""'
MORE = "... "  # the prompt of a message's further lines
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
