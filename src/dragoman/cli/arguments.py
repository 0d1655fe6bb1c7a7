"""Reads the command line into named texts, the form of all sources of options. Does not judge values.

The standard library's parser would word errors differently from the other sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType

from dragoman.config.engine_options import OPTIONS
from dragoman.config.kinds import FALSE_WORDS, TRUE_WORDS
from dragoman.config.names import Match, find_options, key_of
from dragoman.config.sources import Given

SOURCE = "command line"
_LISTS_MODELS = re.compile(r"[=,\s]|^(ALL|NONE)$", re.IGNORECASE)

FLAG_KEYS: Mapping[str, str] = MappingProxyType(
    {flag: option.name for option in OPTIONS for flag in option.row.flags}
    | {"-w": "workflows", "-ngl": "n_gpu_layers", "-fa": "flash_attn", "-cb": "cont_batching"}
    | dict.fromkeys(("--model", "--model-path", "--hf-repo", "-hf"), "option.model_id")
)
"""Flags whose key does not follow from their name: those of LMI and llama.cpp, and `--model`, also an option of vLLM."""

ONE_OR_MORE = "-m"
"""The flag that names a model, as llama.cpp and vLLM have it, or several models in the form of LMI's front end."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Option values, and one-line problems with the form of the command line."""

    givens: tuple[Given, ...]
    problems: tuple[str, ...] = ()


def read_arguments(words: Sequence[str]) -> Arguments:
    """The values on a command line; a single word without dashes is the model's directory."""
    rest, models = list(words), []
    reader = FlagReader(rest)
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word != "-":
            reader.take(word)
        else:
            models.append(word)
    return reader.arguments(models)


class FlagReader:
    """Reads the server's flags. `words`: what follows on the command line, from which values are taken."""

    def __init__(self, words: list[str]) -> None:
        self.givens: list[Given] = []
        self.problems: list[str] = []
        self._words = words
        self._has_unknown = False

    def take(self, word: str) -> None:
        """Read a flag, and take its values off the words."""
        name, has_value, value = word.partition("=")
        if not has_value and self._is_one_model(name):
            self.givens.append(Given(name, FLAG_KEYS["--model"], self._words.pop(0), SOURCE))
            return
        given = given_by(name, value)
        matches = find_options(given)
        if not matches and name.startswith("--no-"):
            key = FLAG_KEYS.get(f"--{name.removeprefix('--no-')}", given.key.removeprefix("no_"))
            negated = replace(given, key=key, text="false")
            found = find_options(negated)
            if found and found[0].is_switch and not has_value:
                self.givens.append(negated)
                return
        if not matches:
            self._has_unknown = True
            if not has_value and self._words and not self._words[0].startswith("-"):
                given = given_by(name, self._words.pop(0))
            self.givens.append(given)  # `resolve` suggests the nearest option
        elif has_value:
            self._add(given, matches[0])
        else:
            self._take_value(name, matches[0])

    def _is_one_model(self, name: str) -> bool:
        """True for `-m PATH`; False for LMI's list of models."""
        followers = list(takewhile(lambda word: not is_flag(word), self._words))
        return name == ONE_OR_MORE and len(followers) == 1 and not _LISTS_MODELS.search(followers[0])

    def _add(self, given: Given, match: Match) -> None:
        before = next((earlier for earlier in self.givens if earlier.key == given.key), None) if match.adds_up else None
        if before is None:
            self.givens.append(given)
        else:
            self.givens[self.givens.index(before)] = replace(before, text=f"{before.text},{given.text}")

    def _take_value(self, name: str, match: Match) -> None:
        follower = self._words[0] if self._words else None
        if match.is_switch:
            takes_it = follower is not None and is_truth(follower)
            self.givens.append(given_by(name, self._words.pop(0) if takes_it else "true"))
        elif follower is None or is_flag(follower):
            self.problems.append(f"{name} ({SOURCE}): must be followed by a value")
        elif match.is_list:
            end = next((index for index, word in enumerate(self._words) if is_flag(word)), len(self._words))
            self._add(given_by(name, ",".join(self._words[:end])), match)
            del self._words[:end]
        else:
            self._add(given_by(name, self._words.pop(0)), match)

    def arguments(self, words: Sequence[str]) -> Arguments:
        """The values read so far. `words`: those without dashes, of which the only one is the model's directory."""
        problems = list(self.problems)
        if self._has_unknown:  # a stray word may be an unknown option's value, which is already a problem
            return Arguments(tuple(self.givens), tuple(problems))
        if len(words) > 1:
            stray = " ".join(words[1:])
            problems.append(f"{stray} ({SOURCE}): unexpected; one model directory at most may be given")
        directories = [Given("MODEL_DIR", "option.model_id", text, SOURCE) for text in words[:1]]
        models = [*directories, *(given for given in self.givens if given.key == "option.model_id")]
        if len(models) > 1:
            named = " and ".join(f"{given.name}={given.text}" for given in models)
            problems.append(f"{named} ({SOURCE}): one model at most may be named; --load-models takes several")
        return Arguments((*self.givens, *directories), tuple(problems))


def given_by(flag: str, value: str = "") -> Given:
    return Given(flag, FLAG_KEYS.get(flag) or key_of(flag.lstrip("-").replace("-", "_")), value, SOURCE)


def is_flag(word: str) -> bool:
    """True for a flag; False for a value such as `-1`."""
    return word.startswith("--") or word.partition("=")[0] in FLAG_KEYS


def is_truth(word: str) -> bool:
    return word.lower() in TRUE_WORDS + FALSE_WORDS
