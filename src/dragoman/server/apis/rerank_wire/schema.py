"""Bodies and answers of reranking and scoring, and their schemas.

Does: name the fields. Does not: check values. Used on the event loop, and when the document is built.
Sources: Cohere's rerank v1 and v2, Jina's rerank, OVMS's rerank, vLLM's rerank and score.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.common import Created
from dragoman.server.apis.openai_wire.embeddings.schema import TextUsage
from dragoman.server.apis.openai_wire.pooling.ignored import IGNORED
from dragoman.server.apis.openai_wire.pooling.texts import MODEL, switch_schema
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.describe.json_schema import (
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    nullable,
)


class RerankBody(msgspec.Struct, kw_only=True):
    """The body of a rerank call."""

    query: str
    documents: list[Any]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    rank_fields: list[Any] | None = None
    truncation: bool | None = None
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None
    instruction: str | None = None
    max_chunks_per_doc: int | None = None
    max_tokens_per_doc: int | None = None
    user: str | None = None
    priority: int | None = None


class RerankedText(msgspec.Struct):
    """A document as it was ranked."""

    text: str


class RerankedDocument(msgspec.Struct):
    """One document: its place in the request, and how relevant it is."""

    index: int
    relevance_score: float
    document: RerankedText | UnsetType = UNSET


class RerankVersion(msgspec.Struct):
    """Of Cohere's API."""

    version: Literal["1", "2"]


class RerankTokens(msgspec.Struct):
    """Tokens that were computed."""

    input_tokens: int


class RerankMeta(msgspec.Struct):
    """The facts about a call that Cohere's clients read."""

    api_version: RerankVersion
    tokens: RerankTokens


class RerankAnswer(msgspec.Struct):
    """The documents, best first; of Cohere's, Jina's and vLLM's fields all."""

    id: str
    model: str
    results: list[RerankedDocument]
    usage: TextUsage
    meta: RerankMeta


class CohereRerankAnswer(msgspec.Struct):
    """The documents, best first, as Cohere's second version tells them."""

    id: str
    results: list[RerankedDocument]
    meta: RerankMeta


class OvmsRerankAnswer(msgspec.Struct):
    """The documents, best first, as OpenVINO Model Server tells them."""

    results: list[RerankedDocument]


class ScoreBody(msgspec.Struct, kw_only=True):
    """The body of a score call; both sides are read by hand, as they have several names."""

    model: str | None = None
    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None
    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    instruction: str | None = None
    user: str | None = None
    priority: int | None = None


SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
"""Names of the two sides of a score call, the newest versions' last."""


class ScoreItem(msgspec.Struct):
    """One pair's score."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(msgspec.Struct):
    """The scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: Created
    model: str
    data: list[ScoreItem]
    usage: TextUsage


def _cutting(default: str) -> Schema:
    length = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}
    return described(nullable(length), f"cut pairs to so many tokens, -1 to what the model takes; {default} if absent")


def _idle(*names: str) -> dict[str, Schema]:
    return {name: {"description": f"without effect: {IGNORED[name]}"} for name in names}


_INSTRUCTION = described(nullable(TEXT), "what relevance means, for models that take that (Qwen3-Reranker)")


def rerank_body(words: Profile, profile: ModelProfile) -> Schema:
    """The schema of a rerank body."""
    switch = switch_schema(words)
    document = any_of(TEXT, an_object({"text": TEXT}))
    model = {"model": TEXT} if words.requires_model else {}
    return an_object(
        {"query": TEXT, "documents": array(document, minItems=1, maxItems=profile.limits.max_prompts), **model},
        {
            **({} if words.requires_model else {"model": MODEL}),
            "top_n": described(nullable({"type": "integer", "minimum": 0}), "tell only the best; 0 tells all"),
            "return_documents": described(switch, "tell the documents' texts", False),
            "rank_fields": nullable(array({"const": "text"})),
            "truncation": described(switch, "cut pairs to what the model takes; false refuses them", True),
            "truncate_prompt_tokens": _cutting("to what the model takes"),
            "use_activation": described(switch, "false tells the model's output itself", True),
            "instruction": _INSTRUCTION,
            "max_chunks_per_doc": described(
                nullable({"type": "integer", "minimum": 1}),
                "into how many pieces a long document is cut at most, of which the best counts; "
                + ("as many as it takes if absent" if words.requires_model else "1 if absent: it is cut at the end"),
            ),
            "max_tokens_per_doc": described(
                nullable({"type": "integer", "minimum": 1}),
                "tokens of a document that count, or of each of its pieces with `max_chunks_per_doc`",
            ),
            **_idle("user", "priority"),
        },
    )


def score_body(profile: ModelProfile) -> Schema:
    """The schema of a score body."""
    switch = switch_schema(V1)
    side = any_of(TEXT, array(TEXT, minItems=1, maxItems=profile.limits.max_prompts))
    more = {
        "model": MODEL,
        "truncate_prompt_tokens": _cutting("too long ones are refused"),
        "use_activation": described(switch, "false tells the model's output itself", True),
        "activation": described(switch, "an older name of `use_activation`"),
        "instruction": _INSTRUCTION,
        **_idle("user", "priority"),
    }
    return any_of(*(an_object({first: side, second: side}, more) for first, second in SIDES))
