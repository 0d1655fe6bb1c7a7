"""The target of a terminal command.

Does: hold it. Does not: connect to it. Made by the commands' arguments.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target. `url` None = a model loaded here. `model` None = the server's first. `key_variable`: of the environment."""

    url: str | None = None
    model: str | None = None
    key_variable: str = ""
