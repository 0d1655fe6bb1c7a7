"""Bodies and answers of Text Embeddings Inference, and their schemas.

Does: name the fields. Does not: check values. Used on the event loop, and when the document is built.
Source: TEI's HTTP API (EmbedRequest, RerankRequest).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.pooling.texts import texts_schema
from dragoman.server.describe.json_schema import (
    LENIENT_BOOLEAN,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    nullable,
)

TEI_VERSION = "1.8.3"  # whose API these routes speak
SIDES = ("Left", "Right", "left", "right")


class TeiEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /embed; `inputs` is read by hand, as it may be many things."""

    inputs: Any = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    prompt_name: str | None = None
    dimensions: int | None = None


class TeiEmbedAllBody(msgspec.Struct, kw_only=True):
    """The body of POST /embed_all and /embed_sparse."""

    inputs: Any = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    prompt_name: str | None = None


class TeiPredictBody(msgspec.Struct, kw_only=True):
    """The body of POST /predict; `inputs` is read by hand: a text, a pair, or a list of lists of one or two texts."""

    inputs: Any = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None


class TeiWord(msgspec.Struct):
    """A word of the vocabulary, and its weight."""

    index: int
    value: float


class TeiPrediction(msgspec.Struct):
    """A label, and how likely it is."""

    score: float
    label: str


class TeiRerankBody(msgspec.Struct, kw_only=True):
    """The body of POST /rerank."""

    query: str
    texts: list[Any]
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None


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


_SWITCH = nullable(LENIENT_BOOLEAN)
_CUTTING = {
    "truncate": described(_SWITCH, "cut what is too long; false: it is refused", True),
    "truncation_direction": nullable({"enum": list(SIDES), "default": "Right"}),
}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    """The components of the bodies."""
    limits = profile.limits
    return {
        "TeiEmbedRequest": an_object(
            {"inputs": texts_schema(limits)},
            {
                "normalize": described(_SWITCH, "vectors of length 1", True),
                **_CUTTING,
                "prompt_name": described(nullable(TEXT), "one of the model's prompts, which goes before each text"),
                "dimensions": described(
                    nullable({"type": "integer", "minimum": 1}), "keep so many of the first components"
                ),
            },
        ),
        "TeiEmbedAllRequest": an_object(
            {"inputs": texts_schema(limits)},
            {
                **_CUTTING,
                "prompt_name": described(nullable(TEXT), "one of the model's prompts, which goes before each text"),
            },
        ),
        "TeiPredictRequest": an_object(
            {
                "inputs": any_of(
                    TEXT,
                    array(TEXT, minItems=1, maxItems=2),
                    array(array(TEXT, minItems=1, maxItems=2), minItems=1, maxItems=limits.max_prompts),
                )
            },
            {"raw_scores": described(_SWITCH, "the model's output before its activation", False), **_CUTTING},
        ),
        "TeiRerankRequest": an_object(
            {"query": TEXT, "texts": array(TEXT, minItems=1, maxItems=limits.max_prompts)},
            {
                "raw_scores": described(_SWITCH, "the model's output before its activation", False),
                "return_text": described(_SWITCH, "tell the texts as well", False),
                **_CUTTING,
            },
        ),
    }
