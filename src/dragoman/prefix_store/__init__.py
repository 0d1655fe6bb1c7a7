"""Blocks of the key/value cache that outlive memory: a directory of files, within a budget, shared by processes.

The rolling engine reads and writes; `dragoman store` lists and deletes. `store` has the whole interface.
"""

from dragoman.prefix_store.directory import StoreError
from dragoman.prefix_store.segment import Content, Key
from dragoman.prefix_store.store import BlockStore, Damage, SegmentFacts, Stats

__all__ = ["BlockStore", "Content", "Damage", "Key", "SegmentFacts", "Stats", "StoreError"]
