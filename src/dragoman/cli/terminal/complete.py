"""`dragoman complete`: continues a text, by a model loaded here or by a server, and prints it as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TextIO

from dragoman.cli.commands import FAILED, INTERRUPTED
from dragoman.cli.subcommand import Command, Console, ReadWords, option, options_of
from dragoman.cli.terminal.arguments import (
    PARAMETERS,
    SERVER_CHOICE,
    open_server,
    read_parameters,
    read_server,
    take_prompt,
)
from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers import (
    COMPLETIONS_PATH,
    AskFailed,
    ModelServer,
    Target,
    TextEvent,
    TokenLogprobs,
    events,
    read_json,
)
from dragoman.config.kinds import Integer, Switch
from dragoman.config.resolve import Config

MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 256  # of `complete`: a text, unlike a conversation, has no natural end

_USAGE = """\
usage: dragoman complete [MODEL | URL] [PROMPT] [options]

Goes on with a text: prints what the model writes behind PROMPT as it comes. MODEL and URL are as for `dragoman chat`. A
single word or text is the model if it is a URL, a path (with . or / before it, or a directory that is there), *.gguf, a name
on the hub (ORG/NAME) or the name of a bundled model; else it is the prompt, for the bundled demo model. Without PROMPT, or
with -, the prompt is read from the standard input.

  dragoman complete "Deep learning is"                     with the bundled demo model
  dragoman complete ./my-model "Deep learning is" --max-tokens 64 --temperature 0
  dragoman complete http://127.0.0.1:8080 "Deep learning is" --seed 7
  dragoman complete ./my-model < prompt.txt > answer.txt
  dragoman complete "The sky is" --logprobs 3 --max-tokens 5
  dragoman complete "The sky is" --json

See docs/terminal.md.
"""


@dataclass(frozen=True, slots=True)
class CompleteArguments:
    """`prompt` None = the standard input; `logprobs` None = print the text alone."""

    target: Target
    prompt: str | None
    parameters: Mapping[str, Any]
    json: bool = option(Switch(), "print the whole answer as JSON, once it is there", False)
    logprobs: int | None = option(
        Integer(0, MAX_LOGPROBS),
        "print a line for each token: its log-probability and those of the N likeliest",
    )


def read_complete(words: ReadWords) -> CompleteArguments | None:
    prompt = take_prompt(words, may_be_alone=True)
    parameters = {"max_tokens": DEFAULT_MAX_TOKENS, **read_parameters(words)}
    return words.made(CompleteArguments, target=read_server(words), prompt=prompt, parameters=parameters)


def run(config: Config | None, arguments: CompleteArguments, console: Console) -> int:
    """Print the continuation. Returns the exit code: 0, 1 without an answer, 130 if interrupted. `config` None = a URL."""
    screen = Screen(console.stdout, console.stderr, console.variables)
    prompt = _prompt(arguments, sys.stdin, console.stderr)
    if not prompt:
        screen.error("PROMPT: must be a text that is not empty, as an argument or on the standard input")
        return FAILED
    try:
        server = open_server(config, arguments.target, console.variables, console.stderr)
        try:
            _print(server, prompt, arguments, screen)
        finally:
            server.close()
    except AskFailed as error:
        screen.error(str(error))
        return FAILED
    except BrokenPipeError:  # the output was closed
        return FAILED
    except KeyboardInterrupt:
        screen.end_line()
        return INTERRUPTED
    return 0


def _prompt(arguments: CompleteArguments, stdin: TextIO, stderr: TextIO) -> str:
    """The prompt, unchanged; the standard input loses its last line end."""
    if arguments.prompt is not None:
        return arguments.prompt
    if stdin.isatty():
        stderr.write("dragoman: note: the prompt is read from the terminal; Ctrl-D on an empty line ends it\n")
    return stdin.read().removesuffix("\n")


def _print(server: ModelServer, prompt: str, arguments: CompleteArguments, screen: Screen) -> None:
    body: dict[str, Any] = {"model": server.model, "prompt": prompt, **arguments.parameters}
    if arguments.logprobs is not None:
        body["logprobs"] = arguments.logprobs
    if arguments.json:
        screen.say(json.dumps(read_json(server, COMPLETIONS_PATH, body), ensure_ascii=False, indent=2))
        return
    answer = server.send(COMPLETIONS_PATH, body | {"stream": True})
    try:
        for event in events(answer, TextEvent):
            for choice in event.choices or ():
                if arguments.logprobs is None:
                    screen.content(choice.text or "")
                else:
                    screen.content("".join(f"{line}\n" for line in _token_lines(choice.logprobs or TokenLogprobs())))
    finally:
        answer.close()
    screen.end_line()


def _token_lines(logprobs: TokenLogprobs) -> Iterator[str]:
    """A line per token: log-probability, the token, and the most likely ones with theirs; texts as in JSON."""
    tops = logprobs.top_logprobs or ()
    for token, value, top in zip_longest(logprobs.tokens, logprobs.token_logprobs, tops):
        others = [f"{_quoted(text)} {number:.3f}" for text, number in (top or {}).items()]
        yield "\t".join(["" if value is None else f"{value:8.3f}", _quoted(token or ""), *others])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


COMMAND = Command(
    _USAGE,
    (*options_of(CompleteArguments), *SERVER_CHOICE, *PARAMETERS),
    read_complete,
    "dragoman.cli.terminal.complete",
    takes_server_options=True,
)
