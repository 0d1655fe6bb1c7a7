"""The sampling parameters of the terminal commands, as options and for `/set`, named as in OpenAI's routes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.cli.command_options import CommandOption
from dragoman.config.kinds import Kind, Number, Switch, parameter_kind
from dragoman.parameters import FURTHER
from dragoman.parameters import PARAMETERS as TABLE


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


def kind_of(name: str) -> Kind:
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
