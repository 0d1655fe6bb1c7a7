"""`dragoman chat`: a conversation in the terminal, with a model loaded here or with a server.

Reads messages and /commands until the end, or answers the only message. Called by `main`, on the main thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dragoman.cli.command_options import cite
from dragoman.cli.commands import FAILED
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
from dragoman.config.sampling_settings import operator_sampling
from dragoman.server.apis.ollama.options import OPTIONS

FAILURES = (AskFailed,)
PROMPT, RESULT_PROMPT = "> ", "result of {}> "


def run(config: Config | None, asked: ChatArguments, console: Console) -> int:
    """Run the conversation. Returns the exit code: 0, or 1 without an answer to the only message. `config` None = a URL."""
    conversation, tools = Conversation(asked.system), None
    with _citing("image", asked.image):
        if asked.image is not None:
            conversation.attach(asked.image)
    with _citing("tools", asked.tools):
        if asked.tools is not None:
            tools = read_tools(asked.tools)
    server = open_server(config, asked.target, console.variables, console.stderr, needs_template=True)
    try:
        screen = Screen(console.stdout, console.stderr, console.variables)
        session = ChatSession(server, conversation, screen, {**_usual_sampling(config), **asked.parameters}, tools)
        is_typed = sys.stdin.isatty() and console.stdout.isatty()
        if asked.prompt is not None or not is_typed:
            return _answer_one(session, asked.prompt)
        return _converse(session, InputHistory(history_path(console.variables) if asked.history else None))
    finally:
        server.close()


def _usual_sampling(config: Config | None) -> Mapping[str, Any]:
    """Ollama's sampling for a model without its own defaults: at temperature 1 small models become incoherent."""
    if config is None or generation_defaults(config.model_dir):
        return {}
    operator = operator_sampling(config.sampling)
    return {name: value for name, value in OPTIONS.defaults.items() if name not in operator}


@contextmanager
def _citing(name: str, value: object) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise AskFailed(f"{cite(name, value)}: {error}") from error


def _answer_one(session: ChatSession, prompt: str | None) -> int:
    text = sys.stdin.read().strip() if prompt is None else prompt
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
    """The next typed message, "" = nothing, None = the end."""
    waiting = session.conversation.waiting_calls()
    prompt = RESULT_PROMPT.format(waiting[0]["function"]["name"]) if waiting else PROMPT
    try:
        return read_message(editor, history, prompt)
    except Dropped:
        return ""
    except (EOFError, KeyboardInterrupt):
        session.screen.say("")
        return None
