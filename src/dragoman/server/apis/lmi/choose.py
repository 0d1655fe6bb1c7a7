"""Chooses the dialect of a body on the LMI routes, which carry LMI, chat and completion requests.

Does: look at the top-level keys. Does not: validate: a body that cannot be read is LMI's, whose error it becomes.
Called by the routes, on the event loop. A key that is null counts as absent.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dragoman.server.api import HttpCall

Choice = Literal["lmi", "chat", "completions"]

# `curl -d` calls its body a form whatever it holds; a real form is no JSON object and goes to LMI
_JSON_TYPES = ("", "application/json", "application/x-www-form-urlencoded")

_NULL = msgspec.Raw(b"null")


class _Keys(msgspec.Struct):
    """The keys that decide; their values stay undecoded."""

    messages: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    inputs: msgspec.Raw = _NULL


def choose(http: HttpCall) -> Choice:
    """ "chat" for a JSON object with `messages`, "completions" for one with `prompt` and no `inputs`, else "lmi"."""
    if http.media_type not in _JSON_TYPES:
        return "lmi"
    try:
        keys = msgspec.json.decode(http.body, type=_Keys)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "lmi"
    if _is_given(keys.messages):
        return "chat"
    if _is_given(keys.prompt) and not _is_given(keys.inputs):
        return "completions"
    return "lmi"


def _is_given(value: msgspec.Raw) -> bool:
    return bytes(value).strip() != b"null"
