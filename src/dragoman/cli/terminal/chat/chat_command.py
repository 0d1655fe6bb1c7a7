"""`dragoman chat`: a conversation in the terminal, with a model that is loaded here or with a server.

Does: open the model, read messages and /commands until the end, or answer the only message. Does not: generate.
Called by `main`, on the main thread.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from dragoman.cli.run_command import Console
from dragoman.cli.terminal.arguments import ChatArguments
from dragoman.cli.terminal.chat.chat_session import ChatSession
from dragoman.cli.terminal.chat.conversation import Conversation, read_tools
from dragoman.cli.terminal.chat.input_history import InputHistory, history_path
from dragoman.cli.terminal.chat.line_editors import PLAIN_EDITOR_NOTE, Dropped, LineEditor, open_editor, read_message
from dragoman.cli.terminal.chat.slash_commands import Refused, completions, is_command, run_command
from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers.answers import AskFailed
from dragoman.cli.terminal.servers.opening import open_server
from dragoman.config.generation import generation_defaults
from dragoman.config.resolve import Config
from dragoman.server.apis.ollama.options import DEFAULTS

FAILED = 1
INTERRUPTED = 130
PROMPT, RESULT_PROMPT = "> ", "result of {}> "


@dataclass(frozen=True, slots=True)
class Streams:
    """Where messages come from and answers go."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO

    @property
    def is_interactive(self) -> bool:
        """Whether somebody types and sees."""
        return self.stdin.isatty() and self.stdout.isatty()


def run(config: Config | None, asked: ChatArguments, console: Console) -> int:
    """Hold the conversation; the exit code: 0, 1 if there is no model, or no answer to the only message.

    `config` None = a server at a URL.
    """
    environ = console.variables
    streams = Streams(sys.stdin, console.stdout, console.stderr)
    try:
        conversation = Conversation(asked.system)
        problem = _attach(conversation, asked)
        tools, tools_problem = _tools(asked)
        for line in filter(None, (problem, tools_problem)):
            streams.stderr.write(f"dragoman: {line}\n")
        if problem or tools_problem:
            return FAILED
        server = open_server(config, asked.target, environ, streams.stderr, needs_template=True)
    except AskFailed as error:
        streams.stderr.write(f"dragoman: {error}\n")
        return FAILED
    try:
        screen = Screen(streams.stdout, streams.stderr, environ)
        session = ChatSession(server, conversation, screen, {**_usual_sampling(config), **asked.parameters}, tools)
        if asked.prompt is not None or not streams.is_interactive:
            return _answer_one(session, asked.prompt, streams)
        history = InputHistory(history_path(environ) if asked.history else None)
        return _converse(session, history)
    finally:
        server.close()


def _usual_sampling(config: Config | None) -> Mapping[str, Any]:
    """Ollama's sampling for a model whose files say nothing of it: at temperature 1 small models lose the thread.

    Servers at a URL have defaults of their own.
    """
    if config is None or generation_defaults(config.model_dir):
        return {}
    return dict(DEFAULTS)


def _attach(conversation: Conversation, asked: ChatArguments) -> str:
    """Attach the first picture; what is wrong with it, "" if nothing is."""
    try:
        if asked.image is not None:
            conversation.attach(asked.image)
    except (OSError, ValueError) as error:
        return f"--image={asked.image} (command line): {error}"
    return ""


def _tools(asked: ChatArguments) -> tuple[list[object] | None, str]:
    """(The tools, what is wrong with them)."""
    try:
        return (None if asked.tools is None else read_tools(asked.tools)), ""
    except (OSError, ValueError) as error:
        return None, f"--tools={asked.tools} (command line): {error}"


def _answer_one(session: ChatSession, prompt: str | None, streams: Streams) -> int:
    """Answer the only message, which is the whole standard input where no prompt was given; the exit code."""
    text = streams.stdin.read().strip() if prompt is None else prompt
    if not text:
        session.screen.error("the standard input: must hold a message, as it is no terminal")
        return FAILED
    try:
        is_answered = session.say(text)
    except BrokenPipeError:
        return FAILED
    return 0 if is_answered else FAILED


def _converse(session: ChatSession, history: InputHistory) -> int:
    screen = session.screen
    editor, is_full = open_editor(history, completions)
    screen.dim(f"{session.server.model}, {session.server.label}; /help lists the commands")
    if not is_full:
        screen.dim(PLAIN_EDITOR_NOTE)
    if history.problem:
        screen.error(history.problem)
    while (text := _next(session, editor, history)) is not None:
        if not text.strip():
            continue
        if not is_command(text):
            session.say(text.removeprefix("/") if text.startswith("//") else text)
            continue
        try:
            if not run_command(session, text):
                break
        except Refused as refusal:
            screen.error(str(refusal))
    return 0


def _next(session: ChatSession, editor: LineEditor, history: InputHistory) -> str | None:
    """What is typed next, "" for nothing, None at the end."""
    waiting = session.conversation.waiting_calls()
    prompt = RESULT_PROMPT.format(waiting[0]["function"]["name"]) if waiting else PROMPT
    try:
        return read_message(editor, history, prompt)
    except Dropped:
        return ""
    except (EOFError, KeyboardInterrupt):
        session.screen.say("")
        return None
