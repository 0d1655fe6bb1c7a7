"""`dragoman chat` shows the progress of a call, then the answer, and keeps the text of a stopped one."""

from __future__ import annotations

import io
from typing import Any

import msgspec

from dragoman.cli.terminal.conversation import ChatSession, Conversation, ReadAnswer, progress_words
from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers import ChatEvent, RemoteServer
from tests.support.scripted_chat_server import said, scripted_chat_server
from tests.support.tables import table


class Terminal(io.StringIO):
    """A terminal that keeps its output."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The visible lines at the end, without styles."""
        plain = self.getvalue()
        for style in ("\x1b[2m", "\x1b[0m"):
            plain = plain.replace(style, "")
        return [line.rpartition("\r\x1b[2K")[2] for line in plain.split("\n")]


WORDS: list[tuple[dict[str, Any], str]] = [
    ({"total": 90, "processed": 0, "time_ms": 0, "ahead": 2, "expected_ms": 11_800}, "2 before you, about 12 s"),
    ({"total": 90, "processed": 0, "time_ms": 0, "ahead": 0, "expected_ms": 400}, "you are next, about 1 s"),
    ({"total": 90, "processed": 55, "time_ms": 70, "ahead": 0, "expected_ms": None}, "reading the prompt: 61 %"),
    ({"total": 90, "cache": 5, "processed": 55, "time_ms": 70}, "reading the prompt: 61 %"),  # llama.cpp's
]


@table(("told", "words"), WORDS)
def test_progress_is_shown_in_words(told: dict[str, Any], words: str) -> None:
    assert progress_words(told) == words


def test_the_answer_replaces_the_progress() -> None:
    told_events = [
        {"prompt_progress": told, "choices": [{"delta": {"role": "assistant", "content": None}}]} for told, _ in WORDS
    ]
    events = msgspec.convert([*told_events, {"choices": [{"delta": {"content": "Good day."}}]}], list[ChatEvent])
    terminal = Terminal()
    read = ReadAnswer()
    read.read(events, Screen(terminal, io.StringIO(), {}))
    assert all(words in terminal.getvalue() for _, words in WORDS)
    assert terminal.lines() == ["Good day.", ""]
    assert (read.content, read.pace.num_pieces) == ("Good day.", 1)
    for stream, environ in ((Terminal(), {"NO_COLOR": "1"}), (io.StringIO(), {})):
        ReadAnswer().read(events, Screen(stream, stream, environ))
        assert stream.getvalue() == "Good day.\n"


def test_only_servers_with_the_parameter_get_it() -> None:
    with scripted_chat_server() as server:
        for owner in ("dragoman", "llamacpp", "somebody"):
            server.owner = owner
            server.answers += [said("Well.")] * 2
            for stream in (Terminal(), io.StringIO()):
                screen = Screen(stream, io.StringIO(), {})
                session = ChatSession(RemoteServer(server.url, None, ""), Conversation(), screen, {})
                assert session.say("Hello")
                expected = True if owner != "somebody" and screen.is_terminal else None
                assert server.bodies[-1].get("return_progress") is expected


class StoppedTerminal(Terminal):
    """A terminal whose user presses Ctrl-C at once when an answer appears."""

    def write(self, text: str) -> int:
        super().write(text)
        if "It begins" in text:
            raise KeyboardInterrupt
        return len(text)


def test_text_shown_before_ctrl_c_is_kept() -> None:
    with scripted_chat_server() as server:
        server.answers.append(said("It begins", " and ends."))
        screen = Screen(StoppedTerminal(), io.StringIO(), {})
        session = ChatSession(RemoteServer(server.url, None, ""), Conversation(), screen, {})
        assert session.say("A story")
        assert [message["content"] for message in session.conversation.messages] == ["A story", "It begins"]


def test_an_event_of_another_form_ends_the_answer_with_one_line() -> None:
    with scripted_chat_server() as server:
        for delta in ({"content": ["Well."]}, {"tool_calls": {"index": 0}}, {"tool_calls": [{"function": "f"}]}):
            server.answers.append([delta])
            problems = io.StringIO()
            screen = Screen(io.StringIO(), problems, {})
            assert not ChatSession(RemoteServer(server.url, None, ""), Conversation(), screen, {}).say("Hello")
            assert problems.getvalue().count("\n") == 1
            assert "an event of the stream is not understood: Expected" in problems.getvalue()
