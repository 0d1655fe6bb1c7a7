"""Prefixes of the cache that lie on disk, too: written behind the engine's back, loaded while others run."""
