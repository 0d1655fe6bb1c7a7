"""The options of `dragoman selftest` itself; all others are the server's, for the model that is tested.

Does: list them for `--help`. Does not: read the server's options, or test. Called by `main`.
"""

from __future__ import annotations

from dragoman.cli.command_options import CommandOption, options_text
from dragoman.config.kinds import Switch

OPTIONS = (
    CommandOption("quick", Switch(), "leave out what loads the model a second time", False),
    CommandOption("json", Switch(), "print JSON instead of a table", False),
)

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


def selftest_help() -> str:
    """How it is used, and the options, a line each."""
    return _USAGE + options_text(OPTIONS)
