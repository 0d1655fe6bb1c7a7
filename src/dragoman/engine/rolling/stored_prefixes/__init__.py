"""Prefixes of the cache on disk: written in the background, loaded while other requests run."""
