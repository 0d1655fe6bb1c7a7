"""The options of `dragoman plan` itself; all others are the planned server's. `plan_run` runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.subcommand import Command, ReadWords, option, options_of
from dragoman.config.kinds import Choice, FilePath, Integer, Number, Switch

ROUTERS = ("least-outstanding", "prefix")

_USAGE = """\
usage: dragoman plan [MODEL] --rate R --prompt N --output M [options]

Says how many replicas of a server answer R requests a second of N prompt and M completion tokens each, within bounds on
latency, and what they do meanwhile: the rolling engine's scheduler is run in simulated time, over what its steps cost.
These costs are measured in a server that is started for it on this machine, which should be idle; --costs FILE keeps them,
and a file of another machine plans for that one. --costs-from FILE takes them from what a server did (`dragoman serve
--step-log FILE`). All options of `dragoman serve` may be given too, and act as they do there. See docs/scaling.md.

  dragoman plan ./my-model --rate 20 --prompt 512 --output 128 --ttft 1 --itl 0.1
  dragoman plan ./my-model --rate 20 --prompt 512 --output 128 --replicas 4 --costs costs.json
  dragoman plan ./my-model --rate 20 --prompt 512 --output 128 --costs-from steps
"""


@dataclass(frozen=True, slots=True)
class PlanArguments:
    """The arguments, in seconds and tokens. `server_words`: the options of the planned server."""

    server_words: tuple[str, ...]
    rate: float = option(Number(), "requests a second that arrive, at random (Poisson)", is_needed=True)
    prompt: int = option(Integer(2), "prompt tokens of a request", is_needed=True)
    output: int = option(Integer(1), "completion tokens of a request", is_needed=True)
    ttft: float | None = option(Number(), "seconds that 99 % of first tokens may take [any time]")
    itl: float | None = option(Number(), "seconds that 99 % of gaps between tokens may take [any time]")
    replicas: int | None = option(Integer(1), "so many, instead of as few as keep the bounds")
    costs: Path | None = option(
        FilePath("FILE"), "a JSON file of step costs; written if it is not there, or by --costs-from [not kept]"
    )
    costs_from: Path | None = option(
        FilePath("FILE"), "the step log of a server (see --step-log) to take the costs from [measured]"
    )
    shared_prefix: int = option(Integer(1), "tokens with which a prompt begins as others do [none]", 0)
    prefixes: int = option(Integer(1), "how many such beginnings there are; the n-th is 1/n times as frequent", 1)
    router: str = option(Choice(ROUTERS), "how requests are divided [least-outstanding]", "least-outstanding")
    requests: int = option(Integer(20), "requests that are simulated for a replica [300]", 300)
    disk_gb_s: float = option(Number(), "GB a second that a disk reads, for prompts that are kept there [1]", 1.0)
    json: bool = option(Switch(), "print JSON instead of a table", False)


def read_plan(words: ReadWords) -> PlanArguments | None:
    words.server_words = [*words.others, *words.flags]
    prefix, prompt = words.values["shared_prefix"], words.values["prompt"]
    if prompt is not None and prefix >= prompt:
        words.refuse("shared_prefix", f"must be less than --prompt ({prompt})")
    if "prefixes" in words.texts and "shared_prefix" not in words.texts:
        words.refuse("prefixes", "needs --shared-prefix, the tokens of each")
    if words.values["router"] == "prefix" and "shared_prefix" not in words.texts:
        words.refuse("router", "needs --shared-prefix, the tokens that it goes by")
    return words.made(PlanArguments, server_words=tuple(words.server_words))


COMMAND = Command(_USAGE, options_of(PlanArguments), read_plan, "dragoman.cli.plan_run", takes_server_options=True)
