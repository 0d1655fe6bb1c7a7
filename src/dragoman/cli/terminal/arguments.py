"""The arguments and options of `dragoman chat` and `dragoman complete`; others are the server's, for a local model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.cli.arguments import FLAG_KEYS, SOURCE, is_truth
from dragoman.cli.command_options import Command, CommandOption, ReadWords, as_url, is_url, option, options_of
from dragoman.cli.terminal.parameters import PARAMETERS, sent
from dragoman.cli.terminal.servers.answers import Target
from dragoman.config.bundled import bundled_or
from dragoman.config.kinds import FilePath, Integer, Switch, Text, Urls
from dragoman.config.options import OPTIONS as SERVER_OPTIONS
from dragoman.hub.names import hub_model

MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 256  # of `complete`: a text, unlike a conversation, has no natural end

_OF_SERVERS = (
    CommandOption("remote_model", Text("NAME"), "at a URL: the model to ask [the first that the server lists]"),
    CommandOption(
        "api_key_env", Text("NAME"), "the variable that holds its key [DRAGOMAN_API_KEY]", "DRAGOMAN_API_KEY"
    ),
)

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


def read_chat(words: ReadWords, _: Mapping[str, str]) -> ChatArguments | None:
    prompt = _take_prompt(words, may_be_alone=False)
    return words.made(ChatArguments, target=_target(words), prompt=prompt, parameters=_parameters(words))


def read_complete(words: ReadWords, _: Mapping[str, str]) -> CompleteArguments | None:
    prompt = _take_prompt(words, may_be_alone=True)
    parameters = {"max_tokens": DEFAULT_MAX_TOKENS, **_parameters(words)}
    return words.made(CompleteArguments, target=_target(words), prompt=prompt, parameters=parameters)


def _target(words: ReadWords) -> Target:
    """The answering server. For a model loaded here, the remaining words become `server_words`."""
    url = next((word for word in words.others if is_url(word)), None)
    model = words.values["remote_model"]
    if url is None:
        if model is not None:
            words.refuse("remote_model", "is for a URL; a model stands alone")
        words.server_words = None if words.problems else words.others
        return Target()
    left = [word for word in words.others if not is_url(word)]
    if left:
        words.problems.append(f"{left[0]} ({SOURCE}): is not for {url}: the server there has its own options")
    try:
        (address,) = Urls().parse(as_url(url))
    except ValueError:
        words.problems.append(f"{url} ({SOURCE}): must be an address as http://HOST:PORT or https://HOST/PATH")
        return Target()
    return Target(url=address, model=model, key_variable=words.values["api_key_env"])


def _take_prompt(words: ReadWords, *, may_be_alone: bool) -> str | None:
    """Take the prompt from the words: the word after the model, or a single word that names no model."""
    others = words.others
    places: list[int] = []
    is_value = False
    for place, word in enumerate(others):
        if not is_value and (word == "-" or not word.startswith("-")):
            places.append(place)
        is_value = not is_value and "=" not in word and _is_server_option(word)
        follower = others[place + 1] if place + 1 < len(others) else ""
        is_value |= word.startswith("--") and is_truth(follower)  # of a switch
    of_prompt = places if may_be_alone and len(places) == 1 and not names_model(others[places[0]]) else places[1:]
    words.others = [word for place, word in enumerate(others) if place not in of_prompt]
    prompt = " ".join(others[place] for place in of_prompt) if of_prompt else None
    if prompt is not None and not prompt.strip():
        words.problems.append(f"PROMPT ({SOURCE}): must be a text that is not empty, or - for the standard input")
    return None if prompt == "-" else prompt


def _is_server_option(word: str) -> bool:
    """True for options of the server that take a value."""
    return word in FLAG_KEYS or any(
        word == option.flag and not isinstance(option.row.kind, Switch) for option in SERVER_OPTIONS
    )


def names_model(word: str) -> bool:
    """True if a single word is a model or URL, not a prompt: see the help of `complete`."""
    if is_url(word) or word.startswith(("/", "./", "../", "~/")) or word.endswith(".gguf"):
        return True
    return bundled_or(Path(word)) != Path(word) or Path(word).is_dir() or hub_model(word) is not None


def _parameters(words: ReadWords) -> dict[str, Any]:
    values = {one.name: words.values[one.name] for one in PARAMETERS}
    return {name: sent(value) for name, value in values.items() if value is not None}


CHAT = Command(
    _CHAT_USAGE,
    (*options_of(ChatArguments), *_OF_SERVERS, *PARAMETERS),
    read_chat,
    "dragoman.cli.terminal.chat.chat_command",
    takes_server_options=True,
)
COMPLETE = Command(
    _COMPLETE_USAGE,
    (*options_of(CompleteArguments), *_OF_SERVERS, *PARAMETERS),
    read_complete,
    "dragoman.cli.terminal.complete_command",
    takes_server_options=True,
)
