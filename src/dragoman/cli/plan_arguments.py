"""The options of `dragoman plan` itself; all others are the server's, because a plan is for a server with these options.

Does: take them off the command line, judge their values, list them for `--help`. Does not: read the server's options. Called
by the plan command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.config.kinds import Choice, Integer, Kind, Number, Switch, Text, Value

SOURCE = "command line"
ROUTERS = ("least-outstanding", "prefix")
_COLUMN = 34


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One option. `default` None = not set; `is_needed`: there is no plan without it."""

    name: str
    kind: Kind
    help: str
    default: Value = None
    is_needed: bool = False

    @property
    def flag(self) -> str:
        """How it is written."""
        return "--" + self.name.replace("_", "-")


OPTIONS = (
    PlanOption("rate", Number(), "requests a second that arrive, at random (Poisson)", is_needed=True),
    PlanOption("prompt", Integer(2), "prompt tokens of a request", is_needed=True),
    PlanOption("output", Integer(1), "completion tokens of a request", is_needed=True),
    PlanOption("ttft", Number(), "seconds that 99 % of first tokens may take [any time]"),
    PlanOption("itl", Number(), "seconds that 99 % of gaps between tokens may take [any time]"),
    PlanOption("replicas", Integer(1), "so many, instead of as few as keep the bounds"),
    PlanOption("costs", Text(), "a JSON file of step costs, which is written if it is not there [measured, not kept]"),
    PlanOption("shared_prefix", Integer(1), "tokens with which a prompt begins as others do [none]"),
    PlanOption("prefixes", Integer(1), "how many such beginnings there are; the n-th is 1/n times as frequent", 1),
    PlanOption("router", Choice(ROUTERS), "how requests are divided [least-outstanding]", "least-outstanding"),
    PlanOption("requests", Integer(20), "requests that are simulated for a replica [300]", 300),
    PlanOption("json", Switch(), "print JSON instead of a table", False),
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
    shared_prefix: int
    prefixes: int
    router: str
    requests: int
    json: bool


def read_plan_arguments(words: Sequence[str]) -> tuple[PlanArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    texts, others, problems = _taken(words)
    values: dict[str, Value] = {}
    for option in OPTIONS:
        values[option.name] = option.default
        if option.name in texts:
            try:
                values[option.name] = option.kind.parse(texts[option.name])
            except ValueError:
                problems.append(cite(option.name, texts[option.name]) + f": must be {option.kind.allowed}")
        elif option.is_needed and not any(problem.startswith(option.flag + " ") for problem in problems):
            problems.append(f"{option.flag}: is needed, must be {option.kind.allowed}")
    prefix, prompt = values["shared_prefix"] or 0, values["prompt"]
    if isinstance(prefix, int) and isinstance(prompt, int) and prefix >= prompt:
        problems.append(cite("shared_prefix", prefix) + f": must be less than --prompt ({prompt})")
    if "prefixes" in texts and "shared_prefix" not in texts:
        problems.append(cite("prefixes", texts["prefixes"]) + ": needs --shared-prefix, the tokens of each")
    if "router" in texts and "shared_prefix" not in texts and values["router"] == "prefix":
        problems.append(cite("router", texts["router"]) + ": needs --shared-prefix, the tokens that it goes by")
    if problems:
        return None, others, problems
    costs = values.pop("costs")
    values["shared_prefix"] = prefix
    return PlanArguments(**values, costs=Path(str(costs)) if costs else None), others, []  # type: ignore[arg-type]


def cite(name: str, value: object) -> str:
    """An option with its value and source, as the beginning of an error message."""
    flag = next(option.flag for option in OPTIONS if option.name == name)
    return f"{flag}={value} ({SOURCE})"


def plan_help() -> str:
    """The options, one or two lines each."""
    return (
        "\n".join(f"  {option.flag} {option.kind.placeholder}".ljust(_COLUMN) + option.help for option in OPTIONS)
        + "\n"
    )


def _taken(words: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """(Texts by option, the words that are left, problems with the form)."""
    by_flag = {option.flag: option for option in OPTIONS}
    texts: dict[str, str] = {}
    others: list[str] = []
    problems: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, has_value, value = word.partition("=")
        option = by_flag.get(flag)
        if option is None:
            others.append(word)
        elif has_value or isinstance(option.kind, Switch):
            texts[option.name] = value if has_value else "true"
        elif rest and not rest[0].startswith("--"):
            texts[option.name] = rest.pop(0)
        else:
            problems.append(f"{flag} ({SOURCE}): must be followed by a value")
    return texts, others, problems
