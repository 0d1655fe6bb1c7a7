"""Conversations and completions as LMI answers them: OpenAI's parameters, LMI's errors, finish reasons and overflow rule.

Does: hold what differs as profiles of the OpenAI wire format. Does not: parse or encode.
Used by the dialects of the LMI routes and of `/v1/chat/completions`, on the event loop.
Source: LMI 0.31, chat completions schema and inference API schema, error responses.
"""

from __future__ import annotations

from dragoman.server.apis.lmi import errors
from dragoman.server.apis.lmi.objects import LMI_FINISH
from dragoman.server.apis.openai_wire.errors import ErrorRow, ErrorShape
from dragoman.server.apis.openai_wire.profile import Profile


def _row(row: errors.ErrorRow) -> ErrorRow:
    """LMI's conversations tell whatever concerns the model in the short form, bad parameters too."""
    if row.status == errors.MODEL_ERROR:
        return ErrorRow(row.status, errors.short_body)
    return ErrorRow(row.status, lambda error: row.body(error, row.status, errors.ErrorContext()))


# In a stream LMI knows one form only, whatever the status would have been.
ERRORS = ErrorShape({kind: _row(row) for kind, row in errors.ERRORS.items()}, in_stream=errors.short_body)

LMI = Profile(
    name="lmi", errors=ERRORS, finish_words=LMI_FINISH, ignores_model=True, clips_overflow=True, fixes_defaults=True
)
"""A completion or a conversation in LMI's shape."""
