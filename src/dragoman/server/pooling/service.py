"""Embeds texts and scores pairs with one model: `base.PoolingService` over the engine.

Does: have texts tokenised, ask the engine, bring vectors to the length and size that was asked for. Does not: know wire
formats, admit calls (the responder does), or choose batches. Runs on the event loop; long texts are tokenised on `pool`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.engine.base import PooledRows, TextPooling
from dragoman.errors import InvalidParameter, RequestTimeout, UnsupportedFeature
from dragoman.server.observation.record import current_call, new_request
from dragoman.server.pooling.base import Embeddings, EmbedRequest, PoolingFacts, PoolingKind, ScoreRequest, Scores
from dragoman.server.pooling.texts import TextPreparer
from dragoman.tokenizer.base import Tokenizer
from dragoman.types import PooledText

T = TypeVar("T")
Vectors = npt.NDArray[np.float32]

_INLINE_CHARS = 2_000  # tokenising takes about a microsecond per character
_LEAST_LENGTH = np.float32(1e-12)  # of a vector that is divided by it, as torch has it


class TextsService:
    """Serves one model that embeds or scores. `request_timeout_s` None = as long as it takes."""

    def __init__(
        self,
        name: str,
        engine: TextPooling,
        preparer: TextPreparer,
        request_timeout_s: float | None = None,
        pool: Executor | None = None,
    ) -> None:
        self._name = name
        self._engine = engine
        self._preparer = preparer
        self._request_timeout_s = request_timeout_s
        self._pool = pool

    @property
    def facts(self) -> PoolingFacts:
        """See `PoolingService`."""
        return self._preparer.facts

    @property
    def tokenizer(self) -> Tokenizer:
        """See `PoolingService`."""
        return self._preparer.tokenizer

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """See `PoolingService`."""
        if self.facts.kind is not PoolingKind.EMBED:
            raise UnsupportedFeature(f"model {self._name} scores pairs of texts and does not embed", param="model")
        prepare = self._preparer.embedded
        rows, texts = await self._run(request.request_id, prepare, request, _num_chars(request.texts))
        vectors: Vectors = rows.rows
        if request.dimensions is not None:
            vectors = vectors[:, : request.dimensions]
        if self.facts.is_normalized if request.normalize is None else request.normalize:
            vectors = normalized(vectors)
        return Embeddings(np.ascontiguousarray(vectors), tuple(len(text.token_ids) for text in texts))

    async def score(self, request: ScoreRequest) -> Scores:
        """See `PoolingService`."""
        if not request.pairs:
            raise InvalidParameter("pairs must hold at least one pair, got none", param="pairs")
        if self.facts.kind is PoolingKind.EMBED:
            return await self._similarities(request)
        prepare, num_chars = self._preparer.scored, _num_chars([text for pair in request.pairs for text in pair])
        rows, pairs = await self._run(request.request_id, prepare, request, num_chars)
        values: Vectors = rows.rows[:, 0]
        if self.facts.activation == "sigmoid" and not request.raw:
            values = np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), dtype=np.float32)
        return Scores(values, tuple(len(pair.token_ids) for pair in pairs))

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """See `PoolingService`."""

        def encode() -> tuple[int, ...]:
            own = self._preparer.tokenizer.encode_all([text])[0]
            return self._preparer.tokenizer.frame.around(own) if add_special_tokens else tuple(own)

        return await self._off_loop(encode, len(text))

    async def _similarities(self, request: ScoreRequest) -> Scores:
        """The pairs' scores as the similarity of their embeddings; each different text is embedded once."""
        if request.instruction is not None:
            raise InvalidParameter("instruction must be left out: this model takes none", param="instruction")
        prompts = self.facts.prompts
        sides: list[tuple[dict[str, int], Embeddings]] = []
        for side, names in enumerate((("query",), ("document", "passage"))):
            texts = {text: index for index, text in enumerate(dict.fromkeys(pair[side] for pair in request.pairs))}
            name = next((one for one in names if one in prompts), None)
            embedded = await self.embed(
                EmbedRequest(
                    texts=tuple(texts),
                    request_id=request.request_id,
                    prompt_name=name,
                    truncation=request.truncation,
                    max_tokens=request.max_tokens,
                )
            )
            sides.append((texts, embedded))
        (queries, first), (documents, second) = sides
        places = [(queries[query], documents[document]) for query, document in request.pairs]
        left, right = first.vectors[[one for one, _ in places]], second.vectors[[other for _, other in places]]
        num_tokens = tuple(first.num_tokens[one] + second.num_tokens[other] for one, other in places)
        return Scores(similarity(left, right, self.facts.similarity), num_tokens)

    async def _run(
        self, request_id: str, prepare: Callable[[Any], list[PooledText]], request: object, num_chars: int
    ) -> tuple[PooledRows, list[PooledText]]:
        """The engine's rows, and the texts they are of; what is known of them goes into the call's record."""
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
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def normalized(vectors: Vectors) -> Vectors:
    """Rows of length 1; a row of zeros stays one."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32))
    return np.asarray(vectors / np.maximum(lengths, _LEAST_LENGTH)[:, None], dtype=np.float32)


def similarity(left: Vectors, right: Vectors, kind: str) -> Vectors:
    """How alike the rows are, pair by pair; distances are negative. Source: sentence-transformers' similarity functions."""
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
