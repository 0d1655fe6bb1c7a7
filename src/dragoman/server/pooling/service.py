"""`base.PoolingService` over the engine. Runs on the event loop; long texts are tokenised on threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.engine.base import PooledRows, TextPooling
from dragoman.errors import InvalidParameter, RequestTimeout
from dragoman.server.observation.record import current_call, new_request
from dragoman.server.pooling.base import (
    ClassifyRequest,
    EmbedRequest,
    Numbers,
    Pooled,
    PoolingFacts,
    PoolingKind,
    ScoreRequest,
    Truncation,
)
from dragoman.server.pooling.texts import TextPreparer, parts_of
from dragoman.tokenizer.base import Tokenizer
from dragoman.types import PooledText

T = TypeVar("T")

_INLINE_CHARS = 2_000  # tokenising takes about a microsecond per character
_SIDES = ("query", "retrieval.query"), ("document", "passage", "retrieval.passage")
"""Names of prompts that go before the texts of a pair."""
_MOST_NUMBERS = 1 << 24  # in the answer to one call: 64 MB, and several times that as JSON
_LEAST_LENGTH = np.float32(1e-12)  # of a vector that is divided by it, as torch has it


class TextsService:
    def __init__(
        self,
        engine: TextPooling,
        preparer: TextPreparer,
        request_timeout_s: float | None = None,
    ) -> None:
        self._engine = engine
        self._preparer = preparer
        self._request_timeout_s = request_timeout_s

    @property
    def facts(self) -> PoolingFacts:
        return self._preparer.facts

    @property
    def tokenizer(self) -> Tokenizer:
        return self._preparer.tokenizer

    async def embed(self, request: EmbedRequest) -> Pooled[Numbers]:
        prepare = self._preparer.embedded
        rows, texts = await self._run(request.request_id, prepare, request, _num_chars(request.texts))
        vectors: Numbers = rows.rows
        if request.dimensions is not None:
            vectors = vectors[:, : request.dimensions]
        if self.facts.is_normalized if request.normalize is None else request.normalize:
            vectors = normalized(vectors)
        return Pooled(np.ascontiguousarray(vectors), tuple(len(text.token_ids) for text in texts))

    async def score(self, request: ScoreRequest) -> Pooled[Numbers]:
        if not request.pairs:
            raise InvalidParameter("pairs must hold at least one pair, got none", param="pairs")
        if self.facts.kind in (PoolingKind.EMBED, PoolingKind.TOKENS):
            return await self._similarities(request)
        counts: list[int] = []

        def prepare(request: ScoreRequest) -> list[PooledText]:
            pieces = self._preparer.scored(request)
            counts.extend(map(len, pieces))
            return [piece for pair in pieces for piece in pair]

        num_chars = _num_chars([text for pair in request.pairs for text in pair])
        rows, texts = await self._run(request.request_id, prepare, request, num_chars)
        begins = np.cumsum(counts) - np.array(counts, dtype=np.int64)
        values: Numbers = np.maximum.reduceat(rows.rows[:, 0], begins)  # the best piece counts
        num_tokens = np.add.reduceat([len(text.token_ids) for text in texts], begins).tolist()
        return Pooled(values if request.raw else activated(values, self.facts.activation), tuple(num_tokens))

    async def classify(self, request: ClassifyRequest) -> Pooled[Numbers]:
        if not request.texts:
            raise InvalidParameter("texts must hold at least one text, got none", param="texts")
        num_chars = _num_chars([part for text in request.texts for part in parts_of(text)])
        rows, texts = await self._run(request.request_id, self._preparer.classified, request, num_chars)
        values: Numbers = rows.rows
        values = values if request.raw else activated(values, self.facts.activation)
        return Pooled(values, tuple(len(text.token_ids) for text in texts))

    async def token_vectors(self, request: EmbedRequest) -> Pooled[Sequence[Numbers]]:
        is_late, size = self.facts.kind is PoolingKind.TOKENS, self.facts.dimensions

        def prepare(request: EmbedRequest) -> list[PooledText]:
            texts = self._preparer.written(request) if is_late else self._preparer.embedded(request)
            self._check_numbers(sum(len(text.token_ids) for text in texts) * (request.dimensions or size))
            return [replace(text, wants_tokens=True) for text in texts]

        rows, texts = await self._run(request.request_id, prepare, request, _num_chars(request.texts))
        normalizes = self.facts.is_normalized if request.normalize is None else request.normalize
        skipped = self._preparer.late.skipped if is_late and self._preparer.late is not None else frozenset()
        is_query = request.prompt_name == "query"

        def finish() -> list[Numbers]:
            made = []
            for row, text in zip(rows.rows, texts, strict=True):
                counts = [is_query or token not in skipped for token in text.token_ids]
                kept = row[counts, : request.dimensions]
                made.append(np.ascontiguousarray(normalized(kept) if normalizes else kept))
            return made

        return Pooled(await self._off_loop(finish, len(texts) * size), tuple(len(text.token_ids) for text in texts))

    async def weigh(self, request: EmbedRequest) -> Pooled[Sequence[npt.NDArray[np.void]]]:
        rows, texts = await self._run(request.request_id, self._preparer.embedded, request, _num_chars(request.texts))
        self._check_numbers(sum(map(len, rows.rows)))
        return Pooled(rows.rows, tuple(len(text.token_ids) for text in texts))

    def _check_numbers(self, count: int) -> None:
        if count > _MOST_NUMBERS:
            message = (
                f"texts would be answered with {count} numbers, allowed: at most {_MOST_NUMBERS}; send fewer texts"
            )
            raise InvalidParameter(message, param="texts")

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        def encode() -> tuple[int, ...]:
            token_ids = self._preparer.tokenizer.encode_all([text])[0]
            return self._preparer.tokenizer.frame.around(token_ids) if add_special_tokens else tuple(token_ids)

        return await self._off_loop(encode, len(text))

    async def _similarities(self, request: ScoreRequest) -> Pooled[Numbers]:
        """The similarity of the pairs' embeddings; each different text is embedded once."""
        if request.instruction is not None:
            raise InvalidParameter("instruction must be left out: this model takes none", param="instruction")
        prompts, is_late = self.facts.prompts, self.facts.kind is PoolingKind.TOKENS
        sides: list[tuple[dict[str, int], Any]] = []
        for side, names in enumerate(_SIDES):
            texts = {text: index for index, text in enumerate(dict.fromkeys(pair[side] for pair in request.pairs))}
            name = next((candidate for candidate in names if candidate in prompts), None)
            truncation, longest = request.truncation, request.max_tokens
            if side and request.max_document_tokens is not None:
                bound = self._preparer.longest_document(request.max_document_tokens, name)
                truncation = Truncation.RIGHT if truncation is Truncation.NONE else truncation
                longest = bound if longest is None else min(longest, bound)
            asked = EmbedRequest(
                texts=tuple(texts),
                request_id=request.request_id,
                prompt_name=name,
                truncation=truncation,
                max_tokens=longest,
            )
            embedded = await (self.token_vectors(asked) if is_late else self.embed(asked))
            sides.append((texts, embedded))
        (queries, first), (documents, second) = sides
        places = [(queries[query], documents[document]) for query, document in request.pairs]
        num_tokens = tuple(first.num_tokens[place] + second.num_tokens[other] for place, other in places)
        if is_late:
            values = await self._off_loop(
                lambda: [most_similar(first.values[place], second.values[other]) for place, other in places],
                sum(num_tokens),
            )
            return Pooled(np.array(values, dtype=np.float32), num_tokens)
        left, right = first.values[[place for place, _ in places]], second.values[[other for _, other in places]]
        return Pooled(similarity(left, right, self.facts.similarity), num_tokens)

    async def _run(
        self, request_id: str, prepare: Callable[[Any], list[PooledText]], request: object, num_chars: int
    ) -> tuple[PooledRows, list[PooledText]]:
        """The engine's rows, and the texts they are of."""
        record, call = new_request(request_id, 0), current_call()
        try:
            async with asyncio.timeout(self._request_timeout_s):
                texts = await self._off_loop(lambda: prepare(request), num_chars)
                record.prepared_s = perf_counter()
                record.num_queued_tokens = sum(len(text.token_ids) for text in texts)
                if call is not None:
                    call.take(call, record)
                rows = await self._engine.pool(texts)
        except TimeoutError as error:
            raise RequestTimeout(f"the request took longer than {self._request_timeout_s:g} s") from error
        finally:
            record.num_queued_tokens = 0
        record.num_prompt_tokens, record.queue_s = rows.num_tokens, rows.queue_s
        return rows, texts

    async def _off_loop(self, work: Callable[[], T], num_chars: int) -> T:
        if num_chars <= _INLINE_CHARS:
            return work()
        return await asyncio.to_thread(work)


def activated(values: Numbers, activation: str) -> Numbers:
    match activation:
        case "sigmoid":
            values = 0.5 * (1.0 + np.tanh(0.5 * values))
        case "softmax":
            powers = np.exp(values - values.max(axis=-1, keepdims=True))
            values = powers / powers.sum(axis=-1, keepdims=True)
    return np.asarray(values, dtype=np.float32)


def most_similar(query: Numbers, document: Numbers) -> float:
    """The sum of each query vector's product with the document's most similar one. Source: arXiv:2004.12832."""
    return float((query @ document.T).max(axis=1).sum()) if len(document) else 0.0


def normalized(vectors: Numbers) -> Numbers:
    """Rows of length 1; a row of zeros stays one."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32))
    return np.asarray(vectors / np.maximum(lengths, _LEAST_LENGTH)[:, None], dtype=np.float32)


def similarity(left: Numbers, right: Numbers, kind: str) -> Numbers:
    """The similarity of rows, pair by pair; distances are negative. Source: sentence-transformers' similarity functions."""
    match kind:
        case "dot":
            values = np.einsum("ij,ij->i", left, right)
        case "euclidean":
            values = -np.sqrt(np.square(left - right).sum(axis=1))
        case "manhattan":
            values = -np.abs(left - right).sum(axis=1)
        case _:
            values = np.einsum("ij,ij->i", normalized(left), normalized(right))
    return np.asarray(values, dtype=np.float32)


def _num_chars(texts: Sequence[str | tuple[int, ...]]) -> int:
    return sum(map(len, texts))
