"""The words that `dragoman chat` and `dragoman complete` share: who answers, the prompt, and the sampling parameters.

Opens the server that answers. The parameters are named as in OpenAI's routes, and are options and the values of `/set`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dragoman.cli.arguments import SOURCE
from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.subcommand import ArgumentKind, CommandOption, ReadWords, as_url, is_url
from dragoman.cli.terminal.servers import AskFailed, ModelServer, RemoteServer, Target
from dragoman.config.bundled import bundled_or
from dragoman.config.kinds import Kind, Number, Switch, Text, Urls, parameter_kind
from dragoman.config.resolve import Config, ConfigError
from dragoman.hub.names import hub_model
from dragoman.parameters import FURTHER
from dragoman.parameters import PARAMETERS as TABLE

SERVER_CHOICE = (
    CommandOption("remote_model", Text("NAME"), "at a URL: the model to ask [the first that the server lists]"),
    CommandOption(
        "api_key_env", Text("NAME"), "the variable that holds its key [DRAGOMAN_API_KEY]", "DRAGOMAN_API_KEY"
    ),
)


def read_server(words: ReadWords) -> Target:
    """The answering server. For a model loaded here, the remaining words become `server_words`."""
    url = next((word for word in words.others if is_url(word)), None)
    model = words.values["remote_model"]
    if url is None:
        if model is not None:
            words.refuse("remote_model", "is for a URL; a model stands alone")
        words.server_words = None if words.problems else [*words.others, *words.flags]
        return Target()
    words.refuse_server_words([word for word in words.others if not is_url(word)], url)
    try:
        (address,) = Urls().parse(as_url(url))
    except ValueError:
        words.problems.append(f"{url} ({SOURCE}): must be an address as http://HOST:PORT or https://HOST/PATH")
        return Target()
    return Target(url=address, model=model, key_variable=words.values["api_key_env"])


def open_server(
    config: Config | None, target: Target, environ: Mapping[str, str], stderr: TextIO, *, needs_template: bool = False
) -> ModelServer:
    """The server; `close` it at the end. `config` None = the one at the URL.

    `needs_template`: refuse a model without a chat template. Raises: AskFailed.
    """
    if config is None:
        return RemoteServer(str(target.url), target.model, environ.get(target.key_variable, ""))
    return _load(config, stderr, needs_template=needs_template)


def _load(config: Config, stderr: TextIO, *, needs_template: bool) -> ModelServer:
    from dragoman.cli.terminal.local_model import LocalModel  # takes a second to import
    from dragoman.errors import EngineDead, ModelError, ServerError

    _check_purpose(config, needs_template=needs_template)
    display = ProgressDisplay(stderr, name=config.name)
    try:
        return LocalModel(config, display)
    except (ConfigError, ModelError, ServerError, EngineDead, OSError) as error:
        display.finish()
        raise AskFailed(str(error)) from None
    finally:
        display.finish()


def _check_purpose(config: Config, *, needs_template: bool) -> None:
    """Raises: AskFailed for a model that generates nothing, or lacks a needed chat template; called before the load."""
    from dragoman.errors import ModelError
    from dragoman.host.loading import generates
    from dragoman.tokenizer.model_files import read_text_files

    directory = config.model_dir
    if not generates(config):
        raise AskFailed(
            f"{directory} embeds or scores texts and cannot generate; `dragoman serve {directory}` serves it, and "
            "POST /v1/embeddings or /v1/rerank asks it"
        )
    if not needs_template or config.model.chat_template is not None:
        return
    try:
        templates = read_text_files(directory).chat_templates
    except (ModelError, ValueError, OSError):
        return  # loading reports the problem
    if not templates:
        raise AskFailed(
            f"{directory} has no chat template, so it cannot chat; `dragoman complete {directory}` goes on with "
            "texts, and --chat-template FILE gives it a template"
        )


def take_prompt(words: ReadWords, *, may_be_alone: bool) -> str | None:
    """Take the prompt from the words: the word after the model, or a single word that names no model."""
    is_alone = may_be_alone and len(words.others) == 1 and not names_model(words.others[0])
    num_before = 0 if is_alone else 1
    of_prompt, words.others = words.others[num_before:], words.others[:num_before]
    prompt = " ".join(of_prompt) if of_prompt else None
    if prompt is not None and not prompt.strip():
        words.problems.append(f"PROMPT ({SOURCE}): must be a text that is not empty, or - for the standard input")
    return None if prompt == "-" else prompt


def names_model(word: str) -> bool:
    """True if a single word is a model or URL, not a prompt: see the help of `complete`."""
    if is_url(word) or word.startswith(("/", "./", "../", "~/")) or word.endswith(".gguf"):
        return True
    is_place = os.path.isdir(word)  # False also for a text that is too long for a path
    return is_place or bundled_or(Path(word)) != Path(word) or hub_model(word) is not None


# --- sampling parameters ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stops:
    """One text, or several as a JSON array; only JSON has backslash sequences."""

    allowed = 'a text that is not empty, or a JSON array of such texts, as in ["\\n", "END"]'
    placeholder = "TEXT"

    def parse(self, text: str) -> tuple[str, ...]:
        found = json.loads(text) if text.lstrip().startswith("[") else [text]
        if not found or not all(isinstance(stop, str) and stop for stop in found):
            raise ValueError(text)
        return tuple(found)


_OF_OTHER_KINDS: Mapping[str, Kind] = {
    "temperature": Number(0.0, inclusive=True, maximum=2.0),  # as in OpenAI's document
    "stop": Stops(),
    "dry_sequence_breakers": Stops(),
    "ignore_eos": Switch(),
}
_NAMES = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "thinking_token_budget", "repetition_penalty",
    "presence_penalty", "frequency_penalty", *FURTHER, "seed", "max_tokens", "min_tokens", "stop", "ignore_eos",
)  # fmt: skip
PARAMETERS = tuple(
    CommandOption(name, _OF_OTHER_KINDS.get(name) or parameter_kind(name), TABLE[name].effect.replace("`", ""))
    for name in _NAMES
)

_BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


def kind_of(name: str) -> ArgumentKind:
    """The kind of the parameter's values. Raises: ValueError, a line for people, for an unknown name."""
    parameter = _BY_NAME.get(name.replace("-", "_"))
    if parameter is None:
        raise ValueError(f"{name}: unknown parameter; must be one of {', '.join(_BY_NAME)}")
    return parameter.kind


def read_parameter(name: str, text: str) -> tuple[str, Any]:
    """The parameter's name, and its value for a JSON body. Raises: ValueError, a line for people."""
    kind, name = kind_of(name), name.replace("-", "_")
    try:
        return name, sent(kind.parse(text))
    except ValueError:
        raise ValueError(f"{name}={text}: must be {kind.allowed}") from None


def sent(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def read_parameters(words: ReadWords) -> dict[str, Any]:
    values = {parameter.name: words.values[parameter.name] for parameter in PARAMETERS}
    return {name: sent(value) for name, value in values.items() if value is not None}
