"""A pooling service whose vectors and scores are a function of the texts, so that answers can be known beforehand.

Does: keep the promises of `PoolingService` that APIs rely on, errors included; remembers what it was asked. Does not:
compute anything. A text's tokens are its words, and one at each end; a pair's those of both, and one more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dragoman.errors import CapacityError, InvalidParameter, ServerError
from dragoman.server.pooling.base import (
    ClassifyRequest,
    EmbedRequest,
    Numbers,
    Pooled,
    PoolingFacts,
    PoolingKind,
    ScoreRequest,
    Text,
    Truncation,
)
from dragoman.tokenizer.base import Tokenizer

DIMENSIONS = 4
LONGEST = 12
VOCABULARY = 100
LABELS = ("short", "long")


class FakePooling:
    """Embeds or scores, by its kind. `failure`: raised by the next questions."""

    def __init__(self, kind: PoolingKind = PoolingKind.EMBED) -> None:
        self.facts = PoolingFacts(
            kind=kind,
            max_tokens=LONGEST,
            vocab_size=VOCABULARY,
            dimensions=DIMENSIONS,
            prompts={"query": "find: "},
            labels=LABELS if kind in (PoolingKind.CLASSIFY, PoolingKind.SCORE) else (),
        )
        self.embedded: list[EmbedRequest] = []
        self.scored: list[ScoreRequest] = []
        self.classified: list[ClassifyRequest] = []
        self.failure: ServerError | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """There is none."""
        raise NotImplementedError

    async def embed(self, request: EmbedRequest) -> Pooled[Numbers]:
        """A vector of each text's lengths and sums."""
        self.embedded.append(request)
        self._fail()
        if request.prompt_name not in (None, *self.facts.prompts):
            message = f"prompt_name {request.prompt_name!r} is unknown, allowed: query"
            raise InvalidParameter(message, param="prompt_name")
        size = DIMENSIONS if request.dimensions is None else request.dimensions
        if not 1 <= size <= DIMENSIONS:
            raise InvalidParameter(f"dimensions must be between 1 and {DIMENSIONS}, got {size}", param="dimensions")
        longest = self._longest(request.max_tokens)
        counts = [_num_tokens(text) for text in request.texts]
        cut = self._cut(counts, longest, "text", request.truncation)
        self._check_ids(request.texts)
        return Pooled(np.ascontiguousarray(vectors_of(request.texts)[:, :size]), cut)

    async def score(self, request: ScoreRequest) -> Pooled[Numbers]:
        """The more words of the query a document has, the better; the output itself is ten times that."""
        self.scored.append(request)
        self._fail()
        counts = [_num_tokens(query) + _num_tokens(document) - 1 for query, document in request.pairs]
        cut = self._cut(counts, self._longest(request.max_tokens), "pair", request.truncation)
        values = scores_of(request.pairs) * np.float32(10 if request.raw else 1)
        return Pooled(values.astype(np.float32), cut)

    async def classify(self, request: ClassifyRequest) -> Pooled[Numbers]:
        """Pairs are long, other texts short; the outputs themselves are ten times that."""
        self.classified.append(request)
        self._fail()
        parts = [text if isinstance(text, tuple) and isinstance(text[0], str) else (text,) for text in request.texts]
        counts = [sum(_num_tokens(part) for part in one) for one in parts]
        cut = self._cut(counts, self._longest(request.max_tokens), "text", request.truncation)
        values = np.array([[0.25, 0.75] if len(one) > 1 else [0.75, 0.25] for one in parts], dtype=np.float32)
        return Pooled(values * np.float32(10 if request.raw else 1), cut)

    async def token_vectors(self, request: EmbedRequest) -> Pooled[Sequence[Numbers]]:
        """The text's vector, as often as it has tokens."""
        made = await self.embed(request)
        rows = [np.repeat(row[None], count, axis=0) for row, count in zip(made.values, made.num_tokens, strict=True)]
        return Pooled(rows, made.num_tokens)

    async def weigh(self, request: EmbedRequest) -> Pooled[Sequence[npt.NDArray[np.void]]]:
        """One word: the number of tokens, of weight a half."""
        made = await self.embed(request)
        kind = np.dtype([("index", "<i4"), ("value", "<f4")])
        return Pooled([np.array([(count, 0.5)], dtype=kind) for count in made.num_tokens], made.num_tokens)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """As many as the text has."""
        return tuple(range(_num_tokens(text)))

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _longest(self, asked: int | None) -> int:
        if asked is not None and not 1 <= asked <= LONGEST:
            raise InvalidParameter(f"max_tokens must be between 1 and {LONGEST}, got {asked}", param="max_tokens")
        return asked or LONGEST

    def _cut(self, counts: list[int], longest: int, label: str, truncation: Truncation) -> tuple[int, ...]:
        for index, count in enumerate(counts):
            if count > longest and truncation is Truncation.NONE:
                message = f"{label} {index} has {count} tokens, allowed: at most {longest}"
                raise CapacityError(message, param="texts", num_prompt_tokens=count, max_model_len=longest)
        return tuple(min(count, longest) for count in counts)

    def _check_ids(self, texts: Sequence[Text]) -> None:
        for index, text in enumerate(texts):
            wrong = next((one for one in text if isinstance(one, int) and not 0 <= one < VOCABULARY), None)
            if wrong is not None:
                message = f"text {index} has token {wrong}, allowed: 0 to {VOCABULARY - 1}"
                raise InvalidParameter(message, param="texts")


def vectors_of(texts: Sequence[Text]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """What the service makes of texts."""
    rows = []
    for text in texts:
        values = list(text.encode()) if isinstance(text, str) else list(text)
        rows.append([len(values) / 8, sum(values) / 1024, -max(values, default=0) / 128, 0.5])
    return np.array(rows, dtype=np.float32)


def scores_of(pairs: Sequence[tuple[str, str]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """What the service makes of pairs."""
    shares = []
    for query, document in pairs:
        words = set(query.lower().split())
        shares.append(len(words & set(document.lower().split())) / max(1, len(words)))
    return np.array(shares, dtype=np.float32)


def _num_tokens(text: Text) -> int:
    return len(text) if isinstance(text, tuple) else len(text.split()) + 2
