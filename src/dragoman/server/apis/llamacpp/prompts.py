"""Prompts of `/completion` in all their forms: a text, tokens, both mixed, an object around a text, and lists of these.

Does: read them. Does not: tokenise. Called by the dialect, on the event loop.
Source: llama.cpp, tools/server/README.md, `prompt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.errors import UnsupportedFeature
from dragoman.server.apis.llamacpp.parameters import WORDS
from dragoman.server.apis.openai_wire.fields import check_count
from dragoman.types import Limits, MixedPrompt

_ALLOWED = "a text, an array of texts and token ids, an object with prompt_string, or an array of these"


def read_prompts(value: Any, limits: Limits) -> tuple[list[MixedPrompt], bool]:
    """The prompts, and whether they came as a list of several. Raises: InvalidRequest."""
    if value is None:
        raise WORDS.missing("prompt", _ALLOWED)
    if not isinstance(value, list) or any(map(_is_id, value)):
        return [_prompt("prompt", value, limits)], False
    if not value:
        raise WORDS.fault("prompt", "empty", "prompt must hold at least one prompt, got []")
    check_count("prompt", len(value), limits.max_prompts, WORDS)
    return [_prompt(f"prompt[{position}]", one, limits) for position, one in enumerate(value)], True


def _prompt(name: str, value: Any, limits: Limits) -> MixedPrompt:
    if isinstance(value, str):
        return MixedPrompt((value,))
    if isinstance(value, dict):
        return _wrapped(name, value)
    if not isinstance(value, list):
        raise WORDS.wrong(name, _ALLOWED, value)
    return MixedPrompt(_parts(name, value, limits))


def _wrapped(name: str, value: dict[str, Any]) -> MixedPrompt:
    text = value.get("prompt_string")
    if not isinstance(text, str):
        raise WORDS.wrong(f"{name}.prompt_string", "a text", text)
    if value.get("multimodal_data"):
        raise UnsupportedFeature(
            f"{name}.multimodal_data is not supported: send pictures in messages to /v1/chat/completions",
            param=f"{name}.multimodal_data",
        )
    return MixedPrompt((text,))


def _parts(name: str, values: Sequence[Any], limits: Limits) -> tuple[str | int, ...]:
    check_count(name, len(values), limits.max_token_ids, WORDS)
    if not values:
        raise WORDS.fault(name, "empty", f"{name} must hold at least one token id or text, got []")
    for position, one in enumerate(values):
        if not (isinstance(one, str) or (_is_id(one) and one >= 0)):
            raise WORDS.wrong(f"{name}[{position}]", "a token id or a text", one)
    return tuple(values)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
