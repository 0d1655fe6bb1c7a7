"""Reranking: scores pairs of a query and documents with the model's service. Called on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import Dialect, ModelProfile
from dragoman.server.apis.openai_wire.embeddings.schema import usage_of
from dragoman.server.apis.openai_wire.fields import check_count, check_number, shown
from dragoman.server.apis.openai_wire.pooling.dialect import TextsCall, TextsDialect, TextsOperation
from dragoman.server.apis.openai_wire.pooling.texts import CUT, read_cut, read_string, told_as
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.rerank_wire.schema import (
    BOUNDS,
    CohereRerankAnswer,
    OvmsRerankAnswer,
    RerankAnswer,
    RerankBody,
    RerankedDocument,
    RerankedText,
    RerankMeta,
    RerankTokens,
    RerankVersion,
)
from dragoman.server.pooling import ScoreRequest, Truncation, scorer
from dragoman.types import Limits

_ALL_PIECES = 10_000  # more than any call may have


class Ranked(NamedTuple):
    id: str
    model: str
    results: list[RerankedDocument]
    num_tokens: int

    def meta(self, version: Literal["1", "2"]) -> RerankMeta:
        return RerankMeta(RerankVersion(version), RerankTokens(self.num_tokens))


ToldRanked = Callable[[Ranked], msgspec.Struct]


def told_by_all(ranked: Ranked) -> RerankAnswer:
    """With the fields of Cohere's first version, Jina and vLLM."""
    return RerankAnswer(ranked.id, ranked.model, ranked.results, usage_of([ranked.num_tokens]), ranked.meta("1"))


def told_by_cohere(ranked: Ranked) -> CohereRerankAnswer:
    """As Cohere's second version has it."""
    return CohereRerankAnswer(ranked.id, ranked.results, ranked.meta("2"))


def told_by_ovms(ranked: Ranked) -> OvmsRerankAnswer:
    return OvmsRerankAnswer(ranked.results)


def rerank_dialect(profile: ModelProfile, words: Profile, told: ToldRanked) -> Dialect:
    """Reranking by one model. `words`: how its errors are told; `told`: the answer's shape."""

    async def answer(call: TextsCall[RerankBody]) -> msgspec.Struct:
        return told(await _ranked(call))

    return TextsDialect(profile, TextsOperation(RerankBody, answer, words))


async def _ranked(call: TextsCall[RerankBody]) -> Ranked:
    body, limits, words = call.body, call.limits, call.words
    _check(body, words)
    service = scorer(call.profile, by_similarity=True)
    documents = read_documents(body.documents, limits, words)
    query = read_string("query", body.query, limits, words)
    cut = read_cut(
        body.truncate_prompt_tokens, words, Truncation.NONE if body.truncation is False else Truncation.RIGHT
    )
    with told_as({"pairs": "documents", "texts": "documents", "max_tokens": CUT}, "documents[{}]".format):
        made = await service.score(
            ScoreRequest(
                pairs=[(query, document) for document in documents],
                request_id=call.request_id,
                truncation=cut.truncation,
                max_tokens=cut.max_tokens,
                max_pieces=_max_pieces(body, words),
                max_document_tokens=body.max_tokens_per_doc,
                raw=body.use_activation is False,
                instruction=body.instruction,
            )
        )
    scores = made.values.tolist()
    results = [
        RerankedDocument(index, scores[index], RerankedText(documents[index]) if body.return_documents else UNSET)
        for index in best_first(scores)[: body.top_n or None]
    ]
    return Ranked(f"rerank-{call.request_id}", body.model or call.profile.name, results, sum(made.num_tokens))


def _max_pieces(body: RerankBody, words: Profile) -> int:
    """The most pieces of a document: one where nothing is said, but all that it takes in OVMS's words."""
    if body.max_chunks_per_doc is None:
        return _ALL_PIECES if words.requires_model else 1
    return min(body.max_chunks_per_doc, _ALL_PIECES)


def _check(body: RerankBody, words: Profile) -> None:
    if words.requires_model and body.model is None:
        raise words.payload_fault("model", "model is missing", param="model")
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
