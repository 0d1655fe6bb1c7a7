"""Chooses the dialect of a body on the LMI routes, which carry LMI, chat and completion requests.

Does: look at the top-level keys. Does not: validate: a body that cannot be read is LMI's, whose error it becomes.
Called by the routes, on the event loop. A key that is null counts as absent.
"""

from __future__ import annotations

import msgspec

from dragoman.server.api import HttpCall
from dragoman.server.json_body import NotJson

INPUTS = "lmi"
CHAT = "lmi.chat"
COMPLETIONS = "lmi.completions"

# `curl -d` calls its body a form whatever it holds; a real form is no JSON object and goes to LMI
_JSON_TYPES = ("", "application/json", "application/x-www-form-urlencoded")

_NULL = msgspec.Raw(b"null")


class _Keys(msgspec.Struct):
    """The keys that decide; their values stay undecoded."""

    messages: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    inputs: msgspec.Raw = _NULL


def dialect_of_body(http: HttpCall) -> str:
    """The dialect's name: an object with `messages` is a conversation, one with `prompt` and no `inputs` a completion."""
    if http.media_type not in _JSON_TYPES:
        return INPUTS
    keys = _keys(http)
    if "messages" in keys:
        return CHAT
    return COMPLETIONS if "prompt" in keys and "inputs" not in keys else INPUTS


def _keys(http: HttpCall) -> frozenset[str]:
    """The keys that decide, as far as they can be read: also of a body that is unusable for what their values hold."""
    try:
        value = http.json()
    except NotJson:
        return _undecoded_keys(http.body)
    return frozenset(name for name in value if value[name] is not None) if isinstance(value, dict) else frozenset()


def _undecoded_keys(body: bytes) -> frozenset[str]:
    try:
        keys = msgspec.json.decode(body, type=_Keys)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return frozenset()
    return frozenset(name for name in _Keys.__struct_fields__ if _is_given(getattr(keys, name)))


def _is_given(value: msgspec.Raw) -> bool:
    return bytes(value).strip() != b"null"
