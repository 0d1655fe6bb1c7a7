"""The protocol of models that embed texts or score pairs, for client APIs: the service, its questions and answers.

An API's dialect is an `AnsweringDialect`, so that the server handles keys, limits, admission, logs and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Generic, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Opening, Reply, TellsErrors
from dragoman.tokenizer.base import Tokenizer

Numbers = npt.NDArray[np.float32]
ValuesT = TypeVar("ValuesT")

Text = str | tuple[int, ...]
"""A text, or its token ids, which are taken as they are: no prompt and no special tokens are added."""


class PoolingKind(StrEnum):
    """The purpose of a model. EMBED: a text becomes a vector. SCORE: a pair of texts becomes a number. CLASSIFY: a
    text becomes a number for each label. SPARSE: its words get weights. TOKENS: each of its tokens becomes a vector.
    """

    EMBED = "embed"
    SCORE = "score"
    CLASSIFY = "classify"
    SPARSE = "sparse"
    TOKENS = "tokens"

    @property
    def does(self) -> str:
        return _DOES[self]


_DOES = {
    PoolingKind.EMBED: "embeds texts",
    PoolingKind.SCORE: "scores pairs of texts",
    PoolingKind.CLASSIFY: "classifies texts",
    PoolingKind.SPARSE: "weighs the words of texts",
    PoolingKind.TOKENS: "embeds the tokens of texts",
}


class Truncation(StrEnum):
    """The handling of too many tokens: NONE refuses, RIGHT cuts the end, LEFT the beginning; of pairs, the longer text."""

    NONE = "none"
    RIGHT = "right"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """The facts about a model. `max_tokens`: of one text or pair, special tokens included.

    `dimensions`: of its embeddings, or of its tokens'; else 0. `pooling`: how tokens become one vector (cls, mean, ...).
    `is_normalized`: embeddings have length 1 by default. `similarity`: cosine, dot, euclidean or manhattan. `prompts`: texts
    that go before a text. `tasks`: prompts with which an adapter of its own embeds. `activation`: sigmoid, softmax or
    identity, "" if the model embeds.
    """

    kind: PoolingKind
    max_tokens: int
    vocab_size: int
    dimensions: int = 0
    pooling: str = ""
    is_normalized: bool = False
    similarity: str = "cosine"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    tasks: tuple[str, ...] = ()
    activation: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts to embed. `prompt_name`: one of the model's prompts, None = its default one.

    `dimensions`: the number of first components to keep (Matryoshka), normalised again if the embedding is.
    `normalize`: None = as the model does.
    """

    texts: Sequence[Text]
    request_id: str = ""
    prompt_name: str | None = None
    truncation: Truncation = Truncation.NONE
    max_tokens: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Pairs (query, document) to score; higher is more relevant.

    `max_tokens`: of the pair as one sequence. `max_pieces`: into which a document is cut that is too long; the best counts,
    but models that embed take the first. `max_document_tokens`: of a document or piece; the rest is left out, whatever
    `truncation` says. `raw`: the output before its activation. `instruction` None = the model's own.
    """

    pairs: Sequence[tuple[str, str]]
    request_id: str = ""
    truncation: Truncation = Truncation.NONE
    max_tokens: int | None = None
    max_pieces: int = 1
    max_document_tokens: int | None = None
    raw: bool = False
    instruction: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest:
    """Texts, token ids, or pairs of texts, to classify. The rest is as of `ScoreRequest`."""

    texts: Sequence[Text | tuple[str, str]]
    request_id: str = ""
    truncation: Truncation = Truncation.NONE
    max_tokens: int | None = None
    add_special_tokens: bool = True
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Pooled(Generic[ValuesT]):
    """The values of each text or pair, in order, and the number of its tokens as it was computed."""

    values: ValuesT
    num_tokens: tuple[int, ...]


class PoolingService(Protocol):
    """One model; `embedder`, `scorer` and the like check that it does what is asked. Cancelling drops what is queued.

    All methods raise Overloaded (with `retry_after_s`), RequestTimeout, EngineFailed for this request, EngineDead and
    Unavailable. InvalidParameter names a field of the request as its `param`. CapacityError: a text is too long and may not
    be truncated; its message has the text's index.
    """

    @property
    def facts(self) -> PoolingFacts: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def embed(self, request: EmbedRequest) -> Pooled[Numbers]: ...

    async def score(self, request: ScoreRequest) -> Pooled[Numbers]:
        """The pairs' scores; those of a model that embeds are similarities, and `raw` makes no difference."""
        ...

    async def classify(self, request: ClassifyRequest) -> Pooled[Numbers]:
        """The probabilities of the labels, or the head's outputs if they are wanted raw."""
        ...

    async def token_vectors(self, request: EmbedRequest) -> Pooled[Sequence[Numbers]]:
        """Last hidden states, or what late interaction makes: of queries with `prompt_name` "query", else documents."""
        ...

    async def weigh(self, request: EmbedRequest) -> Pooled[Sequence[npt.NDArray[np.void]]]: ...

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """The tokens of a text as they would be computed, without a prompt."""
        ...


def embedder(profile: ModelProfile) -> PoolingService:
    """The service of a model that embeds. Raises: UnsupportedFeature, in one line, for any other; so do the next ones."""
    return _found(profile, "embed", PoolingKind.EMBED)


def token_embedder(profile: ModelProfile) -> PoolingService:
    return _found(profile, "embed tokens", PoolingKind.EMBED, PoolingKind.TOKENS)


def weigher(profile: ModelProfile) -> PoolingService:
    return _found(profile, "weigh words", PoolingKind.SPARSE)


def classifier(profile: ModelProfile) -> PoolingService:
    service = _found(profile, "classify", PoolingKind.CLASSIFY, PoolingKind.SCORE)
    if not service.facts.labels:
        raise UnsupportedFeature(f"model {profile.name} {service.facts.kind.does} and does not classify", param="model")
    return service


def scorer(profile: ModelProfile, *, by_similarity: bool = False) -> PoolingService:
    by = (PoolingKind.EMBED,) if by_similarity else ()
    return _found(profile, "score or rerank", PoolingKind.SCORE, PoolingKind.TOKENS, *by)


class AnsweringDialect(TellsErrors):
    """A dialect of one model whose calls are answered without generating."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile

    def open(self, http: HttpCall) -> Opening:
        return Opening(_refuse_to_generate, answer=partial(self._answer, http))

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        """The whole answer. Raises: ServerError at any point, parsing included."""
        raise NotImplementedError


def _refuse_to_generate() -> NoReturn:
    raise UnsupportedFeature("this model does not generate")  # not reached: `_answer` never leaves a call to generation


def _found(profile: ModelProfile, what: str, *kinds: PoolingKind) -> PoolingService:
    service: PoolingService | None = profile.pooling
    if service is None or service.facts.kind not in kinds:
        does = "generates text" if service is None else service.facts.kind.does
        raise UnsupportedFeature(f"model {profile.name} {does} and does not {what}", param="model")
    return service
