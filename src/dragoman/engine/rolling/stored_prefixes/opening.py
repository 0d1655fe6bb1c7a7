"""Opens an engine's store, and names its blocks there. Called by the factory, on a worker thread."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import NamedTuple

from dragoman.engine.factory import EngineOptionError
from dragoman.engine.rolling.needs import prefix_cache_mode
from dragoman.engine.rolling.options import RollingOptions
from dragoman.engine.rolling.stored_prefixes.store import StoredModel
from dragoman.files.model_texts import model_name
from dragoman.models import LoadedModel
from dragoman.models.identity import model_identity
from dragoman.models.profile import computes_alike
from dragoman.models.runtime.kept_name import code_digest
from dragoman.prefix_store import BlockStore, StoreError

_GB = 1e9
_OFFERED_GB = 10


class Stored(NamedTuple):
    store: BlockStore
    model: StoredModel


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
