"""The /commands of `chat`: lists, completes and runs them, on the main thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.terminal.chat.chat_session import ChatSession
from dragoman.cli.terminal.parameters import PARAMETERS, kind_of, read_parameter
from dragoman.cli.terminal.servers.answers import AskFailed
from dragoman.cli.terminal.servers.remote_server import model_names


class Refused(Exception):
    """The command fails; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command. `form`: of its argument, "" = none. `run` takes the session and the argument."""

    form: str
    help: str
    run: Callable[[ChatSession, str], None]


def is_command(text: str) -> bool:
    """True if `text` is a command. Two slashes begin a message with one."""
    return text.startswith("/") and not text.startswith("//")


def run_command(session: ChatSession, text: str) -> bool:
    """Run the command in `text`; False at the conversation's end. Raises: Refused."""
    name, _, argument = text.strip().partition(" ")
    if name in ("/exit", "/quit"):
        return False
    command = COMMANDS.get(name)
    if command is None:
        raise Refused(f"{name}: unknown command; must be one of {', '.join(COMMANDS)}, /exit")
    argument = argument.strip()
    if argument and not command.form:
        raise Refused(f"{name} {argument}: unexpected; {name} takes no argument")
    command.run(session, argument)
    return True


def completions(before: str) -> Iterator[str]:
    if not before.startswith("/"):
        return
    lines = [*COMMANDS, "/exit", *(f"/set {parameter.name}" for parameter in PARAMETERS)]
    yield from (line for line in lines if line.startswith(before) and (" " in before or " " not in line))


def _help(session: ChatSession, argument: str) -> None:
    rows = [(f"{name} {command.form}".rstrip(), command.help) for name, command in COMMANDS.items()]
    rows += [("/exit", "leave, as Ctrl-D does; also Ctrl-C where nothing is typed")]
    width = max(len(form) for form, _ in rows) + 2
    lines = [f"  {form:{width}}{text}" for form, text in rows]
    lines += [
        "Several lines: Esc-Enter (with the extra dragoman[terminal]), a backslash at the end of a line, or",
        '""" before the first and behind the last. A message that begins with a slash: type two of them.',
        "Ctrl-C stops an answer; what has come of it stays in the conversation.",
    ]
    session.screen.say("\n".join(lines))


def _system(session: ChatSession, argument: str) -> None:
    if argument:
        session.conversation.system = None if argument == "none" else argument
    session.screen.say(f"system: {session.conversation.system or 'nothing'}")


def _clear(session: ChatSession, argument: str) -> None:
    session.conversation.clear()
    session.screen.say("the conversation begins anew")


def _retry(session: ChatSession, argument: str) -> None:
    kept = list(session.conversation.messages)
    if not session.conversation.forget_answer():
        raise Refused("/retry: there is no answer to repeat yet")
    if not session.ask():
        session.conversation.messages = kept


def _set(session: ChatSession, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not argument:
        names = [parameter.name for parameter in PARAMETERS]
        lines = [f"  {name} = {_shown(session.parameters, name)}" for name in names]
        session.screen.say("\n".join(lines))
        return
    try:
        kind, name = kind_of(name), name.replace("-", "_")
        if value.strip() == "default":
            session.parameters.pop(name, None)
        elif value.strip():
            session.parameters.update([read_parameter(name, value.strip())])
    except ValueError as error:
        raise Refused(f"/set {error}") from None
    session.screen.say(f"{name} = {_shown(session.parameters, name)} ({kind.allowed}, or default)")


def _shown(parameters: Mapping[str, object], name: str) -> str:
    return json.dumps(parameters[name], ensure_ascii=False) if name in parameters else "the server's default"


def _image(session: ChatSession, argument: str) -> None:
    if argument:
        path = _path("/image", argument)
        try:
            session.conversation.attach(path)
        except (OSError, ValueError) as error:
            raise Refused(f"/image {path}: {_reason(error)}") from None
    names = ", ".join(str(path) for path in session.conversation.pictures)
    session.screen.say(f"with the next message: {names or 'no picture'}")


def _save(session: ChatSession, argument: str) -> None:
    path = _path("/save", argument)
    try:
        session.conversation.save(path)
    except OSError as error:
        raise Refused(f"/save {path}: {_reason(error)}") from None
    session.screen.say(f"{len(session.conversation.sent())} messages are in {path}")


def _load(session: ChatSession, argument: str) -> None:
    path = _path("/load", argument)
    try:
        session.conversation.load(path)
    except (OSError, ValueError) as error:
        raise Refused(f"/load {path}: {_reason(error)}") from None
    session.screen.say(f"the conversation goes on behind the {len(session.conversation.sent())} messages of {path}")


def _stats(session: ChatSession, argument: str) -> None:
    session.screen.say(str(session.last_pace) if session.last_pace else "nothing has been answered yet")


def _model(session: ChatSession, argument: str) -> None:
    server = session.server
    try:
        names = model_names(server)
    except AskFailed as error:
        names = []
        session.screen.error(f"/model: {error}")
    if argument:
        if names and argument not in names:
            raise Refused(f"/model {argument}: must be one of {', '.join(names)}")
        server.model = argument
    others = [name for name in names if name != server.model]
    session.screen.say(f"{server.model}, {server.label}" + (f"; there are also {', '.join(others)}" if others else ""))


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise Refused(f"{name}: must be followed by a file")
    return Path(argument.strip("'\"")).expanduser()


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


COMMANDS: Mapping[str, SlashCommand] = {
    "/help": SlashCommand("", "this list", _help),
    "/system": SlashCommand("[TEXT]", "what the model is told before the conversation; none = nothing", _system),
    "/clear": SlashCommand("", "begin anew; the system's text stays", _clear),
    "/retry": SlashCommand("", "have the last message answered anew", _retry),
    "/set": SlashCommand("[PARAM [VALUE]]", "a sampling parameter; default = leave it to the server", _set),
    "/image": SlashCommand("[FILE]", "a picture for the next message", _image),
    "/save": SlashCommand("FILE", "write the conversation to a new file, as OpenAI's API has it", _save),
    "/load": SlashCommand("FILE", "go on with a conversation that was saved", _load),
    "/stats": SlashCommand("", "tokens and pace of the last answer", _stats),
    "/model": SlashCommand("[NAME]", "who answers; another one of that server", _model),
}
