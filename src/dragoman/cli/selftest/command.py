"""`dragoman selftest`: tests a model on this machine, and prints the table. `tools.selftest` tests."""

from __future__ import annotations

from functools import partial

from dragoman.cli.commands import FAILED
from dragoman.cli.run_command import Console
from dragoman.cli.selftest.arguments import SelftestArguments
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import ServerError
from dragoman.host.loading import check_rolling, citing, engine_setup, generates
from dragoman.models import ModelError
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tools.selftest.pooling import pooling_test
from dragoman.tools.selftest.report import report_json, report_text
from dragoman.tools.selftest.run import self_test

FAILURES = (ConfigError, ModelError, ServerError, ValueError, OSError)


def run(config: Config, asked: SelftestArguments, console: Console) -> int:
    console.display.name = config.name
    check_rolling(config, "; only its models can be tested")
    tokenizer = load_tokenizer(config.model_dir)
    setup = engine_setup(config)
    with citing(config):
        if generates(config):
            encode = partial(tokenizer.encode, add_special_tokens=False)
            found = self_test(config.name, setup, encode, console.display, is_quick=asked.quick)
        else:
            found = pooling_test(config.name, setup, tokenizer.encode, console.display, is_quick=asked.quick)
    console.display.finish()
    console.stdout.write((report_json if asked.json else report_text)(found))
    return FAILED if found.is_off else 0
