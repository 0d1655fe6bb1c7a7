"""`dragoman chat`: a conversation in the terminal, with a model loaded here or with a server, and its /commands.

Reads messages and /commands until the end, or answers the only message. Called by `main`, on the main thread.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.cli.commands import FAILED
from dragoman.cli.subcommand import Command, Console, ReadWords, citing_option, option, options_of
from dragoman.cli.terminal.arguments import (
    PARAMETERS,
    SERVER_CHOICE,
    kind_of,
    open_server,
    read_parameter,
    read_parameters,
    read_server,
    take_prompt,
)
from dragoman.cli.terminal.conversation import ChatSession, Conversation, read_tools
from dragoman.cli.terminal.line_editors import (
    PLAIN_EDITOR_NOTE,
    Dropped,
    InputHistory,
    LineEditor,
    history_path,
    open_editor,
    read_message,
)
from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers import AskFailed, Target, model_names
from dragoman.config.generation import generation_defaults
from dragoman.config.kinds import FilePath, Switch, Text
from dragoman.config.request_options import operator_sampling
from dragoman.config.resolve import Config, ConfigError

FAILURES = (AskFailed, ConfigError)
PROMPT, RESULT_PROMPT = "> ", "result of {}> "

_USAGE = """\
usage: dragoman chat [MODEL | URL [PROMPT]] [options]

A conversation in the terminal. MODEL is what `dragoman serve` takes (a directory, a GGUF file, a name on the hub; nothing =
the bundled demo model) and is loaded into this process, with all options of `dragoman serve`; at a URL any server answers
that speaks OpenAI's chat API, this one among them. `/help` lists what may be typed besides messages; Ctrl-C stops an answer.
With PROMPT, or if the standard input is no terminal, there is one message: PROMPT, or the standard input. The answer is
printed, and the exit code is 1 if there is none. `dragoman run` is the same command.

  dragoman chat                                            the bundled demo model
  dragoman chat ./my-model --dtype int4 --system "Answer in one sentence."
  dragoman chat http://127.0.0.1:8080 --temperature 0.2
  OPENAI_API_KEY=... dragoman chat https://api.example.com/v1 --remote-model NAME --api-key-env OPENAI_API_KEY
  dragoman chat demo-vision --image cat.png
  dragoman run demo "What is Deep Learning?" --temperature 0
  echo "What is Deep Learning?" | dragoman chat --temperature 0

See docs/terminal.md.
"""


@dataclass(frozen=True, slots=True)
class ChatArguments:
    """`prompt`: the only message, None = messages are typed. `parameters`: of the JSON body."""

    target: Target
    prompt: str | None
    parameters: Mapping[str, Any]
    system: str | None = option(Text(), "what the model is told before the conversation [nothing]")
    image: Path | None = option(FilePath("FILE"), "a picture for the first message [none]")
    tools: Path | None = option(
        FilePath("FILE"), "a JSON array of tools that the model may call, as OpenAI has them [none]"
    )
    history: bool = option(Switch(), "keep typed lines for the next time (--no-history: do not)", True)


def read_chat(words: ReadWords) -> ChatArguments | None:
    prompt = take_prompt(words, may_be_alone=False)
    return words.made(ChatArguments, target=read_server(words), prompt=prompt, parameters=read_parameters(words))


def run(config: Config | None, arguments: ChatArguments, console: Console) -> int:
    """Run the conversation. Returns the exit code: 0, or 1 without an answer to the only message. `config` None = a URL."""
    conversation, tools = Conversation(arguments.system), None
    with citing_option("image", arguments.image, OSError, ValueError):
        if arguments.image is not None:
            conversation.attach(arguments.image)
    with citing_option("tools", arguments.tools, OSError, ValueError):
        if arguments.tools is not None:
            tools = read_tools(arguments.tools)
    server = open_server(config, arguments.target, console.variables, console.stderr, needs_template=True)
    try:
        screen = Screen(console.stdout, console.stderr, console.variables)
        session = ChatSession(server, conversation, screen, {**_usual_sampling(config), **arguments.parameters}, tools)
        is_typed = sys.stdin.isatty() and console.stdout.isatty()
        if arguments.prompt is not None or not is_typed:
            return _answer_one(session, arguments.prompt)
        return _converse(session, InputHistory(history_path(console.variables) if arguments.history else None))
    finally:
        server.close()


def _usual_sampling(config: Config | None) -> Mapping[str, Any]:
    """Ollama's sampling for a model without its own defaults: at temperature 1 small models become incoherent."""
    if config is None or generation_defaults(config.model_dir):
        return {}
    from dragoman.server.apis.ollama.request import OPTIONS  # imports the server

    operator = operator_sampling(config.sampling)
    return {name: value for name, value in OPTIONS.defaults.items() if name not in operator}


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


# --- /commands --------------------------------------------------------------------------------------------------------


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


COMMAND = Command(
    _USAGE,
    (*options_of(ChatArguments), *SERVER_CHOICE, *PARAMETERS),
    read_chat,
    "dragoman.cli.terminal.chat",
    takes_server_options=True,
)
