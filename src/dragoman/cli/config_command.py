"""`dragoman config`: writes the resolved options with their sources. Loads no model. Called by `main`."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.config.option import Option, show
from dragoman.config.options import GROUPS, OPTIONS
from dragoman.config.resolve import Config


def config_text(config: Config) -> str:
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
