"""The commands: their names, what each is for, and the module that knows its options.

Does: list them. Does not: import the modules before they are asked for, since `--help` need not wait for them.
Used by `main` and by the completion of shells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.cli.command_options import Command


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """Where a command is. `module` "" = `main` itself, with the options of a server. `flags`: what else may stand there."""

    summary: str
    module: str
    attribute: str = "COMMAND"
    flags: Mapping[str, str] = field(default_factory=dict)


COMMANDS: Mapping[str, CommandPlace] = {
    "serve": CommandPlace("load a model and answer clients", ""),
    "chat": CommandPlace("a conversation in the terminal", "terminal.arguments", "CHAT"),
    "complete": CommandPlace("go on with a text", "terminal.arguments", "COMPLETE"),
    "batch": CommandPlace("answer a file of requests", "batch.arguments"),
    "bench": CommandPlace("measure a server", "bench.arguments"),
    "pull": CommandPlace("bring a model of the hub to this machine", "pull_command"),
    "models": CommandPlace("list or remove the models on this machine", "models_command"),
    "config": CommandPlace("print what was resolved and from where", "", flags={"--docs": "the page of all options"}),
    "plan": CommandPlace("how many replicas a load needs", "plan.arguments"),
    "eval": CommandPlace("perplexity, and how far a model is from another one", "eval.arguments"),
    "compress": CommandPlace("write a checkpoint with weights of 4 or 8 bits", "compress.arguments"),
    "warm": CommandPlace("compute beginnings of prompts before anybody asks", "warm.arguments"),
    "store": CommandPlace("list, verify, trim or empty the prompts on disk", "store.arguments"),
    "explain": CommandPlace("what would be done with a call", "explain.arguments"),
    "selftest": CommandPlace("whether the model computes here as it should", "selftest.arguments"),
    "doctor": CommandPlace("what would run here, and what is wrong", "doctor.arguments"),
    "completion": CommandPlace("a script by which a shell completes these commands", "completion.completion_command"),
}
"""In the order of `--help`."""


def command_at(place: CommandPlace) -> Command | None:
    """The command there; None where `main` is it."""
    if not place.module:
        return None
    module: Any = import_module(f"dragoman.cli.{place.module}")
    command: Command = getattr(module, place.attribute)
    return command
