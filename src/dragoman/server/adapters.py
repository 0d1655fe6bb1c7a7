"""The adapters of a served model, which operators load and unload while the server runs. Used on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.engine.base import AdapterLoading, Engine
from dragoman.errors import Conflict, InvalidRequest, NotFound


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """One adapter. `source`: its directory, as in the call that loaded it."""

    name: str
    source: str


class ServedAdapters:
    """The adapters of one model. `loading` None = they never change, else they come from below `roots`."""

    def __init__(
        self,
        engine: Engine,
        loading: AdapterLoading | None,
        first: Mapping[str, str],
        roots: Sequence[Path] = (),
        taken: Iterable[str] = (),
        links_out: Callable[[Path], Sequence[str]] = lambda directory: (),
    ) -> None:
        """`taken`: the model's own names. `links_out`: a line for each link that leads out of a directory."""
        self._engine = engine
        self._loading = loading
        self._sources = dict(first)
        self._roots = roots
        self._taken = frozenset(taken)
        self._links_out = links_out

    @property
    def names(self) -> tuple[str, ...]:
        return self._engine.capabilities.adapters

    @property
    def can_change(self) -> bool:
        return self._loading is not None

    def all(self) -> list[ServedAdapter]:
        return [ServedAdapter(name, self._sources.get(name, "")) for name in self.names]

    def get(self, name: str) -> ServedAdapter:
        """The adapter with that name. Raises: NotFound."""
        if name not in self.names:
            raise NotFound(f"Adapter not found: {name}", param="name")
        return ServedAdapter(name, self._sources.get(name, ""))

    async def load(self, name: str, source: str, *, is_replacing: bool = False) -> None:
        """Load an adapter and serve it. Raises: as `AdapterLoading`, Conflict, InvalidRequest."""
        loading = self._changing()
        if not name or not name.isprintable() or len(name) > 256 or len(name.replace(",", " ").split()) != 1:
            raise InvalidRequest(f"Adapter name {name!r} must be one word of at most 256 characters", param="name")
        if name in self._taken:
            raise Conflict(f"Adapter {name} cannot be loaded: this is the model's own name", param="name")
        directory = self._allowed(source)
        if lines := await asyncio.to_thread(self._links_out, directory):
            raise InvalidRequest(f"Adapter directory {source!r} cannot be loaded: {lines[0]}", param="src")
        await loading.load_adapter(name, directory, is_replacing=is_replacing)
        self._sources[name] = source

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter; running ones keep it. Raises: NotFound."""
        self.get(name)
        await self._changing().unload_adapter(name)
        self._sources.pop(name, None)

    def _changing(self) -> AdapterLoading:
        if self._loading is None:
            raise InvalidRequest("Adapters cannot be loaded here: start the server with --enable-lora")
        return self._loading

    def _allowed(self, source: str) -> Path:
        """The directory without links and `..`, below one of the roots. Raises: InvalidRequest."""
        text = source.removeprefix("file://")
        for root in self._roots:
            try:
                path = (root / text).resolve()
            except (OSError, ValueError, RuntimeError):  # a null byte, links in a circle
                break
            if text and path.is_relative_to(root.resolve()) and path != root.resolve():
                return path
        allowed = " or ".join(str(root) for root in self._roots)
        raise InvalidRequest(
            f"Adapter directory {source!r} must lie in {allowed}; --lora-store names another directory", param="src"
        )
