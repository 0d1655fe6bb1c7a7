"""Blocks of the key/value cache that outlive memory: a directory of files, within a budget, shared by processes.

Does: keep a block's bytes under a key, find and read them, verify them, delete the least recently used. Does not: know
engines, models or HTTP, or a block's content. The rolling engine reads and writes; `dragoman store`
lists and deletes.

    store = BlockStore.open(Path("~/.cache/dragoman/prefixes").expanduser(), 20 << 30)   # StoreError says in a line why not
    store.write(key, [keys, values], label="llama", keep_until=time.time() + 300, group=b"alice")
    key in store                                                     # in memory, on any thread
    store.read([key], [[keys, values]])                              # 1: the arrays are filled

`store` has the whole interface, `layout` the files' format, `retention` the order in which segments go.
"""

from dragoman.prefix_store.directory import StoreError
from dragoman.prefix_store.layout import Content, Key
from dragoman.prefix_store.store import BlockStore, Damage, SegmentFacts, Stats

__all__ = ["BlockStore", "Content", "Damage", "Key", "SegmentFacts", "Stats", "StoreError"]
