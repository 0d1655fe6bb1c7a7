"""The sampling parameters that the terminal commands take, as options and behind `/set`, by the names of OpenAI's API.

Does: list them, say what each allows, read one value. Does not: send or apply them; which have an effect, the server says.
Used by the commands' arguments and by `/set`; the ranges are those of the OpenAI routes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dragoman.cli.command_options import CommandOption
from dragoman.config.kinds import Integer, Kind, Number, Switch


@dataclass(frozen=True, slots=True)
class Stops:
    """One text, or several as a JSON array; backslash sequences count in JSON only."""

    allowed = 'a text that is not empty, or a JSON array of such texts, as in ["\\n", "END"]'
    placeholder = "TEXT"

    def parse(self, text: str) -> tuple[str, ...]:
        """The texts. Raises: ValueError if one is empty, or there is none."""
        found = json.loads(text) if text.lstrip().startswith("[") else [text]
        if not found or not all(isinstance(stop, str) and stop for stop in found):
            raise ValueError(text)
        return tuple(found)


_MOST = 2**32 - 1
_FRACTION = Number(0.0, inclusive=True, maximum=1.0)
_PENALTY = Number(-2.0, inclusive=True, maximum=2.0)
_DEVIATIONS = Number(-1.0, inclusive=True, maximum=100.0)

PARAMETERS = (
    CommandOption(
        "temperature",
        Number(0.0, inclusive=True, maximum=2.0),
        "how far sampling strays from the likeliest token; 0 = never",
    ),
    CommandOption("top_p", _FRACTION, "sample among the likeliest tokens with this much probability together"),
    CommandOption("top_k", Integer(-1, _MOST), "sample among so many of the likeliest tokens; -1 = all"),
    CommandOption("min_p", _FRACTION, "leave out tokens less likely than this fraction of the likeliest"),
    CommandOption("typical_p", Number(0.0, maximum=1.0), "sample among tokens about as likely as expected"),
    CommandOption(
        "thinking_token_budget",
        Integer(-1, _MOST),
        "most tokens of reasoning, which is ended then; 0 = none, -1 = as many as the model likes",
    ),
    CommandOption("repetition_penalty", Number(), "above 1: tokens of prompt and answer become less likely"),
    CommandOption("presence_penalty", _PENALTY, "above 0: tokens of the answer become less likely"),
    CommandOption("frequency_penalty", _PENALTY, "likewise, for each time that they are there"),
    CommandOption(
        "dry_multiplier",
        Number(0.0, inclusive=True, maximum=1000.0),
        "DRY: what going on with a repetition costs; 0 = off",
    ),
    CommandOption(
        "dry_base", Number(1.0, inclusive=True, maximum=100.0), "DRY: by how much more for each further token"
    ),
    CommandOption("dry_allowed_length", Integer(1, _MOST), "DRY: tokens that may be repeated"),
    CommandOption("dry_penalty_last_n", Integer(-1, _MOST), "DRY: tokens that are searched; -1 = all"),
    CommandOption("dry_sequence_breakers", Stops(), "DRY: a text that ends repetitions, or a JSON array of texts"),
    CommandOption(
        "top_n_sigma", _DEVIATIONS, "leave out tokens so many standard deviations below the likeliest; 0 = none"
    ),
    CommandOption("xtc_probability", _FRACTION, "XTC: how often the likeliest tokens but the last are left out"),
    CommandOption("xtc_threshold", _FRACTION, "XTC: the probability from which tokens count as likeliest"),
    CommandOption("seed", Integer(-(2**63), 2**64 - 1), "the same answer again for the same seed"),
    CommandOption("max_tokens", Integer(1, _MOST), "tokens of an answer at most"),
    CommandOption("min_tokens", Integer(0, _MOST), "tokens of an answer at least"),
    CommandOption("stop", Stops(), "a text that ends the answer, or a JSON array of texts"),
    CommandOption("ignore_eos", Switch(), "go on behind the end-of-sequence token"),
)
"""All of them. None of them set = what the server takes where clients say nothing."""

_BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


def kind_of(name: str) -> Kind:
    """The kind of values that the parameter allows. Raises: ValueError, a line for people, if no parameter has that name."""
    parameter = _BY_NAME.get(name.replace("-", "_"))
    if parameter is None:
        raise ValueError(f"{name}: unknown parameter; must be one of {', '.join(_BY_NAME)}")
    return parameter.kind


def read_parameter(name: str, text: str) -> tuple[str, Any]:
    """(The parameter's own name, its value for a JSON body). Raises: ValueError, a line for people."""
    kind, name = kind_of(name), name.replace("-", "_")
    try:
        return name, sent(kind.parse(text))
    except ValueError:
        raise ValueError(f"{name}={text}: must be {kind.allowed}") from None


def sent(value: Any) -> Any:
    """A value as it stands in a JSON body."""
    return list(value) if isinstance(value, tuple) else value
