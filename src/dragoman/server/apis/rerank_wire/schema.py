"""Bodies and answers of reranking (Cohere v1 and v2, Jina, OVMS, vLLM) and scoring (vLLM), and their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.parameters import Bounds
from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.common import Created
from dragoman.server.apis.openai_wire.describe.bodies import struct_body
from dragoman.server.apis.openai_wire.embeddings.schema import TextUsage
from dragoman.server.apis.openai_wire.pooling.ignored import IGNORED
from dragoman.server.apis.openai_wire.pooling.texts import CUT_SCHEMA
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.describe.json_schema import TEXT, Schema, an_object, any_of, array


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


BOUNDS: Mapping[str, Bounds] = {
    "top_n": Bounds(0),
    "max_chunks_per_doc": Bounds(1),
    "max_tokens_per_doc": Bounds(1),
}

_EFFECTS: Mapping[str, str] = {
    "model": "the default model if absent",
    "top_n": "tell only the best; 0 tells all",
    "return_documents": "tell the documents' texts",
    "truncation": "cut pairs to what the model takes; false refuses them",
    "truncate_prompt_tokens": "cut pairs to this number of tokens, -1 to what the model takes",
    "use_activation": "false tells the model's output itself",
    "activation": "an older name of `use_activation`",
    "instruction": "what relevance means, for models that take that (Qwen3-Reranker)",
    "max_tokens_per_doc": "tokens of a document that count, or of each of its pieces with `max_chunks_per_doc`",
}


def rerank_body(words: Profile, profile: ModelProfile) -> Schema:
    document = any_of(TEXT, an_object({"text": TEXT}))
    documents = array(document, minItems=1, maxItems=profile.limits.max_prompts)
    most = "all that it takes if absent" if words.requires_model else "1 if absent: it is cut at the end"
    pieces = f"the most pieces into which a long document is cut, of which the best counts; {most}"
    cut = f"{_EFFECTS['truncate_prompt_tokens']}; to what the model takes if absent"
    return struct_body(
        RerankBody,
        {**_EFFECTS, "max_chunks_per_doc": pieces, "truncate_prompt_tokens": cut},
        replace(words, bounds=BOUNDS),
        profile,
        needed={"query": TEXT, "documents": documents, **({"model": TEXT} if words.requires_model else {})},
        defaults={"return_documents": False, "truncation": True, "use_activation": True},
        own={"truncate_prompt_tokens": CUT_SCHEMA, "rank_fields": array({"const": "text"})},
        ignored=IGNORED,
    )


def score_body(profile: ModelProfile) -> Schema:
    side = any_of(TEXT, array(TEXT, minItems=1, maxItems=profile.limits.max_prompts))
    cut = f"{_EFFECTS['truncate_prompt_tokens']}; too long ones are refused if absent"
    whole = struct_body(
        ScoreBody,
        {**_EFFECTS, "truncate_prompt_tokens": cut},
        V1,
        profile,
        needed={},
        defaults={"use_activation": True},
        own={"truncate_prompt_tokens": CUT_SCHEMA},
        ignored=IGNORED,
    )["properties"]
    more = {name: schema for name, schema in whole.items() if not any(name in pair for pair in SIDES)}
    return any_of(*(an_object({first: side, second: side}, more) for first, second in SIDES))
