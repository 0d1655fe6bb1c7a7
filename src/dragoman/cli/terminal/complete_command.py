"""`dragoman complete`: continues a text, by a model loaded here or by a server, and prints it as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from dragoman.cli.commands import FAILED, INTERRUPTED
from dragoman.cli.run_command import Console
from dragoman.cli.terminal.arguments import CompleteArguments
from dragoman.cli.terminal.screen import Screen
from dragoman.cli.terminal.servers.answers import COMPLETIONS_PATH, AskFailed, ModelServer, events, read_json
from dragoman.cli.terminal.servers.opening import open_server
from dragoman.config.resolve import Config


def run(config: Config | None, asked: CompleteArguments, console: Console) -> int:
    """Print the continuation. Returns the exit code: 0, 1 without an answer, 130 if interrupted. `config` None = a URL."""
    screen = Screen(console.stdout, console.stderr, console.variables)
    prompt = _prompt(asked, sys.stdin, console.stderr)
    if not prompt:
        screen.error("PROMPT: must be a text that is not empty, as an argument or on the standard input")
        return FAILED
    try:
        server = open_server(config, asked.target, console.variables, console.stderr)
        try:
            _print(server, prompt, asked, screen)
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


def _prompt(asked: CompleteArguments, stdin: TextIO, stderr: TextIO) -> str:
    """The prompt, unchanged; the standard input loses its last line end."""
    if asked.prompt is not None:
        return asked.prompt
    if stdin.isatty():
        stderr.write("dragoman: note: the prompt is read from the terminal; Ctrl-D on an empty line ends it\n")
    return stdin.read().removesuffix("\n")


def _print(server: ModelServer, prompt: str, asked: CompleteArguments, screen: Screen) -> None:
    body: dict[str, Any] = {"model": server.model, "prompt": prompt, **asked.parameters}
    if asked.logprobs is not None:
        body["logprobs"] = asked.logprobs
    if asked.json:
        screen.say(json.dumps(read_json(server, COMPLETIONS_PATH, body), ensure_ascii=False, indent=2))
        return
    answer = server.send(COMPLETIONS_PATH, body | {"stream": True})
    try:
        for event in events(answer):
            for choice in event.get("choices") or ():
                if asked.logprobs is None:
                    screen.content(str(choice.get("text") or ""))
                else:
                    screen.content("".join(f"{line}\n" for line in _token_lines(choice.get("logprobs"))))
    finally:
        answer.close()
    screen.end_line()


def _token_lines(logprobs: Any) -> Iterator[str]:
    """A line per token: log-probability, the token, and the most likely ones with theirs; texts as in JSON."""
    if not isinstance(logprobs, Mapping):
        return
    tops = logprobs.get("top_logprobs") or []
    for place, (token, value) in enumerate(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)):
        top: Mapping[str, float] = (tops[place] if place < len(tops) else None) or {}
        others = [f"{_quoted(text)} {number:.3f}" for text, number in top.items()]
        yield "\t".join([f"{value:8.3f}", _quoted(token), *others])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
