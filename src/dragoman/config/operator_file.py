"""Whether an operator's own code lies beside a model: it may have options that the server does not know.

Does: look whether there is a file. Does not: open it (`hooks` does). Called by `resolve`, at start-up.
Source: LMI hands every `option.` of serving.properties to the handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dragoman.config.kinds import Value

FILE_NAME = "model.py"  # LMI's default of option.entryPoint
BUILT_IN = "djl_python"  # the package of LMI's own handlers, which stand for the server itself


def has_operator_file(values: Mapping[str, Value], directories: Iterable[Path]) -> bool:
    """True if hooks are on, and the options name a file or one has the usual name."""
    named = values["entry_point"]
    if not values["hooks"]:
        return False
    if isinstance(named, str) and named.partition(".")[0] != BUILT_IN:
        return True
    return any((directory / FILE_NAME).is_file() for directory in directories)
