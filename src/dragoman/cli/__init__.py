"""The command line."""

from dragoman.cli.main import main

__all__ = ["main"]
