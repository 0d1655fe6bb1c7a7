"""Names the command that installs an optional part."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command for an extra. No package index has dragoman: it comes from its clone, or from its wheel file."""
    return f"pip install '.[{extra}]' in dragoman's clone, or pip install 'WHEEL[{extra}]' with its wheel file"
