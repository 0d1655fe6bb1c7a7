"""The error for models of the hub, always one line.

Does: define the error. Does not: know the library; `download` words its errors. Raised by this package.
"""

from __future__ import annotations


class HubError(Exception):
    """A model of the hub cannot be obtained; one line with the reason and advice."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
