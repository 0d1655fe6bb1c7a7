"""The options of `dragoman plan` itself; all others are the server's, because a plan is for a server with these options.

Does: list them, judge how they go together. Does not: read the server's options. Called
by the plan command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import CommandOption, options_text, read_options
from dragoman.config.kinds import Choice, Integer, Number, Switch, Text

ROUTERS = ("least-outstanding", "prefix")


OPTIONS = (
    CommandOption("rate", Number(), "requests a second that arrive, at random (Poisson)", is_needed=True),
    CommandOption("prompt", Integer(2), "prompt tokens of a request", is_needed=True),
    CommandOption("output", Integer(1), "completion tokens of a request", is_needed=True),
    CommandOption("ttft", Number(), "seconds that 99 % of first tokens may take [any time]"),
    CommandOption("itl", Number(), "seconds that 99 % of gaps between tokens may take [any time]"),
    CommandOption("replicas", Integer(1), "so many, instead of as few as keep the bounds"),
    CommandOption(
        "costs", Text(), "a JSON file of step costs; written if it is not there, or by --costs-from [not kept]"
    ),
    CommandOption("costs_from", Text(), "the step log of a server (see --step-log) to take the costs from [measured]"),
    CommandOption("shared_prefix", Integer(1), "tokens with which a prompt begins as others do [none]"),
    CommandOption("prefixes", Integer(1), "how many such beginnings there are; the n-th is 1/n times as frequent", 1),
    CommandOption("router", Choice(ROUTERS), "how requests are divided [least-outstanding]", "least-outstanding"),
    CommandOption("requests", Integer(20), "requests that are simulated for a replica [300]", 300),
    CommandOption("disk_gb_s", Number(), "GB a second that a disk reads, for prompts that are kept there [1]", 1.0),
    CommandOption("json", Switch(), "print JSON instead of a table", False),
)


@dataclass(frozen=True, slots=True)
class PlanArguments:
    """What a plan is asked for; see `OPTIONS`. Seconds, tokens."""

    rate: float
    prompt: int
    output: int
    ttft: float | None
    itl: float | None
    replicas: int | None
    costs: Path | None
    costs_from: Path | None
    shared_prefix: int
    prefixes: int
    router: str
    requests: int
    disk_gb_s: float
    json: bool


def read_plan_arguments(words: Sequence[str]) -> tuple[PlanArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    texts, values, others, problems = read_options(OPTIONS, words)
    prefix, prompt = values["shared_prefix"] or 0, values["prompt"]
    if isinstance(prefix, int) and isinstance(prompt, int) and prefix >= prompt:
        problems.append(cite("shared_prefix", prefix) + f": must be less than --prompt ({prompt})")
    if "prefixes" in texts and "shared_prefix" not in texts:
        problems.append(cite("prefixes", texts["prefixes"]) + ": needs --shared-prefix, the tokens of each")
    if "router" in texts and "shared_prefix" not in texts and values["router"] == "prefix":
        problems.append(cite("router", texts["router"]) + ": needs --shared-prefix, the tokens that it goes by")
    if problems:
        return None, others, problems
    values["shared_prefix"] = prefix
    for name in ("costs", "costs_from"):
        values[name] = Path(str(values[name])) if values[name] else None
    return PlanArguments(**values), others, []  # type: ignore[arg-type]


def cite(name: str, value: object) -> str:
    """An option with its value and source, as the beginning of an error message."""
    return next(option for option in OPTIONS if option.name == name).cite(value)


def plan_help() -> str:
    """The options, one or two lines each."""
    return options_text(OPTIONS)
