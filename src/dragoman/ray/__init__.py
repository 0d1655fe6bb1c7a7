"""dragoman on Ray Serve: `serve run dragoman.ray:app`, or `serve run dragoman.ray:build model=DIRECTORY`.

Ray is imported when one of them is used. A server deployment holds the HTTP application, the tokenizer and an engine
that sends requests to the replicas of an engine deployment.
"""

from __future__ import annotations

from typing import Any

__all__ = ["app", "build"]


def __getattr__(name: str) -> Any:
    """`build`, or `app`: its result without arguments."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from dragoman.ray.application import build

    return build if name == "build" else build({})
