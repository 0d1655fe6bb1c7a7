"""One conversation with a model: sends it, shows and keeps the answers. Stops on Ctrl-C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.cli.terminal.chat.answer_reader import Pace, ReadAnswer
from dragoman.cli.terminal.chat.conversation import Conversation
from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers.answers import CHAT_PATH, AskFailed, ModelServer, events


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
