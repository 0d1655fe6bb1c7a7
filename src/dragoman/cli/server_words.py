"""Resolves the server's options into configurations, reports problems with them, and prints them. Loads no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from dragoman.cli.arguments import read_arguments
from dragoman.cli.progress import ProgressDisplay, note_to
from dragoman.config.engine_options import GROUPS, OPTIONS
from dragoman.config.hub_models import FindModel, with_models
from dragoman.config.option import Option, show
from dragoman.config.resolve import Config, ConfigError, demo_model_dir
from dragoman.config.several import Resolved, resolve_all
from dragoman.config.sources import Given


def read_server_words(
    words: Sequence[str], environ: Mapping[str, str], errors: TextIO, *, may_download: bool
) -> tuple[Sequence[Given], Resolved] | None:
    """The command line's values and the configurations, or None after writing the problems to `errors`.

    Without `may_download` a model of the hub must be in the cache.
    """
    arguments = read_arguments(words)
    problems = list(arguments.problems)
    demo_dir = demo_model_dir()
    display = ProgressDisplay(errors)

    def resolved_with(find: FindModel | None) -> Resolved:
        resolved = resolve_all(arguments.givens, environ, demo_dir, find=find)
        if problems:  # a malformed command line: download nothing
            raise ConfigError(())
        return resolved

    try:
        if may_download:
            return arguments.givens, with_models(resolved_with, demo_dir, environ, display, note_to(errors))
        return arguments.givens, resolved_with(None)
    except ConfigError as error:
        problems += error.problems
    finally:
        display.finish()
    errors.writelines(f"dragoman: {problem}\n" for problem in problems)
    return None


def read_one_model(
    words: Sequence[str], environ: Mapping[str, str], errors: TextIO, *, may_download: bool = True
) -> Config | None:
    """The configuration of the only named model, or None after writing the problems to `errors`."""
    found = read_server_words(words, environ, errors, may_download=may_download)
    if found is None:
        return None
    models = found[1].models
    if len(models) != 1:
        errors.write(f"dragoman: {len(models)} models are named, and this command is for one; name its directory\n")
        return None
    return models[0]


def config_text(config: Config) -> str:
    """The resolved options with their sources, for `dragoman config`."""
    return "\n".join(_lines(config)) + "\n"


def _lines(config: Config) -> Iterator[str]:
    yield f"model {config.name} in {config.model_dir}"
    for group in GROUPS:
        yield ""
        yield f"{group.__doc__}:"
        for option in OPTIONS:
            if option.group is group:
                yield _option_line(config, option)
    if config.engine_options:
        yield ""
        yield f"Of the engine {config.engine.engine}:"
        yield from (f"  {config.cite(name)}" for name in config.engine_options)
    if config.notices:
        yield ""
        yield "Without effect:"
        yield from (f"  {notice}" for notice in config.notices)


def _option_line(config: Config, option: Option) -> str:
    origin = config.origins[option.name]
    where = f"{origin.source}: {origin.name}" if origin.name else origin.source
    return f"  {option.name:<21} {_value_text(config, option):<40} {where}"


def _value_text(config: Config, option: Option) -> str:
    value = config.value(option)
    if value in (None, (), ""):
        return f"({option.row.unset})"
    return "(hidden)" if option.row.is_secret else show(value)
