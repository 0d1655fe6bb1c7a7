"""Resolves the server's options into configurations, and reports problems with them. Loads no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from dragoman.cli.arguments import read_arguments
from dragoman.cli.progress import ProgressDisplay, note_to
from dragoman.config.hub_models import FindModel, with_models
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
