"""Answers and errors in the OpenAI wire format as schemas: whole bodies, and the objects of streams.

Does: take them from the Structs that encode. Does not: know operations. Used when the document is built.
"""

from __future__ import annotations

from dragoman.errors import ServerError
from dragoman.server.apis.openai_wire.chat.schema import ChatChoice, ChunkChoice
from dragoman.server.apis.openai_wire.common import Usage
from dragoman.server.apis.openai_wire.completions.schema import CompletionChoice
from dragoman.server.apis.openai_wire.errors import OPENAI
from dragoman.server.apis.openai_wire.profile import OPENAI_FINISH
from dragoman.server.describe.answers import ErrorFamily
from dragoman.server.describe.json_schema import INTEGER, TEXT, Schema, an_object, array, nullable, ref, struct_schemas
from dragoman.server.framing import JSON_MEDIA_TYPE

_OPENAI_FINISH = sorted({*OPENAI_FINISH.values(), "tool_calls", "function_call"})
_CHAT_FINISH = sorted({*_OPENAI_FINISH, "eos_token", "stop_sequence"})  # the last two are LMI's shape

ERRORS = ErrorFamily(
    {kind: row.status for kind, row in OPENAI.rows.items()}, lambda status: {JSON_MEDIA_TYPE: ref("OpenAiError")}
)
"""The errors of OpenAI's own shape."""


def answer_schemas() -> dict[str, Schema]:
    """The components of the answers of completions and conversations."""
    return {**_completions(), **_chat()}


def _completions() -> dict[str, Schema]:
    components = struct_schemas([CompletionChoice, Usage])
    finish = {"enum": [*_OPENAI_FINISH, None], "description": "null while the generation continues"}
    components["CompletionChoice"]["properties"]["finish_reason"] = finish
    head = {
        "id": TEXT,
        "object": {"enum": ["text_completion", "text_completion.chunk"]},
        "created": {**INTEGER, "description": "Unix time in seconds"},
        "model": TEXT,
        "system_fingerprint": TEXT,
        "choices": array(ref("CompletionChoice")),
    }
    components["Completion"] = an_object({**head, "usage": ref("Usage")})
    components["CompletionChunk"] = an_object(head, {"usage": nullable(ref("Usage"))}, "one event or line of a stream")
    return components


def _chat() -> dict[str, Schema]:
    components = struct_schemas([ChatChoice, ChunkChoice])
    components["ChatChoice"]["properties"]["finish_reason"] = {"enum": _CHAT_FINISH}
    components["ChunkChoice"]["properties"]["finish_reason"] = {"enum": [*_CHAT_FINISH, None]}
    prompt_logprobs = struct_schemas([CompletionChoice])["CompletionChoice"]["properties"]["prompt_logprobs"]
    head = {"id": TEXT, "created": {**INTEGER, "description": "Unix time in seconds"}, "model": TEXT}
    more: dict[str, Schema] = {"system_fingerprint": TEXT, "prompt_logprobs": prompt_logprobs}
    components["ChatCompletion"] = an_object(
        {
            **head,
            "object": {"const": "chat.completion"},
            "choices": array(ref("ChatChoice")),
            "usage": ref("Usage"),
        },
        more,
        "LMI's shape has no system_fingerprint and says eos_token or stop_sequence where OpenAI's says stop.",
    )
    components["ChatCompletionChunk"] = an_object(
        {**head, "object": {"const": "chat.completion.chunk"}, "choices": array(ref("ChunkChoice"))},
        {**more, "usage": nullable(ref("Usage"))},
        "one event or line of a stream",
    )
    return components


def openai_error() -> Schema:
    """The body of an error in OpenAI's own shape."""
    from_table = [row.body(ServerError(""))["error"] for row in OPENAI.rows.values()]
    return an_object(
        {
            "error": an_object(
                {
                    "message": TEXT,
                    "type": {"enum": sorted({row["type"] for row in from_table})},
                    "param": {"type": ["string", "null"]},
                    "code": {"enum": [*sorted({row["code"] for row in from_table} - {None}), None]},
                }
            )
        }
    )
