"""The arguments and options of `dragoman chat` and `dragoman complete`; others are the server's, for a model loaded here.

Does: read them off the command line, tell a URL from a model and a model from a prompt, list them for `--help`. Does not:
read the server's options, ask anything. Called by `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.cli.arguments import FLAG_KEYS, is_truth
from dragoman.cli.command_options import SOURCE, CommandOption, as_url, is_url, options_text, read_options
from dragoman.cli.terminal.parameters import PARAMETERS, sent
from dragoman.cli.terminal.servers.target import Target
from dragoman.config.bundled import bundled_or
from dragoman.config.kinds import Integer, Switch, Text, Urls
from dragoman.config.options import OPTIONS as SERVER_OPTIONS
from dragoman.hub.names import hub_model

MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 256  # of `complete`: a text goes on for ever where a conversation ends

_OF_SERVERS = (
    CommandOption("remote_model", Text("NAME"), "at a URL: the model to ask [the first that the server lists]"),
    CommandOption(
        "api_key_env", Text("NAME"), "the variable that holds its key [DRAGOMAN_API_KEY]", "DRAGOMAN_API_KEY"
    ),
)

CHAT_OPTIONS = (
    CommandOption("system", Text(), "what the model is told before the conversation [nothing]"),
    CommandOption("image", Text("FILE"), "a picture for the first message [none]"),
    CommandOption("tools", Text("FILE"), "a JSON array of tools that the model may call, as OpenAI has them [none]"),
    CommandOption("history", Switch(), "keep typed lines for the next time (--no-history: do not)", True),
    *_OF_SERVERS,
    *PARAMETERS,
)

COMPLETE_OPTIONS = (
    CommandOption("json", Switch(), "print the whole answer as JSON, once it is there", False),
    CommandOption(
        "logprobs",
        Integer(0, MAX_LOGPROBS),
        "print a line for each token: its log-probability and those of the N likeliest",
    ),
    *_OF_SERVERS,
    *PARAMETERS,
)


@dataclass(frozen=True, slots=True)
class ChatArguments:
    """What a conversation begins with; `prompt`: its only message, None = others come; `parameters`: of the JSON body."""

    target: Target
    prompt: str | None
    system: str | None
    image: Path | None
    tools: Path | None
    keeps_history: bool
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompleteArguments:
    """What is to be completed. `prompt` None = the standard input; `logprobs` None = the text alone is printed."""

    target: Target
    prompt: str | None
    json: bool
    logprobs: int | None
    parameters: Mapping[str, Any]


def read_chat_arguments(words: Sequence[str]) -> tuple[ChatArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    words, prompt = _split_prompt(words, CHAT_OPTIONS, may_be_alone=False)
    _, values, others, problems = read_options(CHAT_OPTIONS, words)
    target, others = _target(values, others, problems)
    _check_prompt(prompt, problems)
    if problems:
        return None, others, problems
    asked = ChatArguments(
        target=target,
        prompt=None if prompt == "-" else prompt,
        system=_text(values["system"]),
        image=_path(values["image"]),
        tools=_path(values["tools"]),
        keeps_history=bool(values["history"]),
        parameters=_parameters(values),
    )
    return asked, others, []


def read_complete_arguments(words: Sequence[str]) -> tuple[CompleteArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    words, prompt = _split_prompt(words, COMPLETE_OPTIONS, may_be_alone=True)
    _, values, others, problems = read_options(COMPLETE_OPTIONS, words)
    target, others = _target(values, others, problems)
    _check_prompt(prompt, problems)
    if problems:
        return None, others, problems
    logprobs = values["logprobs"]
    asked = CompleteArguments(
        target=target,
        prompt=None if prompt == "-" else prompt,
        json=bool(values["json"]),
        logprobs=logprobs if isinstance(logprobs, int) else None,
        parameters={"max_tokens": DEFAULT_MAX_TOKENS, **_parameters(values)},
    )
    return asked, others, []


def _target(values: Mapping[str, Any], others: list[str], problems: list[str]) -> tuple[Target, list[str]]:
    """Who answers, and the words that are left for the server's options; what is wrong is added to `problems`."""
    urls = [word for word in others if is_url(word)]
    if not urls:
        if values["remote_model"] is not None:
            problems.append(f"--remote-model={values['remote_model']} ({SOURCE}): is for a URL; a model stands alone")
        return Target(), others
    left = [word for word in others if word not in urls]
    if left:
        problems.append(f"{left[0]} ({SOURCE}): is not for {urls[0]}: the server there has its own options")
    try:
        (url,) = Urls().parse(as_url(urls[0]))
    except ValueError:
        problems.append(f"{urls[0]} ({SOURCE}): must be an address as http://HOST:PORT or https://HOST/PATH")
        return Target(), left
    return Target(url=url, model=_text(values["remote_model"]), key_variable=str(values["api_key_env"])), left


def _split_prompt(
    words: Sequence[str], options: Sequence[CommandOption], *, may_be_alone: bool
) -> tuple[list[str], str | None]:
    """The words without the prompt, and the prompt: what stands behind the model, or alone and names no model."""
    takes_value = {option.flag for option in options if not isinstance(option.kind, Switch)}
    places: list[int] = []
    is_value = False
    for place, word in enumerate(words):
        if not is_value and (word == "-" or not word.startswith("-")):
            places.append(place)
        is_value = not is_value and "=" not in word and (word in takes_value or _is_server_option(word))
        follower = words[place + 1] if place + 1 < len(words) else ""
        is_value |= word.startswith("--") and is_truth(follower)  # of a switch
    of_prompt = places[1:]
    if len(places) == 1 and may_be_alone and not names_model(words[places[0]]):
        of_prompt = places
    prompt = " ".join(words[place] for place in of_prompt) if of_prompt else None
    return [word for place, word in enumerate(words) if place not in of_prompt], prompt


def _check_prompt(prompt: str | None, problems: list[str]) -> None:
    if prompt is not None and not prompt.strip():
        problems.append("PROMPT (command line): must be a text that is not empty, or - for the standard input")


def _is_server_option(word: str) -> bool:
    """True for options of the server that a value follows."""
    return word in FLAG_KEYS or any(
        word == option.flag and not isinstance(option.row.kind, Switch) for option in SERVER_OPTIONS
    )


def names_model(word: str) -> bool:
    """True if a single word is the model or a URL, and not a prompt: see the help of `complete`."""
    if is_url(word) or word.startswith(("/", "./", "../", "~/")) or word.endswith(".gguf"):
        return True
    return bundled_or(Path(word)) != Path(word) or Path(word).is_dir() or hub_model(word) is not None


def _parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        parameter.name: sent(values[parameter.name]) for parameter in PARAMETERS if values[parameter.name] is not None
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _path(value: object) -> Path | None:
    return None if value is None else Path(str(value)).expanduser()


def chat_help() -> str:
    """How it is used, and the options, a line each."""
    return _CHAT_USAGE + options_text(CHAT_OPTIONS)


def complete_help() -> str:
    """How it is used, and the options, a line each."""
    return _COMPLETE_USAGE + options_text(COMPLETE_OPTIONS)


_CHAT_USAGE = """\
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

_COMPLETE_USAGE = """\
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
