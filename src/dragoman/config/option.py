"""The definition of one option: the row of facts a settings field carries, and the names that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.config.kinds import Kind, Value


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of an option; `convert` turns its text into the option's. `allowed`: values, if they differ."""

    name: str
    convert: Callable[[str], str] = str
    allowed: str = ""


OpenTo = Literal["operator", "model", "load"]
"""Who else than the operator may set an option: nobody; the files of a hub's model; these, and a call that loads a
model.

Nobody else sets an option that names code, a place on this machine or a server, or that guards callers from each other.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The facts of one option that its field does not hold.

    `key`: the name in serving.properties; `option.*` has the variable OPTION_<NAME>, others SERVING_<NAME>. `keys`,
    `env` and `flags`: further names. `unset`: the meaning of the default None.
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
    is_servers: bool = False  # the key is the name, as of LMI's options of the server


@dataclass(frozen=True, slots=True)
class Option:
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
        if self.row.is_secret:
            return ""
        return self.row.key or (self.name if self.row.is_servers else f"option.{self.name}")

    @property
    def variable(self) -> str:
        if self.row.is_secret:
            return self.row.env[0].name
        bare = self.key.removeprefix("option.")
        return ("OPTION_" if bare != self.key else "SERVING_") + bare.upper()

    @property
    def default_text(self) -> str:
        return self.row.unset if self.default in (None, (), "") else show(self.default)


def show(value: Value) -> str:
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
