"""Reranking: scores pairs of a query and documents with the model's service. On the event loop.

Sources: Cohere's rerank v1 and v2, Jina's rerank, OVMS's rerank, vLLM's rerank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import UnsupportedFeature
from dragoman.parameters import Bounds
from dragoman.server.api import Dialect, ModelProfile
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.fields import check_count, check_number, shown
from dragoman.server.apis.openai_wire.pooling import (
    CUT_SCHEMA,
    IGNORED_FIELDS,
    TextsCall,
    TextsDialect,
    TextsField,
    TextsOperation,
    TextUsage,
    read_cut,
    read_string,
    usage_of,
)
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.descriptions import TEXT, Schema, an_object, any_of, array
from dragoman.server.pooling.base import ScoreRequest, Truncation, scorer
from dragoman.types import Limits


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


BOUNDS: Mapping[str, Bounds] = {
    "top_n": Bounds(0),
    "max_chunks_per_doc": Bounds(1),
    "max_tokens_per_doc": Bounds(1),
}

EFFECTS: Mapping[str, str] = {
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
    cut = f"{EFFECTS['truncate_prompt_tokens']}; to what the model takes if absent"
    return struct_body(
        RerankBody,
        {**EFFECTS, "max_chunks_per_doc": pieces, "truncate_prompt_tokens": cut},
        replace(words, bounds=BOUNDS, ignored=IGNORED_FIELDS),
        profile,
        needed={"query": TEXT, "documents": documents},
        defaults={"return_documents": False, "truncation": True, "use_activation": True},
        own={"truncate_prompt_tokens": CUT_SCHEMA, "rank_fields": array({"const": "text"})},
    )


# --- calls ------------------------------------------------------------------------------------------------------------

_ALL_PIECES = 10_000  # more than any call may have


ToldRanked = Callable[[RerankAnswer], msgspec.Struct]


def told_by_cohere(answer: RerankAnswer) -> CohereRerankAnswer:
    """As Cohere's second version has it."""
    return CohereRerankAnswer(answer.id, answer.results, RerankMeta(RerankVersion("2"), answer.meta.tokens))


def told_by_ovms(answer: RerankAnswer) -> OvmsRerankAnswer:
    return OvmsRerankAnswer(answer.results)


def rerank_dialect(profile: ModelProfile, words: Profile, told: ToldRanked = lambda answer: answer) -> Dialect:
    """Reranking by one model. `words`: how its errors are told; `told`: the answer's shape."""

    async def answer(call: TextsCall[RerankBody]) -> msgspec.Struct:
        return told(await _ranked(call))

    return TextsDialect(profile, TextsOperation(RerankBody, answer, words))


async def _ranked(call: TextsCall[RerankBody]) -> RerankAnswer:
    body, limits, words = call.body, call.limits, call.words
    _check(body, words)
    service = scorer(call.profile, by_similarity=True)
    documents = read_documents(body.documents, limits, words)
    query = read_string("query", body.query, limits, words)
    usual_cut = Truncation.NONE if body.truncation is False else Truncation.RIGHT
    request = ScoreRequest(
        pairs=[(query, document) for document in documents],
        request_id=call.request_id,
        **read_cut(body.truncate_prompt_tokens, words, usual_cut),
        max_pieces=_max_pieces(body, words),
        max_document_tokens=body.max_tokens_per_doc,
        raw=body.use_activation is False,
        instruction=body.instruction,
    )
    made = await TextsField("documents").asked(service.score, request)
    scores = made.values.tolist()
    results = [
        RerankedDocument(index, scores[index], RerankedText(documents[index]) if body.return_documents else UNSET)
        for index in best_first(scores)[: body.top_n or None]
    ]
    usage = usage_of(made.num_tokens)
    meta = RerankMeta(RerankVersion("1"), RerankTokens(usage.total_tokens))
    return RerankAnswer(f"rerank-{call.request_id}", body.model or call.profile.name, results, usage, meta)


def _max_pieces(body: RerankBody, words: Profile) -> int:
    """The most pieces of a document: one where nothing is said, but all that it takes in OVMS's words."""
    if body.max_chunks_per_doc is None:
        return _ALL_PIECES if words.requires_model else 1
    return min(body.max_chunks_per_doc, _ALL_PIECES)


def _check(body: RerankBody, words: Profile) -> None:
    words.check_model(body.model)
    for name, bounds in BOUNDS.items():
        if (value := getattr(body, name)) is not None:
            check_number(name, value, bounds, words)
    if body.rank_fields is not None and body.rank_fields != ["text"]:
        message = f'rank_fields must be ["text"], got {shown(body.rank_fields)}: documents are ranked by their text'
        raise UnsupportedFeature(message, param="rank_fields")


def best_first(scores: Sequence[float]) -> list[int]:
    """The places of the scores, the highest first; equal ones stay in order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


def read_documents(values: Sequence[Any], limits: Limits, words: Profile) -> list[str]:
    if not values:
        raise words.fault("documents", "empty", "documents must hold at least one document, got none")
    check_count("documents", len(values), limits.max_prompts, words)
    return [_document(f"documents[{index}]", value, limits, words) for index, value in enumerate(values)]


def _document(name: str, value: Any, limits: Limits, words: Profile) -> str:
    if isinstance(value, str):
        return read_string(name, value, limits, words)
    if not isinstance(value, dict):
        raise words.wrong(name, "a string or an object with a text", value, "type")
    if value.get("text") is None:
        raise words.fault(f"{name}.text", "missing", f"{name}.text is missing: only texts are ranked")
    return read_string(f"{name}.text", value["text"], limits, words)
