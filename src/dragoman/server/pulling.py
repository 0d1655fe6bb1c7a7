"""What the HTTP side may ask of whoever brings models of a hub to this machine: a protocol and its values.

Does: name the operation, what it tells, and which errors of `dragoman.errors` it raises. Does not: download;
`dragoman.host` implements it, and nothing below `server` imports that. Called by the routes, on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PullStep:
    """How far a model is.

    `what`: its name on the hub, `commit`: which one. `num_bytes`: of all its files, what has come; `size`: what is needed.
    `note`: what there is to say of it besides, in one line, "" = nothing.
    """

    what: str
    commit: str = ""
    num_bytes: int = 0
    size: int = 0
    note: str = ""


class ModelPulling(Protocol):
    """Brings models of a hub into its cache on this machine."""

    def pull(self, name: str) -> AsyncGenerator[PullStep]:
        """Begin to bring a model; how far it is, whenever that has changed. It is there when this ends.

        `name`: as on the hub. Who asks for a model that is being brought learns how far that is. Leaving the generator
        does not end the download, from which others may learn as well.

        Raises, at once: InvalidParameter (no name of the hub), Overloaded (as many models as may be are being brought);
        while it runs: ServerError with one line that says why it failed; Unavailable (shutting down) both.
        """
        ...

    async def aclose(self) -> None:
        """Begin nothing more, and let nobody wait any longer. Called at the end of the server."""
        ...
