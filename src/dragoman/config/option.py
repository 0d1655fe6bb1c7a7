"""The definition of one option: the row of facts a settings field carries, and the names that follow from it.

Does: define the types of the table in `options`. Does not: list options or read anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.config.kinds import Kind, Value


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of an option; `convert` turns its text into the option's, or raises ValueError.

    `allowed`: the alias' values, if they differ from the option's.
    """

    name: str
    convert: Callable[[str], str] = str
    allowed: str = ""


OpenTo = Literal["operator", "model", "load"]
"""Who may set an option beside the operator's command line, environment and files: nobody; the files of a model that came
from the hub as well; these, and a call that loads a model. Nobody, unless it is said at the option: what names code, a
place on this machine, or whom this machine talks to, and what guards callers from each other, is nobody else's."""


@dataclass(frozen=True, slots=True)
class Row:
    """The facts of one option that its field does not hold.

    `key`: the name in serving.properties; `option.*` has the variable OPTION_<NAME>, others SERVING_<NAME>. `keys`, `env`
    and `flags`: further names. `unset`: the meaning of the default None. `open_to`: who may set it beside the operator.
    """

    kind: Kind
    help: str
    unit: str = ""
    unset: str = ""
    key: str = ""
    keys: tuple[Alias, ...] = ()
    env: tuple[Alias, ...] = ()
    flags: tuple[str, ...] = ()  # further flags: those of LMI's command line
    is_secret: bool = False  # has no flag or key, which other users could see; the value is never shown
    open_to: OpenTo = "operator"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name in the settings classes, its group's class, its default and its row."""

    name: str
    group: type
    default: Value
    row: Row

    @property
    def flag(self) -> str:
        """The command-line flag, "" for secrets and for the model directory, which is an argument."""
        return "" if self.row.is_secret or self.name == "model_id" else "--" + self.name.replace("_", "-")

    @property
    def key(self) -> str:
        """The serving.properties key, "" for secrets."""
        return "" if self.row.is_secret else self.row.key or f"option.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable, by the naming rule of `key`."""
        if self.row.is_secret:
            return self.row.env[0].name
        bare = self.key.removeprefix("option.")
        return ("OPTION_" if bare != self.key else "SERVING_") + bare.upper()

    @property
    def default_text(self) -> str:
        """The default, for operators."""
        return self.row.unset if self.default in (None, (), "") else show(self.default)


def show(value: Value) -> str:
    """A value in the form of serving.properties."""
    match value:
        case None:
            return "not set"
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def option(default: Any, kind: Kind, help_text: str, **facts: Any) -> Any:
    """A dataclass field with its row; `facts`: the other fields of `Row`."""
    row = Row(kind, help_text, **facts)
    return field(default=default, repr=not row.is_secret, metadata={"row": row})
