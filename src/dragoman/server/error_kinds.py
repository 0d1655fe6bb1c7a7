"""The kinds of errors for all APIs: the usual status of each, and its meaning. Used when APIs are imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of error. `status`: the usual one."""

    status: int
    meaning: str


KINDS: Mapping[str, Kind] = {
    "invalid_request": Kind(400, "the request cannot be served as written"),
    "invalid_payload": Kind(400, "the body is malformed or lacks a field"),
    "invalid_parameter": Kind(400, "a parameter has a wrong type or range, or contradicts another"),
    "unsupported": Kind(400, "this model or engine cannot do it"),
    "not_found": Kind(404, "no such model"),
    "unauthorized": Kind(401, "the API key is missing or wrong"),
    "forbidden": Kind(403, "the API key does not open this"),
    "too_large": Kind(413, "the body exceeds the size limit"),
    "overloaded": Kind(429, "the queue is full"),
    "unavailable": Kind(503, "the server is loading or shutting down"),
    "rate_limited": Kind(429, "the caller has asked for as much as it may for now"),
    "conflict": Kind(409, "it exists already, or is being changed by somebody else"),
    "no_memory": Kind(507, "the model does not fit into the memory that is left"),
    "unknown_path": Kind(404, "there is no such path"),
    "wrong_method": Kind(405, "the path answers to other methods"),
    "timeout": Kind(504, "the request took longer than the operator allows"),
    "cancelled": Kind(503, "the request was aborted"),
    "capacity": Kind(400, "the prompt, or prompt and limit, exceed the context"),
    "engine_failed": Kind(500, "the generation failed"),
    "engine_dead": Kind(503, "the engine has stopped"),
    "hook_error": Kind(500, "the operator's own formatter failed"),
    "server_error": Kind(500, "a defect of the server; see its log"),
}
"""Every kind in `dragoman.errors`."""

INVALID = ("invalid_request", "invalid_payload", "invalid_parameter")
"""The kinds for a mistake in the client's request."""


def statuses(**changes: int) -> dict[str, int]:
    """The status of each kind for an API; `changes` differ from the usual ones."""
    return {kind: changes.get(kind, row.status) for kind, row in KINDS.items()}
