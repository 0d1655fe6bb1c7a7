"""Bodies, answers and errors of Text Embeddings Inference, and their schemas.

Source: TEI's HTTP API (EmbedRequest, RerankRequest, ErrorResponse, ErrorType); before version 1.9, `Validation` was 413.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import InvalidPayload, ServerError
from dragoman.parameters import Bounds
from dragoman.server.api import HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.pooling import texts_schema
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.describe.answers import json_errors
from dragoman.server.describe.json_schema import TEXT, Schema, any_of, array
from dragoman.server.error_kinds import INVALID, statuses

TEI_VERSION = "1.8.3"  # whose API these routes speak
SIDES = ("Left", "Right", "left", "right")

WORDS = Profile(name="tei", bounds={"dimensions": Bounds(1)})
"""Errors are told in general words."""


class TeiBody(msgspec.Struct, kw_only=True):
    """The fields of all bodies; `inputs` of the others is read by hand, as it may be many things."""

    truncate: bool | None = None
    truncation_direction: str | None = None


class TeiEmbedAllBody(TeiBody, kw_only=True):
    """The body of POST /embed_all and /embed_sparse."""

    inputs: Any = None
    prompt_name: str | None = None


class TeiEmbedBody(TeiEmbedAllBody, kw_only=True):
    """The body of POST /embed."""

    normalize: bool | None = None
    dimensions: int | None = None


class TeiPredictBody(TeiBody, kw_only=True):
    """The body of POST /predict. `inputs`: a text, a pair, or a list of lists of one or two texts."""

    inputs: Any = None
    raw_scores: bool | None = None


class TeiRerankBody(TeiBody, kw_only=True):
    """The body of POST /rerank."""

    query: str
    texts: list[Any]
    raw_scores: bool | None = None
    return_text: bool | None = None


class TeiWord(msgspec.Struct):
    """A word of the vocabulary, and its weight."""

    index: int
    value: float


class TeiPrediction(msgspec.Struct):
    """A label, and how likely it is."""

    score: float
    label: str


class TeiRank(msgspec.Struct):
    """One text: its place in the request, and how relevant it is."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class TeiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /info` where the model embeds or scores, in TEI's order. `docker_label` is ours."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str | None = None
    model_type: Mapping[str, Mapping[str, Any]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_requests: int | None = None
    max_client_batch_size: int
    auto_truncate: bool = True
    tokenization_workers: int
    version: str
    sha: str | None = None
    docker_label: str | None = None


_EFFECTS: Mapping[str, str] = {
    "truncate": "cut what is too long; false: it is refused",
    "normalize": "vectors of length 1",
    "prompt_name": "one of the model's prompts, which goes before each text",
    "dimensions": "keep this number of the first components",
    "raw_scores": "the model's output before its activation",
    "return_text": "tell the texts as well",
}
_DEFAULTS = {"truncate": True, "normalize": True, "raw_scores": False, "return_text": False}
_OWN_TYPES = {"truncation_direction": {"enum": list(SIDES), "default": "Right"}}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    texts, part = texts_schema(profile.limits), array(TEXT, minItems=1, maxItems=2)
    parts = any_of(TEXT, part, array(part, minItems=1, maxItems=profile.limits.max_prompts))
    several = array(TEXT, minItems=1, maxItems=profile.limits.max_prompts)
    needed: Mapping[type[TeiBody], Mapping[str, Schema]] = {
        TeiEmbedBody: {"inputs": texts},
        TeiEmbedAllBody: {"inputs": texts},
        TeiPredictBody: {"inputs": parts},
        TeiRerankBody: {"query": TEXT, "texts": several},
    }
    return {
        kind.__name__.replace("Body", "Request"): struct_body(
            kind, _EFFECTS, WORDS, profile, needed=fields, defaults=_DEFAULTS, own=_OWN_TYPES
        )
        for kind, fields in needed.items()
    }


TeiErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class NothingGiven(InvalidPayload):
    """The request has no text; TEI has its own status for that."""


class TeiError(msgspec.Struct):
    """The body of an error."""

    error: str
    error_type: TeiErrorType


STATUSES = statuses(
    **dict.fromkeys((*INVALID, "capacity"), 422),
    **dict.fromkeys(("unsupported", "timeout", "cancelled", "engine_failed", "hook_error"), 424),
)
TYPES: Mapping[int, TeiErrorType] = {
    424: "Backend",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    507: "Overloaded",
}
"""The types of errors by status; all others are the client's fault."""
EMPTY_STATUS = 400

ERRORS = json_errors(STATUSES, TeiError)


class TeiErrors:
    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        if isinstance(error, NothingGiven):
            return json_reply(EMPTY_STATUS, TeiError(error.message, "Empty"))
        status = STATUSES[error.kind]
        return json_reply(status, TeiError(error.message, TYPES.get(status, "Validation")))
