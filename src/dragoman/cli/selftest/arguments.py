"""The options of `dragoman selftest` itself; all others are the server's, for the tested model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.cli.command_options import Command, ReadWords, option, options_of
from dragoman.config.kinds import Switch

_USAGE = """\
usage: dragoman selftest [MODEL] [options]

Loads a model and checks, in seconds, that it computes on this processor as it should: that answers are the same alone and in
batches, with prompts in pieces and whole, with a cached prefix and fresh; that what is drawn with a seed is drawn again,
whoever runs beside it; how far its stored weights are from f32; and how fast steps are, beside what memory could do. All
options of `dragoman serve` may be given too, and act as they do there. The exit code is 1 if something is off. See
docs/selftest.md.

  dragoman selftest                          the bundled demo model
  dragoman selftest ./my-model --dtype int4 --quick
"""


@dataclass(frozen=True, slots=True)
class SelftestArguments:
    quick: bool = option(Switch(), "leave out what loads the model a second time", False)
    json: bool = option(Switch(), "print JSON instead of a table", False)


def read_selftest(words: ReadWords, _: Mapping[str, str]) -> SelftestArguments | None:
    words.server_words = words.others
    return words.made(SelftestArguments)


COMMAND = Command(
    _USAGE, options_of(SelftestArguments), read_selftest, "dragoman.cli.selftest.command", takes_server_options=True
)
