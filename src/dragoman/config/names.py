"""Finds the option behind a written name, and the nearest known name behind a mistyped one."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from dragoman.config.entries import ModelList
from dragoman.config.foreign import FOREIGN_OPTIONS, FOREIGN_VARIABLES, ForeignOption
from dragoman.config.kinds import NamedDirectories, Switch
from dragoman.config.option import Alias, Option
from dragoman.config.options import OPTIONS
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


class NameIndex:
    """All names of all options. A lookup returns a list, as `inference_address` names two options."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[Match]] = {}
        self._by_variable: dict[str, list[Match]] = {}
        self._spelling: dict[str, str] = {}
        for option in OPTIONS:
            self._add_option(option)
        for other in FOREIGN_OPTIONS:
            self._add_key(other.key, Match(other))
        for variable, key in FOREIGN_VARIABLES.items():
            self._by_variable.setdefault(variable, []).extend(self._by_key[key.lower()])

    def _add_option(self, option: Option) -> None:
        for rank, alias in enumerate(option.row.env, start=1):
            self._by_variable.setdefault(alias.name, []).append(Match(option, alias, rank))
        if not option.key:
            return
        self._add_key(option.key, Match(option))
        for alias in option.row.keys:
            self._add_key(alias.name, Match(option, alias))
        if option.flag and option.name not in (bare(option.key), bare(option.key).lower()):
            self._add_key(PREFIX + option.name, Match(option))

    def _add_key(self, key: str, match: Match) -> None:
        self._by_key.setdefault(key.lower(), []).append(match)
        self._spelling[key.lower()] = key

    def find(self, given: Given) -> list[Match]:
        """The options that `given` sets; [] for an unknown name. Keys match with and without PREFIX, in any case."""
        key = given.key.lower()
        other = key.removeprefix(PREFIX) if key.startswith(PREFIX) else PREFIX + key
        if given.source != "environment" or given.key != given.name:
            return self._by_key.get(key) or self._by_key.get(other) or []
        return self._by_variable.get(given.name, [])

    def secret(self, given: Given) -> str:
        """The error for a secret in the wrong source, with the right one; "" for other names."""
        option = next((one for one in OPTIONS if one.row.is_secret and one.name == bare(given.key.lower())), None)
        if option is None:
            return ""
        variable = option.row.env[0].name if option.row.env else option.variable
        file = next((one.flag for one in OPTIONS if one.name == f"{option.name}_file"), None)
        or_file = f", or name a file that holds it: {file} FILE" if file else ""
        return f"where others on this machine may read them: set the variable {variable}{or_file}"

    def nearest(self, given: Given) -> str | None:
        known = {bare(key): key for key in self._spelling}
        found = get_close_matches(bare(given.key.lower()), known, n=1, cutoff=0.6)
        return _in_form_of(given, self._spelling[known[found[0]]]) if found else None


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
