"""Conversations and completions as LMI answers them: OpenAI's parameters, LMI's errors, finish reasons and overflow rule.

`/v1/chat/completions` is in OpenAI's and in LMI's documents. Source: LMI 0.31, chat completions and inference API schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dragoman.errors import ServerError
from dragoman.server.api import JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, HttpCall, ModelProfile
from dragoman.server.apis.lmi.errors import FRONT_END, STATUSES, FrontError, LmiShortError, front_end_body, short_body
from dragoman.server.apis.lmi_wire.answers import LMI_FINISH
from dragoman.server.apis.openai_wire.errors import error_shape
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.security.gate import KEY_HEADERS

_KEYS = ("authorization", *KEY_HEADERS)


def _body(error: ServerError) -> FrontError | LmiShortError:
    """LMI's conversations tell all that concerns the model in the short form, bad parameters too."""
    return front_end_body(error) if error.kind in FRONT_END else short_body(error)


# In a stream LMI knows one form only, whatever the status would have been.
ERRORS = error_shape(STATUSES, (FrontError, LmiShortError), _body, in_stream=short_body)

LMI = Profile(
    name="lmi", errors=ERRORS, finish_words=LMI_FINISH, ignores_model=True, clips_overflow=True, fixes_defaults=True
)

_OPENAI = replace(V1, ignores_model=True, clips_overflow=True, fixes_defaults=True)


def lmi_route(model: ModelProfile, http: HttpCall) -> Profile:
    """LMI's profile unless server-sent events are asked for."""
    return _OPENAI if SSE_MEDIA_TYPE in http.accept else LMI


def negotiate(model: ModelProfile, http: HttpCall) -> Profile:
    """In `auto` LMI's for a server configured like LMI's containers, and for plain curl, the example in LMI's document."""
    if JSONLINES_MEDIA_TYPE in http.accept:
        return LMI
    chat_format = model.settings.get("chat_format", "auto")
    if chat_format != "auto":
        return LMI if chat_format == "lmi" else V1
    if SSE_MEDIA_TYPE in http.accept:
        return V1
    return LMI if model.settings.get("has_lmi_signs") or _is_plain_curl(http.headers) else V1


def _is_plain_curl(headers: Mapping[str, str]) -> bool:
    agent = headers.get("user-agent", "").strip().lower()
    if agent and not agent.startswith("curl/"):
        return False
    return not any(headers.get(name, "").strip() for name in _KEYS)
