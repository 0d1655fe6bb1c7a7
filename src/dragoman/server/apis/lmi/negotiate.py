"""Chooses the shape of a conversation on `/v1/chat/completions`, which OpenAI's and LMI's documents both describe.

Does: look for the few signs that LMI's shape is meant. Does not: parse. Called by the chat dialect, on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.server.api import JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, HttpCall
from dragoman.server.apis.lmi.conversations import LMI
from dragoman.server.apis.openai_wire.chat.dialect import ChatOptions
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.security.gate import KEY_HEADERS

_KEYS = ("authorization", *KEY_HEADERS)


def negotiate(options: ChatOptions, http: HttpCall) -> Profile:
    """The profile that answers this call, errors included.

    In `auto` it is LMI's for a server configured like LMI's containers, and for plain curl, the example in LMI's document.
    All others get OpenAI's.
    """
    if JSONLINES_MEDIA_TYPE in http.accept:
        return LMI
    if options.chat_format != "auto":
        return LMI if options.chat_format == "lmi" else V1
    if SSE_MEDIA_TYPE in http.accept:
        return V1
    return LMI if options.has_lmi_signs or _is_plain_curl(http.headers) else V1


def _is_plain_curl(headers: Mapping[str, str]) -> bool:
    """True for curl, or a client that does not name itself, without a key."""
    agent = headers.get("user-agent", "").strip().lower()
    if agent and not agent.startswith("curl/"):
        return False
    return not any(headers.get(name, "").strip() for name in _KEYS)
