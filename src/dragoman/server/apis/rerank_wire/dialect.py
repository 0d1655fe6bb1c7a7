"""Reranking: a query and documents become pairs for the model's service, their scores an order of the documents.

Does: read, ask, sort, write. Does not: tokenise or compute. Set up for each served model; called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.errors import InvalidRequest, ServerError, UnsupportedFeature
from dragoman.parameters import Bounds
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.embeddings.schema import TextUsage
from dragoman.server.apis.openai_wire.fields import (
    check_count,
    check_number,
    decode_object,
    read_struct,
    shown,
)
from dragoman.server.apis.openai_wire.pooling.ignored import idle_names
from dragoman.server.apis.openai_wire.pooling.texts import CUT, read_cut, read_string, told_as
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.rerank_wire.schema import (
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
from dragoman.server.pooling import AnsweringDialect, ScoreRequest, Truncation, scorer
from dragoman.server.responder import note_ignored
from dragoman.types import Limits

_TOP_N = Bounds(0, None)
_ONE_OR_MORE = Bounds(1, None)
_ALL_PIECES = 10_000  # more than any call may have


class Ranked(msgspec.Struct, frozen=True):
    """The content of an answer: the documents, best first."""

    request_id: str
    model: str
    results: list[RerankedDocument]
    num_tokens: int


ToldRanked = Callable[[Ranked], msgspec.Struct]


def told_by_all(ranked: Ranked) -> RerankAnswer:
    """With the fields of Cohere's first version, Jina and vLLM."""
    usage = TextUsage(ranked.num_tokens, ranked.num_tokens)
    return RerankAnswer(_id(ranked), ranked.model, ranked.results, usage, _meta(ranked, RerankVersion("1")))


def told_by_cohere(ranked: Ranked) -> CohereRerankAnswer:
    """As Cohere's second version has it."""
    return CohereRerankAnswer(_id(ranked), ranked.results, _meta(ranked, RerankVersion("2")))


def told_by_ovms(ranked: Ranked) -> OvmsRerankAnswer:
    """As OpenVINO Model Server has it."""
    return OvmsRerankAnswer(ranked.results)


def _id(ranked: Ranked) -> str:
    return f"rerank-{ranked.request_id}"


def _meta(ranked: Ranked, version: RerankVersion) -> RerankMeta:
    return RerankMeta(version, RerankTokens(ranked.num_tokens))


class RerankDialect(AnsweringDialect):
    """Reranking by one model. `words`: how its errors are told; `told`: the answer's shape."""

    def __init__(self, profile: ModelProfile, words: Profile, told: ToldRanked) -> None:
        super().__init__(profile)
        self._words = words
        self._told = told

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return self._words.errors.reply(error)

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        words = self._words
        raw = decode_object(http, words)
        service = scorer(self._profile, by_similarity=True)
        body = read_struct(raw, RerankBody, words)
        self._check(body)
        documents = read_documents(body.documents, self._profile.limits, words)
        query = read_string("query", body.query, self._profile.limits, words)
        may_cut = Truncation.NONE if body.truncation is False else Truncation.RIGHT
        cut = read_cut(body.truncate_prompt_tokens, words, may_cut)
        headers = note_ignored(switches, idle_names(raw, RerankBody))
        with told_as({"pairs": "documents", "texts": "documents", "max_tokens": CUT}, "documents[{}]".format):
            made = await service.score(
                ScoreRequest(
                    pairs=[(query, document) for document in documents],
                    request_id=http.request_id,
                    truncation=cut.truncation,
                    max_tokens=cut.max_tokens,
                    max_pieces=self._max_pieces(body),
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
        model = body.model or self._profile.name
        return json_reply(200, self._told(Ranked(http.request_id, model, results, sum(made.num_tokens))), headers)

    def _max_pieces(self, body: RerankBody) -> int:
        """Into how many pieces a document is cut: one where nothing is said, but as many as it takes in OVMS's words."""
        if body.max_chunks_per_doc is None:
            return _ALL_PIECES if self._words.requires_model else 1
        return min(body.max_chunks_per_doc, _ALL_PIECES)

    def _check(self, body: RerankBody) -> None:
        words = self._words
        if words.requires_model and body.model is None:
            raise words.payload_fault("model", "model is missing", param="model")
        if body.top_n is not None:
            check_number("top_n", body.top_n, _TOP_N, words)
        for name, value in (
            ("max_chunks_per_doc", body.max_chunks_per_doc),
            ("max_tokens_per_doc", body.max_tokens_per_doc),
        ):
            if value is not None:
                check_number(name, value, _ONE_OR_MORE, words)
        if body.rank_fields is not None and body.rank_fields != ["text"]:
            message = f'rank_fields must be ["text"], got {shown(body.rank_fields)}: documents are ranked by their text'
            raise UnsupportedFeature(message, param="rank_fields")


def best_first(scores: Sequence[float]) -> list[int]:
    """The places of the scores, the highest first; equal ones stay in order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


def read_documents(values: Sequence[Any], limits: Limits, words: Profile) -> list[str]:
    """The texts of documents, which are strings or objects with a text. Raises: InvalidRequest."""
    if not values:
        raise words.fault("documents", "empty", "documents must hold at least one document, got none")
    check_count("documents", len(values), limits.max_prompts, words)
    return [_document(f"documents[{index}]", value, limits, words) for index, value in enumerate(values)]


def _document(name: str, value: Any, limits: Limits, words: Profile) -> str:
    if isinstance(value, str):
        return read_string(name, value, limits, words)
    if not isinstance(value, dict):
        raise words.fault(name, "type", f"{name} must be a string or an object with a text, got {shown(value)}")
    if value.get("text") is None:
        raise _missing_text(name, words)
    return read_string(f"{name}.text", value["text"], limits, words)


def _missing_text(name: str, words: Profile) -> InvalidRequest:
    return words.fault(f"{name}.text", "missing", f"{name}.text is missing: only texts are ranked")
