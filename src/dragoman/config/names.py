"""Finds the option behind a written name, and the nearest known name behind a mistyped one."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from dragoman.config.engine_options import OPTIONS
from dragoman.config.entries import ModelList
from dragoman.config.foreign import FOREIGN_OPTIONS, FOREIGN_VARIABLES, ForeignOption
from dragoman.config.kinds import NamedDirectories, Switch
from dragoman.config.option import Alias, Option
from dragoman.config.sources import Given

PREFIX = "option."
_KEYS = {option.name: option.key for option in OPTIONS if option.key}


@dataclass(frozen=True, slots=True)
class Match:
    """The meaning of a name. Lower `rank` wins where several variables of the environment name one option."""

    target: Option | ForeignOption
    alias: Alias | None = None  # None = the option's own name
    rank: int = 0

    def text(self, given: Given) -> str:
        """The text, converted for the option's own kind. Raises: ValueError if the alias cannot convert it."""
        return self.alias.convert(given.text) if self.alias else given.text

    @property
    def allowed(self) -> str:
        if self.alias and self.alias.allowed:
            return self.alias.allowed
        assert isinstance(self.target, Option)
        row = self.target.row
        return f"{row.kind.allowed}, in {row.unit}" if row.unit else row.kind.allowed

    @property
    def is_switch(self) -> bool:
        if isinstance(self.target, ForeignOption):
            return not {"true", "false"}.isdisjoint(self.target.harmless)
        return isinstance(self.target.row.kind, Switch)

    @property
    def is_list(self) -> bool:
        """True if the flag takes all words up to the next flag, like LMI's `-m`."""
        return isinstance(self.target, Option) and isinstance(self.target.row.kind, ModelList)

    @property
    def adds_up(self) -> bool:
        """True if repeated flags add up."""
        return isinstance(self.target, Option) and isinstance(self.target.row.kind, ModelList | NamedDirectories)


_BY_KEY: dict[str, list[Match]] = {}
_BY_VARIABLE: dict[str, list[Match]] = {}
_SPELLING: dict[str, str] = {}


def _add_option(option: Option) -> None:
    for rank, alias in enumerate(option.row.env, start=1):
        _BY_VARIABLE.setdefault(alias.name, []).append(Match(option, alias, rank))
    if not option.key:
        return
    _add_key(option.key, Match(option))
    for alias in option.row.keys:
        _add_key(alias.name, Match(option, alias))
    if option.flag and option.name not in (bare(option.key), bare(option.key).lower()):
        _add_key(PREFIX + option.name, Match(option))


def _add_key(key: str, match: Match) -> None:
    _BY_KEY.setdefault(key.lower(), []).append(match)
    _SPELLING[key.lower()] = key


def find_options(given: Given) -> list[Match]:
    """The options that `given` sets; [] for an unknown name, two for `inference_address`.

    Keys match with and without PREFIX, in any case.
    """
    key = given.key.lower()
    other = key.removeprefix(PREFIX) if key.startswith(PREFIX) else PREFIX + key
    if given.source != "environment" or given.key != given.name:
        return _BY_KEY.get(key) or _BY_KEY.get(other) or []
    return _BY_VARIABLE.get(given.name, [])


def misplaced_secret(given: Given) -> str:
    """The error for a secret in the wrong source, with the right one; "" for other names."""
    option = next(
        (candidate for candidate in OPTIONS if candidate.row.is_secret and candidate.name == bare(given.key.lower())),
        None,
    )
    if option is None:
        return ""
    variable = option.row.env[0].name if option.row.env else option.variable
    file = next((candidate.flag for candidate in OPTIONS if candidate.name == f"{option.name}_file"), None)
    or_file = f", or name a file that holds it: {file} FILE" if file else ""
    return f"where others on this machine may read them: set the variable {variable}{or_file}"


def nearest_name(given: Given) -> str | None:
    known = {bare(key): key for key in _SPELLING}
    found = get_close_matches(bare(given.key.lower()), known, n=1, cutoff=0.6)
    return _in_form_of(given, _SPELLING[known[found[0]]]) if found else None


def key_of(name: str) -> str:
    """The key of the option with that name, which may also be a key of LMI's (`engine`); else the name."""
    return _KEYS.get(name, name)


def bare(key: str) -> str:
    return key.removeprefix(PREFIX)


def _in_form_of(given: Given, key: str) -> str:
    if given.name.startswith("--"):
        return "--" + bare(key).replace("_", "-")
    if given.source == "environment":
        return ("OPTION_" if key.startswith(PREFIX) else "SERVING_") + bare(key).upper()
    return key if given.key.startswith(PREFIX) else bare(key)


for _option in OPTIONS:
    _add_option(_option)
for _other in FOREIGN_OPTIONS:
    _add_key(_other.key, Match(_other))
for _variable, _key in FOREIGN_VARIABLES.items():
    _BY_VARIABLE.setdefault(_variable, []).extend(_BY_KEY[_key.lower()])
