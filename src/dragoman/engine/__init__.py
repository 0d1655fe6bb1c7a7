"""Engines: what turns token ids into token ids. The server half sees only `engine.base`."""
