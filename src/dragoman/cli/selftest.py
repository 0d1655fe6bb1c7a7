"""`dragoman selftest`: tests a model on this machine, and prints the table. `tools.selftest` tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dragoman.cli.commands import FAILED
from dragoman.cli.subcommand import Command, Console, ReadWords, option, options_of
from dragoman.config.kinds import Switch
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import ModelError, ServerError

FAILURES = (ConfigError, ModelError, ServerError, ValueError, OSError)

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


def read_selftest(words: ReadWords) -> SelftestArguments | None:
    words.server_words = [*words.others, *words.flags]
    return words.made(SelftestArguments)


def run(config: Config, arguments: SelftestArguments, console: Console) -> int:
    from dragoman.host.loading import check_rolling, citing, engine_setup, generates
    from dragoman.tokenizer.hf_tokenizer import load_tokenizer
    from dragoman.tools.selftest.checks import Trial, report_json, report_text
    from dragoman.tools.selftest.generating import self_test
    from dragoman.tools.selftest.pooling import pooling_test

    console.display.name = config.name
    check_rolling(config, "; only its models can be tested")
    tokenizer = load_tokenizer(config.model_dir)
    setup = engine_setup(config)
    with citing(config):
        writes = generates(config)
        encode = partial(tokenizer.encode, add_special_tokens=not writes)
        trial = Trial(config.name, setup, encode, console.display, arguments.quick)
        found = self_test(trial) if writes else pooling_test(trial)
    console.display.finish()
    console.stdout.write((report_json if arguments.json else report_text)(found))
    return FAILED if found.is_off else 0


COMMAND = Command(
    _USAGE, options_of(SelftestArguments), read_selftest, "dragoman.cli.selftest", takes_server_options=True
)
