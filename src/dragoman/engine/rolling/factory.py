"""Makes rolling engines: computes a model's memory, loads it, and puts the engine together.

Imports the engine's own modules only while the model is loaded: compiling a graph keeps one core busy, importing
another.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from dragoman.engine.base import EngineTools, MemoryNeeds, PictureRules
from dragoman.engine.factory import BuiltEngine, EngineOptionError, EngineSetup, Progress
from dragoman.engine.rolling.needs import (
    adapter_bytes,
    cache_shape,
    draft_directory,
    max_model_len,
    memory_needs,
    num_blocks,
    prefix_cache_mode,
    refuse_guesses,
    settled_options,
)
from dragoman.engine.rolling.options import RollingOptions
from dragoman.engine.rolling.stored_prefixes.store import Stored, StoredModel
from dragoman.files.model_texts import model_name
from dragoman.models import BLOCK_SIZE, LoadedModel, load_model
from dragoman.models.facts import CacheKind
from dragoman.models.fingerprint import contents_digest
from dragoman.models.identity import model_identity
from dragoman.models.kept_files import code_digest
from dragoman.models.profile import computes_alike
from dragoman.prefix_store import BlockStore, StoreError

logger = logging.getLogger(__name__)

_GB = 1e9
_OFFERED_GB = 10
_REUSED = {
    "all": "prefix cache of prompts and answers",
    "prompt": "prefix cache of prompts",
    "off": "no prefix cache",
}


class RollingFactory:
    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        return memory_needs(setup.model_dir, settled_options(setup))

    def load(self, setup: EngineSetup) -> LoadedRolling:
        options, report = settled_options(setup), setup.progress
        store = open_store(options) if options.stores_prefixes else None  # first: another process may be using it
        kept = replace(options.model_options, has_neighbours=setup.has_neighbours)
        with ThreadPoolExecutor(1, "dragoman-contents") as beside:
            contents = None if store is None else beside.submit(contents_digest, setup.model_dir, options.cache_dir)
            model = load_model(setup.model_dir, kept, report)
        stored = None
        if store is not None and contents is not None:
            stored = Stored(store, stored_model(setup.model_dir, model, contents.result(), options))
        context = max_model_len(options, model.facts.max_position)
        draft = None
        if options.draft_model is not None:
            directory = draft_directory(options.draft_model, model.facts)
            draft = load_model(
                directory,
                replace(options.draft_options, has_neighbours=setup.has_neighbours),
                lambda stage, part: report(f"draft model: {stage}", part),
            )
        refuse_guesses(options, model.facts, draft.facts if draft else None)
        # Imported here: this thread has time for it while the server is imported; `build` would have to wait for it.
        from dragoman.engine.rolling import assembly  # noqa: F401

        return LoadedRolling(options, model, draft, context, report, stored)


@dataclass(frozen=True, slots=True)
class LoadedRolling:
    """A loaded model, to become a rolling engine. `stored`: the store of prompts on disk."""

    options: RollingOptions
    model: LoadedModel
    draft: LoadedModel | None
    max_model_len: int
    progress: Progress
    stored: Stored | None = None

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        from dragoman.engine.rolling.assembly import assemble

        if self.model.adapters is not None:
            memory_bytes = max(memory_bytes - adapter_bytes(self.options, self.model.adapters), 0)
        drafted = () if self.draft is None else self.draft.block_bytes
        shape = cache_shape(self.model.facts, self.model.block_bytes, drafted)
        blocks = num_blocks(self.options, shape, self.max_model_len, memory_bytes)
        self.progress("allocating the key/value cache", 0.0)
        engine = assemble(self.options, self.model, self.draft, blocks, self.max_model_len, tools, self.stored)
        reused = _REUSED[prefix_cache_mode(self.options, self.model.facts, self.model.profile)]
        facts = (
            self.model.facts.architecture,
            self.model.stored_as or f"{self.model.options.weight_type} weights",
            f"{engine.capabilities.max_model_len} tokens of context",
            f"{self.model.profile.kv_type} cache for {_room(blocks, self.model.facts.cache_kinds)}, {reused}",
            *self._disk_facts(),
            *_adapter_facts(self.options, engine.capabilities.adapters),
            *self.model.facts.departures,
        )
        for departure in self.model.facts.departures:
            logger.warning("%s: %s", self.model.facts.architecture, departure)
        tower = self.model.tower
        pictures = None
        if tower is not None:
            pictures = PictureRules(tower.processor, tower.facts.placeholder_id, tower.facts.splits_texts)
        adapters = engine if self.options.enable_lora else None
        bytes_taken = shape.bytes_of(blocks)
        return BuiltEngine(engine, facts, self.model.options.weight_type, bytes_taken, pictures, adapters)

    def _disk_facts(self) -> tuple[str, ...]:
        if self.stored is not None:
            return (fact_of(self.options, self.stored.store),)
        if self.options.prefix_cache == "off":
            return ()
        return (offer_of(sum(self.model.block_bytes), self.model.profile.block_size),)


def _adapter_facts(options: RollingOptions, names: Sequence[str]) -> tuple[str, ...]:
    if options.merge_lora:
        return (f"adapter {options.lora[0].partition('=')[0]} merged into the weights",)
    room = f"room for {options.max_loras}" if options.enable_lora else ""
    named = f"adapters {', '.join(names)}" if names else "no adapter yet" if room else ""
    return tuple(filter(None, [", ".join(filter(None, [named, room]))]))


def _room(num_blocks: Sequence[int], kinds: Sequence[CacheKind]) -> str:
    return " and ".join(_room_of(count, kind) for count, kind in zip(num_blocks, kinds, strict=True))


def _room_of(num_blocks: int, kind: CacheKind) -> str:
    if kind.has_states:
        return f"{num_blocks} states"
    return f"{num_blocks * BLOCK_SIZE} tokens" + (f" in windows of {kind.window}" if kind.window else "")


# --- the store of prompts on disk -------------------------------------------------------------------------------------


def stored_model(model_dir: Path, model: LoadedModel, contents: str, options: RollingOptions) -> StoredModel:
    """`contents`: see `model_identity`."""
    code = code_digest(resources.files("dragoman.engine.rolling.forward"))
    facts, profile = model.facts, model.profile
    # decoded blocks with other rounding need another name
    mode = None if computes_alike(facts, profile) else prefix_cache_mode(options, facts, profile)
    return StoredModel(model_identity(model, contents, code, mode), model_name(model_dir))


def open_store(options: RollingOptions) -> BlockStore:
    """Raises: EngineOptionError if the store's directory cannot be used."""
    directory, most_gb = options.prefix_store_dir, options.prefix_store_gb
    assert directory is not None
    assert most_gb is not None
    try:
        return BlockStore.open(directory, int(most_gb * _GB))
    except StoreError as error:
        raise EngineOptionError("prefix_store_dir", str(error)) from error


def offer_of(block_bytes: int, block_size: int) -> str:
    """One line on the benefit of a store. `block_bytes`: of all cache kinds together."""
    num_tokens = int(_OFFERED_GB * _GB / block_bytes) * block_size
    return f"no prefix store; --prefix-store-gb {_OFFERED_GB} would keep {num_tokens:,} tokens on disk"


def fact_of(options: RollingOptions, store: BlockStore) -> str:
    held = store.stats().bytes / _GB
    return f"prompts on disk: {held:.1f} of {options.prefix_store_gb:g} GB in {options.prefix_store_dir}"


factory = RollingFactory()
