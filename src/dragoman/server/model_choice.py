"""Which model a call names, in the places where clients of any API put it.

Does: read names. Does not: look models up (the registry does). Used by the APIs' operations, on the event loop.
"""

from __future__ import annotations

from dragoman.server.api import HttpCall
from dragoman.server.operations import Server


def model_of_query_or_header(http: HttpCall, server: Server) -> str | None:
    """`?model_name=`, else the header `model_name`, else None."""
    return http.query.get("model_name") or http.headers.get("model_name") or None


def model_of_body(http: HttpCall, server: Server) -> str | None:
    """The body's `model`, None where it is absent or the body is not an object: the dialect reports that."""
    name = http.field("model")
    return name if isinstance(name, str) else None


def sole_model_if_unknown(name: str | None, server: Server) -> str | None:
    """`name` where it tells models apart; None, for the default model, where there is but one and it is called else."""
    models = server.models
    return None if name is None or (models.is_single and not models.knows(name)) else name
