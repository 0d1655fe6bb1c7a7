"""Resolves command lines, for tests of the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.resolve import ConfigError
from dragoman.config.several import Resolved, resolve_all


def resolved(home: Path, line: str = "", env: Mapping[str, str] | None = None, default_store: str = "none") -> Resolved:
    """The models of a command line and an environment, in which {} stands for `home`. The demo model is next to it."""
    arguments = read_arguments(line.replace("{}", str(home)).split())
    assert arguments.problems == ()
    environ = {name: text.replace("{}", str(home)) for name, text in (env or {}).items()}
    return resolve_all(arguments.givens, environ, home.parent / "demo", home.parent / default_store)


def problems_of(home: Path, resolve: Callable[[], object]) -> list[str]:
    """The problems that `resolve` raises, without the path of `home`."""
    with pytest.raises(ConfigError) as caught:
        resolve()
    return [problem.replace(f"{home}/", "") for problem in caught.value.problems]
