"""A conversation with a model, in the form of OpenAI's API: messages, attachments of the next one, streamed answers.

`ChatSession` sends it to a server, and shows and keeps the answers. Stops on Ctrl-C. Used on the main thread.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers import (
    CHAT_PATH,
    AskFailed,
    ChatChoice,
    ChatEvent,
    Delta,
    FunctionPiece,
    ModelServer,
    ToolCallPiece,
    Usage,
    events,
)

ROLES = ("system", "developer", "user", "assistant", "tool")

_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
    b"RIFF": "image/webp",
}


class ChatSession:
    """A conversation with its server. `parameters`: further fields of each call."""

    def __init__(
        self,
        server: ModelServer,
        conversation: Conversation,
        screen: Screen,
        parameters: Mapping[str, Any],
        tools: list[Any] | None = None,
    ) -> None:
        self.server = server
        self.conversation = conversation
        self.screen = screen
        self.parameters = dict(parameters)
        self.last_pace: Pace | None = None
        self._tools = tools

    def say(self, text: str) -> bool:
        """Add a message and show the answer; without an answer, take the message back and return False."""
        self.conversation.say(text)
        if self.conversation.waiting_calls():
            return True  # the model waits for the results of its other calls
        is_answered = self.ask()
        if not is_answered:
            self.conversation.take_back()
        return is_answered

    def ask(self) -> bool:
        """Show the answer to the present conversation and keep it, even if stopped; False without an answer."""
        read = ReadAnswer()
        try:
            answer = self.server.send(CHAT_PATH, self._body())
            try:
                read.read(events(answer, ChatEvent), self.screen)
            finally:
                answer.close()
        except AskFailed as error:
            self.screen.error(str(error))
            return False
        except KeyboardInterrupt:
            self.screen.dim("[stopped]")
            read.tool_calls.clear()  # they may be incomplete
        self.last_pace = read.pace
        if read.is_empty and not read.finish_reason:
            return False
        self.conversation.answer(read.content, list(read.tool_calls.values()))
        return True

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.server.model, "messages": self.conversation.sent(), "stream": True}
        if self.server.tells_progress and self.screen.is_terminal:
            body["return_progress"] = True
        if self._tools:
            body["tools"] = self._tools
        return body | {"stream_options": {"include_usage": True}} | self.parameters


@dataclass(slots=True)
class Pace:
    """The pace of an answer. Seconds since the call; None = unknown or not yet known."""

    first_s: float | None = None
    last_s: float | None = None
    num_pieces: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first piece; pieces if the server does not count tokens."""
        count = self.completion_tokens or self.num_pieces
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s or count < 2:
            return None
        return (count - 1) / (self.last_s - self.first_s)

    def __str__(self) -> str:
        counted = f"{self.completion_tokens} tokens" if self.completion_tokens else f"{self.num_pieces} pieces"
        parts = [counted]
        if self.prompt_tokens is not None:
            cached = f" ({self.cached_tokens} of them cached)" if self.cached_tokens else ""
            parts.append(f"behind {self.prompt_tokens} prompt tokens{cached}")
        if self.tokens_per_s is not None:
            unit = "tokens" if self.completion_tokens else "pieces"
            parts.append(f"{self.tokens_per_s:.1f} {unit} a second")
        if self.first_s is not None:
            parts.append(f"the first after {self.first_s:.2f} s")
        return ", ".join(parts)


def progress_words(step: Mapping[str, float | None]) -> str:
    """One line on a prompt's progress, by the report of dragoman or of llama.cpp's server, which has less."""
    total, read, ahead = (step.get(name) or 0 for name in ("total", "processed", "ahead"))
    if ahead:
        words = f"{ahead} before you"
    elif step.get("time_ms") and total:
        words = f"reading the prompt: {100 * read // total} %"
    else:
        words = "you are next"
    expected_ms = step.get("expected_ms")
    return words if not expected_ms else f"{words}, about {max(1, round(expected_ms / 1000))} s"


@dataclass(slots=True)
class ReadAnswer:
    """The part of an answer received so far; complete if `finish_reason` is not "". `tool_calls` by their index.

    Create it right before the call: time counts from then on.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    finish_reason: str = ""
    pace: Pace = field(default_factory=Pace)
    begin_s: float = field(default_factory=time.monotonic)

    @property
    def is_empty(self) -> bool:
        return not self.content and not self.tool_calls

    def read(self, events: Iterable[ChatEvent], screen: Screen) -> None:
        """Read the whole answer. Raises: the errors of `events`; earlier pieces are kept."""
        for event in events:
            if event.prompt_progress is not None:
                screen.status(progress_words(event.prompt_progress))
            if event.usage is not None:
                self._take_usage(event.usage)
            for choice in event.choices or ():
                self._take_choice(choice, screen, time.monotonic() - self.begin_s)
        for call in self.tool_calls.values():
            screen.tool_call(call["function"]["name"], call["function"]["arguments"])
        screen.end_status()
        screen.end_line()

    def _take_choice(self, choice: ChatChoice, screen: Screen, now_s: float) -> None:
        delta = choice.delta or Delta()
        reasoning = delta.reasoning_content or delta.reasoning or ""
        content = delta.content or ""
        self.reasoning += reasoning  # before it is shown: Ctrl-C must not lose what the user saw
        self.content += content
        screen.reasoning(reasoning)
        screen.content(content)
        for piece in delta.tool_calls or ():
            self._take_tool_call(piece)
        if reasoning or content or delta.tool_calls:
            self.pace.num_pieces += 1
            self.pace.last_s = now_s
            if self.pace.first_s is None:
                self.pace.first_s = now_s
        self.finish_reason = choice.finish_reason or self.finish_reason

    def _take_tool_call(self, piece: ToolCallPiece) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.tool_calls.setdefault(piece.index or 0, empty)
        function = piece.function or FunctionPiece()
        call["id"] = piece.id or call["id"]
        call["function"]["name"] += function.name or ""
        call["function"]["arguments"] += function.arguments or ""

    def _take_usage(self, usage: Usage) -> None:
        self.pace.prompt_tokens = usage.prompt_tokens
        self.pace.completion_tokens = usage.completion_tokens
        details = usage.prompt_tokens_details
        self.pace.cached_tokens = None if details is None else details.cached_tokens


class Conversation:
    """The messages so far. `pictures`: paths that go with the next message of the user."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.messages: list[dict[str, Any]] = []
        self._pictures: list[tuple[Path, str]] = []

    @property
    def pictures(self) -> list[Path]:
        return [path for path, _ in self._pictures]

    def sent(self) -> list[dict[str, Any]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def attach(self, path: Path) -> None:
        """Attach a picture to the next message. Raises: OSError, ValueError for another kind of file."""
        self._pictures.append((path, picture_url(path)))

    def say(self, text: str) -> None:
        """Add the user's message with its pictures, or the result of a waiting tool call."""
        waiting = self.waiting_calls()
        if waiting:
            self.messages.append({"role": "tool", "tool_call_id": waiting[0]["id"], "content": text})
            return
        content: Any = text
        if self._pictures:
            content = [{"type": "image_url", "image_url": {"url": url}} for _, url in self._pictures]
            content.append({"type": "text", "text": text})
        self.messages.append({"role": "user", "content": content})
        self._pictures.clear()

    def waiting_calls(self) -> list[dict[str, Any]]:
        """The last answer's tool calls without a result, in order."""
        answered: set[str] = set()
        for message in reversed(self.messages):
            if message["role"] == "tool":
                answered.add(message["tool_call_id"])
                continue
            return [call for call in message.get("tool_calls") or () if call["id"] not in answered]
        return []

    def answer(self, content: str, tool_calls: Sequence[Mapping[str, Any]] = ()) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if tool_calls:
            message["tool_calls"] = list(tool_calls)
        self.messages.append(message)

    def take_back(self) -> str | None:
        """Remove the last, unanswered message and return its text; its pictures become attachments again."""
        if not self.messages:
            return None
        content = self.messages.pop()["content"]
        if isinstance(content, str):
            return content
        self._pictures = [
            (Path("(attached)"), part["image_url"]["url"]) for part in content if part["type"] == "image_url"
        ]
        return "\n".join(part["text"] for part in content if part["type"] == "text")

    def forget_answer(self) -> bool:
        """Remove everything after the last user or tool message, for another answer; False without such a message."""
        places = [place for place, message in enumerate(self.messages) if message["role"] in ("user", "tool")]
        if not places:
            return False
        del self.messages[places[-1] + 1 :]
        return True

    def clear(self) -> None:
        self.messages.clear()
        self._pictures.clear()

    def save(self, path: Path) -> None:
        with path.open("x", encoding="utf-8") as file:
            json.dump({"messages": self.sent()}, file, ensure_ascii=False, indent=2)
            file.write("\n")

    def load(self, path: Path) -> None:
        """Replace the conversation by a file's; an error changes nothing. Raises: OSError, ValueError."""
        messages = _read_messages(path.read_text(encoding="utf-8"))
        first = messages[0] if messages and messages[0]["role"] == "system" else None
        if first is not None:
            messages = messages[1:]
        self.system = None if first is None else str(first["content"])
        self.messages = messages
        self._pictures.clear()


def picture_url(path: Path) -> str:
    """The picture as a data URL. Raises: OSError, ValueError for an unsupported format."""
    content = path.read_bytes()
    media_type = next((kind for start, kind in _PICTURES.items() if content.startswith(start)), None)
    if media_type is None or (media_type == "image/webp" and content[8:12] != b"WEBP"):
        raise ValueError("must be a picture: PNG, JPEG, GIF, BMP or WebP")
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def read_tools(path: Path) -> list[Any]:
    """The tools in a file. Raises: OSError, ValueError."""
    tools = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("must hold a JSON array of objects")
    return tools


def _read_messages(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        raise ValueError('must hold {"messages": [...]} or an array of messages')
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES or "content" not in message:
            raise ValueError(f"messages[{place}]: must have content and a role, one of {', '.join(ROLES)}")
        if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise ValueError(f"messages[{place}]: must have a tool_call_id, as it is the result of a call")
        if not _are_calls(message.get("tool_calls") or []):
            raise ValueError(
                f"messages[{place}].tool_calls: must be an array of calls, each with an id and a function's name"
            )
    return messages


def _are_calls(calls: object) -> bool:
    match calls:
        case [{"id": str(), "function": {"name": str()}}, *others]:
            return _are_calls(others)
    return calls == []
