"""The protocol between client APIs and a model that embeds texts or scores pairs of them: the service, questions, answers.

Does: define these values, and find the service of a model. Does not: tokenise, queue or compute (`service` and
`engine.pooling` do), or know a wire format. Used by the APIs that offer embeddings and reranking, on the event loop.

An API on it has `GenerateOperation`s whose dialect answers in the opening's `answer`. So the server handles the rest as
for generation: keys, rate limits, admission, loading of models, logs, metrics and clients that leave. `set_up(profile)`
makes the dialect, an `AnsweringDialect`, which keeps `profile.pooling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Opening, Reply, TellsErrors
from dragoman.tokenizer.base import Tokenizer

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
        """The verb of a sentence about such a model."""
        return _DOES[self]


_DOES = {
    PoolingKind.EMBED: "embeds texts",
    PoolingKind.SCORE: "scores pairs of texts",
    PoolingKind.CLASSIFY: "classifies texts",
    PoolingKind.SPARSE: "weighs the words of texts",
    PoolingKind.TOKENS: "embeds the tokens of texts",
}


class Truncation(StrEnum):
    """The handling of a text with too many tokens: it is refused (NONE), or loses its end (RIGHT) or its beginning (LEFT).

    Special tokens are never cut off. Of a pair, the longer text loses tokens first.
    """

    NONE = "none"
    RIGHT = "right"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """The facts about a model.

    `dimensions`: of its embeddings, or of its tokens'; 0 for any other model. `max_tokens`: of one text or pair, special
    tokens included. `pooling`: how tokens become one vector (cls, mean, max, last, ...). `is_normalized`: embeddings have
    length 1 unless a request asks otherwise. `similarity`: what compares two of them (cosine, dot, euclidean, manhattan).
    `prompts`: texts that go before a text, by name, as the checkpoint lists them; `default_prompt_name`: the one that counts
    where a request names none, None = no prompt. `tasks`: prompts with which a text is embedded for a task, by an adapter of
    its own. `activation`: what makes a score of a model's output (sigmoid, softmax,
    identity), "" for one that embeds. `labels`: what a model that classifies, or scores, tells. `takes_instruction`: pairs
    can be scored by an instruction of the client's (Qwen3-Reranker).
    """

    kind: PoolingKind
    architecture: str
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
    takes_instruction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts to embed.

    `prompt_name`: one of the model's prompts, None = its default one; `prompt`: the prompt itself, "" = none, which excludes
    a name. `truncation`: the handling of texts longer than the model takes, or than `max_tokens`. `dimensions`: the number
    of first components to keep (Matryoshka), normalised again if the embedding is. `normalize`: None = as the model does.
    `add_special_tokens` False leaves them out.
    """

    texts: Sequence[Text]
    request_id: str = ""
    prompt_name: str | None = None
    prompt: str | None = None
    truncation: Truncation = Truncation.NONE
    max_tokens: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Pairs (query, document) to score; higher is more relevant.

    `truncation`, `max_tokens`: as of `EmbedRequest`, of the pair as one sequence. `max_pieces`: into how many pieces a
    document is cut that is longer than there is room for; the best piece counts, and what is behind the last is left out.
    Models that embed take the first. `max_document_tokens`: of a document, or of each piece where there may be several;
    what is behind them is left out, whatever `truncation` says. `raw`: the model's output before its activation.
    `instruction`: what relevance means here, only where the facts say so; None = the model's own.
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
class Embeddings:
    """One row of `vectors` (f32, C-contiguous) for each text, in order. `num_tokens`: of each, as it was computed."""

    vectors: npt.NDArray[np.float32]
    num_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """One number (f32) for each pair, in order. `num_tokens`: of each pair, as it was computed."""

    values: npt.NDArray[np.float32]
    num_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Classes:
    """One row of `values` (f32 [texts, labels]) for each text, in order. `num_tokens`: of each, as it was computed."""

    values: npt.NDArray[np.float32]
    num_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """An array (f32 [tokens, dimensions]) for each text, in order. `num_tokens`: of each, as it was computed; some may have
    no vector.
    """

    rows: Sequence[npt.NDArray[np.float32]]
    num_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WordWeights:
    """An array for each text, in order: `index` of a word and its `value` above 0, by index. `num_tokens`: of each."""

    rows: Sequence[npt.NDArray[np.void]]
    num_tokens: tuple[int, ...]


class PoolingService(Protocol):
    """Embeds or scores with one model.

    Cancelling an `await` drops what is queued of the request; nothing of it is computed any more. A request's texts may be
    computed in several batches, with those of others; its answer does not depend on them.

    Errors, besides those of each method: Overloaded (with `retry_after_s`) if the queue is full, RequestTimeout after the
    operator's bound. EngineFailed if computing this request failed, EngineDead or Unavailable while there is no engine.
    """

    @property
    def facts(self) -> PoolingFacts:
        """The facts about the model."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """The texts' embeddings.

        Raises: UnsupportedFeature for a model that scores. InvalidParameter with `param` `texts` (none, or a token id
        outside the vocabulary), `prompt_name` (the message lists the model's), `prompt` (beside a name), `dimensions`,
        `max_tokens`. CapacityError for a text that is too long and may not be truncated: the message has its index and both
        numbers.
        """
        ...

    async def score(self, request: ScoreRequest) -> Scores:
        """The pairs' scores; those of a model that embeds are the similarity of the two embeddings (`raw` makes no
        difference), which an API may refuse by `facts.kind`.

        Raises: InvalidParameter (`pairs`, `max_tokens`, `instruction`), CapacityError; as `embed`.
        """
        ...

    async def classify(self, request: ClassifyRequest) -> Classes:
        """The probabilities of the labels, or the head's outputs if they are wanted raw.

        Raises: UnsupportedFeature for a model without labels, or one that is asked about pairs. Else as `embed`.
        """
        ...

    async def token_vectors(self, request: EmbedRequest) -> TokenVectors:
        """The vectors of the texts' tokens: last hidden states, or what a model of late interaction makes of them.

        `prompt_name` "query" has such a model read texts as queries, else they are documents. Raises: UnsupportedFeature for
        a model that does not embed; InvalidParameter (`dimensions`, or `texts` with too many vectors). Else as `embed`.
        """
        ...

    async def weigh(self, request: EmbedRequest) -> WordWeights:
        """The weights of the texts' words. Raises: as `token_vectors`."""
        ...

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """The tokens of a text as they would be computed, without a prompt."""
        ...


def embedder(profile: ModelProfile) -> PoolingService:
    """The service of a model that embeds. Raises: UnsupportedFeature, in one line, for any other model."""
    return _found(profile, "embed", PoolingKind.EMBED)


def token_embedder(profile: ModelProfile) -> PoolingService:
    """The service of a model that makes vectors of tokens. Raises: UnsupportedFeature, in one line, for any other model."""
    return _found(profile, "embed tokens", PoolingKind.EMBED, PoolingKind.TOKENS)


def weigher(profile: ModelProfile) -> PoolingService:
    """The service of a model that weighs words. Raises: UnsupportedFeature, in one line, for any other model."""
    return _found(profile, "weigh words", PoolingKind.SPARSE)


def classifier(profile: ModelProfile) -> PoolingService:
    """The service of a model that has labels. Raises: UnsupportedFeature, in one line, for any other model."""
    service = _found(profile, "classify", PoolingKind.CLASSIFY, PoolingKind.SCORE)
    if not service.facts.labels:
        raise UnsupportedFeature(f"model {profile.name} {service.facts.kind.does} and does not classify", param="model")
    return service


def scorer(profile: ModelProfile, *, by_similarity: bool = False) -> PoolingService:
    """The service of a model that scores pairs; with `by_similarity` also one that embeds.

    Raises: UnsupportedFeature, in one line, for any other model.
    """
    by = (PoolingKind.EMBED,) if by_similarity else ()
    return _found(profile, "score or rerank", PoolingKind.SCORE, PoolingKind.TOKENS, *by)


class AnsweringDialect(TellsErrors):
    """A dialect of one model whose calls are answered without generating."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile

    def open(self, http: HttpCall) -> Opening:
        """The call, which `_answer` answers."""
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
