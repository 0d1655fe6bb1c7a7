"""Lists the models that could be loaded. Reads a model's files again only if its folder has changed."""

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
    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._seen: dict[_State, UnloadedModel] = {}
        self._cards: dict[str, ModelCard] = {}  # of formerly loaded models, by name

    def models(self) -> tuple[UnloadedModel, ...]:
        """The models in the directory now. Called on worker threads, one at a time."""
        found: dict[_State, UnloadedModel] = {}
        for entry in self._store.entries():
            try:
                state = (entry.name, entry.directory.stat().st_mtime_ns)
            except OSError:  # just deleted
                continue
            found[state] = self._seen.get(state) or _unloaded(entry)
        self._seen = found
        return tuple(found.values())

    def note_card(self, name: str, card: ModelCard) -> None:
        self._cards[name] = card

    def dropped(self, wanted: Wanted) -> UnloadedModel:
        """The entry of a dropped model, which a call loads again."""
        card = self._cards.get(wanted.name, ModelCard())
        return UnloadedModel(wanted.name, wanted.names[1:], wanted.url, card)


def _unloaded(entry: ModelEntry) -> UnloadedModel:
    try:
        card = model_card(entry.directory)
    except (ModelError, OSError):  # loading reports the problem
        card = ModelCard()
    return UnloadedModel(entry.name, url=str(entry.directory), card=card)
