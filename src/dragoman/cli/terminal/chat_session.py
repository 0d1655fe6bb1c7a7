"""One conversation with a model: sends it, shows the streamed answers and keeps them. Stops on Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.cli.terminal.conversation import Conversation
from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers import CHAT_PATH, AskFailed, ModelServer, events


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
                read.read(events(answer), self.screen)
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


def progress_words(told: Mapping[str, Any]) -> str:
    """One line on a prompt's progress, by the report of dragoman or of llama.cpp's server, which has less."""
    total, read, ahead = (told.get(name) or 0 for name in ("total", "processed", "ahead"))
    if ahead:
        words = f"{ahead} before you"
    elif told.get("time_ms") and total:
        words = f"reading the prompt: {100 * read // total} %"
    else:
        words = "you are next"
    expected_ms = told.get("expected_ms")
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

    def read(self, events: Iterable[Mapping[str, Any]], screen: Screen) -> None:
        """Read the whole answer. Raises: the errors of `events`; earlier pieces are kept."""
        for event in events:
            if isinstance(progress := event.get("prompt_progress"), dict):
                screen.status(progress_words(progress))
            self._take_usage(event.get("usage"))
            for choice in event.get("choices") or ():
                self._take_choice(choice, screen, time.monotonic() - self.begin_s)
        for call in self.tool_calls.values():
            screen.tool_call(call["function"]["name"], call["function"]["arguments"])
        screen.end_status()
        screen.end_line()

    def _take_choice(self, choice: Mapping[str, Any], screen: Screen, now_s: float) -> None:
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or ""
        self.reasoning += reasoning  # before it is shown: Ctrl-C must not lose what the user saw
        self.content += content
        screen.reasoning(reasoning)
        screen.content(content)
        for piece in delta.get("tool_calls") or ():
            self._take_tool_call(piece)
        if reasoning or content or delta.get("tool_calls"):
            self.pace.num_pieces += 1
            self.pace.last_s = now_s
            if self.pace.first_s is None:
                self.pace.first_s = now_s
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_tool_call(self, piece: Mapping[str, Any]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.tool_calls.setdefault(int(piece.get("index") or 0), empty)
        function = piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def _take_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self.pace.prompt_tokens = usage.get("prompt_tokens")
        self.pace.completion_tokens = usage.get("completion_tokens")
        self.pace.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
