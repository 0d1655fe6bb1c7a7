"""Conversations and completions as LMI answers them: OpenAI's parameters, LMI's errors, finish reasons and overflow rule.

Does: hold what differs as profiles of the OpenAI wire format. Does not: parse or encode.
Used by the dialects of the LMI routes and of `/v1/chat/completions`, on the event loop.
Source: LMI 0.31, chat completions schema and inference API schema, error responses.
"""

from __future__ import annotations

from dragoman.errors import ServerError
from dragoman.server.apis.lmi.errors import FRONT_END, STATUSES, FrontError, LmiShortError, front_end_body, short_body
from dragoman.server.apis.lmi_wire.objects import LMI_FINISH
from dragoman.server.apis.openai_wire.errors import ErrorShape
from dragoman.server.apis.openai_wire.profile import Profile


def _body(error: ServerError) -> FrontError | LmiShortError:
    """LMI's conversations tell whatever concerns the model in the short form, bad parameters too."""
    return front_end_body(error) if error.kind in FRONT_END else short_body(error)


# In a stream LMI knows one form only, whatever the status would have been.
ERRORS = ErrorShape(STATUSES, _body, in_stream=short_body)

LMI = Profile(
    name="lmi", errors=ERRORS, finish_words=LMI_FINISH, ignores_model=True, clips_overflow=True, fixes_defaults=True
)
"""A completion or a conversation in LMI's shape."""
