"""The models that are not loaded and may be, as lists show them.

Does: look into the models directory, read what the files say of each model, again only where its folder has changed.
Does not: load. Used by `ModelHost`; `models` on worker threads, one at a time.
"""

from __future__ import annotations

from dragoman.config.entries import ModelEntry
from dragoman.config.run_time import ModelStore
from dragoman.errors import ModelError
from dragoman.host.cards import model_card
from dragoman.host.hosted import Wanted
from dragoman.server.api import ModelCard
from dragoman.server.registry import UnloadedModel

_State = tuple[str, int]


class Shelf:
    """The models of one store."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._seen: dict[_State, UnloadedModel] = {}
        self._cards: dict[str, ModelCard] = {}  # of models that were loaded, by name

    def models(self) -> tuple[UnloadedModel, ...]:
        """The models that the directory holds now."""
        found: dict[_State, UnloadedModel] = {}
        for entry in self._store.entries():
            try:
                state = (entry.name, entry.directory.stat().st_mtime_ns)
            except OSError:  # it has just gone
                continue
            found[state] = self._seen.get(state) or _unloaded(entry)
        self._seen = found
        return tuple(found.values())

    def note_card(self, name: str, card: ModelCard) -> None:
        """A model that was loaded leaves."""
        self._cards[name] = card

    def dropped(self, wanted: Wanted) -> UnloadedModel:
        """A model that was loaded, and comes back."""
        card = self._cards.get(wanted.name, ModelCard())
        return UnloadedModel(wanted.name, wanted.names[1:], wanted.url, card)


def _unloaded(entry: ModelEntry) -> UnloadedModel:
    try:
        card = model_card(entry.directory)
    except (ModelError, OSError):  # loading it tells what is wrong
        card = ModelCard()
    return UnloadedModel(entry.name, url=str(entry.directory), card=card)
