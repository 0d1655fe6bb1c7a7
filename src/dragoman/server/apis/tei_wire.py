"""The wire format of Text Embeddings Inference, which its own operations and those of TGI at `/` and `/info` speak.

On the event loop. Source: TEI's HTTP API (EmbedRequest, RerankRequest, ErrorResponse, ErrorType); before version 1.9,
`Validation` was 413.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from dragoman import __version__
from dragoman.errors import InvalidPayload, ServerError
from dragoman.parameters import Bounds
from dragoman.server.api import JSON_MEDIA_TYPE, Dialect, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.fields import check_count
from dragoman.server.apis.openai_wire.pooling import (
    TextsCall,
    TextsDialect,
    TextsField,
    TextsOperation,
    encoded_arrays,
    read_string,
    read_strings,
    read_texts,
    texts_schema,
)
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.rerank_wire import best_first
from dragoman.server.descriptions import INVALID, TEXT, ErrorFamily, Schema, any_of, array, statuses
from dragoman.server.pooling.base import (
    ClassifyRequest,
    EmbedRequest,
    PoolingFacts,
    PoolingKind,
    ScoreRequest,
    Truncation,
    classifier,
    embedder,
    scorer,
    token_embedder,
    weigher,
)
from dragoman.server.registry import ServedModel
from dragoman.types import Limits

TEI_VERSION = "1.8.3"  # whose API these routes speak
SIDES = ("Left", "Right", "left", "right")

WORDS = Profile(name="tei", bounds={"dimensions": Bounds(1)})
"""Errors are told in general words."""

# --- bodies and answers -----------------------------------------------------------------------------------------------


class TeiBody(msgspec.Struct, kw_only=True):
    """The fields of all bodies; `inputs` of the others is read by hand, as it may be many things."""

    truncate: bool | None = None
    truncation_direction: str | None = None


class TeiEmbedAllBody(TeiBody, kw_only=True):
    """The body of POST /embed_all and /embed_sparse."""

    inputs: Any = None
    prompt_name: str | None = None


class TeiEmbedBody(TeiEmbedAllBody, kw_only=True):
    """The body of POST /embed."""

    normalize: bool | None = None
    dimensions: int | None = None


class TeiPredictBody(TeiBody, kw_only=True):
    """The body of POST /predict. `inputs`: a text, a pair, or a list of lists of one or two texts."""

    inputs: Any = None
    raw_scores: bool | None = None


class TeiRerankBody(TeiBody, kw_only=True):
    """The body of POST /rerank."""

    query: str
    texts: list[Any]
    raw_scores: bool | None = None
    return_text: bool | None = None


class TeiWord(msgspec.Struct):
    """A word of the vocabulary, and its weight."""

    index: int
    value: float


class TeiPrediction(msgspec.Struct):
    """A label, and how likely it is."""

    score: float
    label: str


class TeiRank(msgspec.Struct):
    """One text: its place in the request, and how relevant it is."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class TeiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /info` where the model embeds or scores, in TEI's order. `docker_label` is ours."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str | None = None
    model_type: Mapping[str, Mapping[str, Any]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_requests: int | None = None
    max_client_batch_size: int
    auto_truncate: bool = True
    tokenization_workers: int
    version: str
    sha: str | None = None
    docker_label: str | None = None


_EFFECTS: Mapping[str, str] = {
    "truncate": "cut what is too long; false: it is refused",
    "normalize": "vectors of length 1",
    "prompt_name": "one of the model's prompts, which goes before each text",
    "dimensions": "keep this number of the first components",
    "raw_scores": "the model's output before its activation",
    "return_text": "tell the texts as well",
}
_DEFAULTS = {"truncate": True, "normalize": True, "raw_scores": False, "return_text": False}
_OWN_TYPES = {"truncation_direction": {"enum": list(SIDES), "default": "Right"}}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    texts, part = texts_schema(profile.limits), array(TEXT, minItems=1, maxItems=2)
    parts = any_of(TEXT, part, array(part, minItems=1, maxItems=profile.limits.max_prompts))
    several = array(TEXT, minItems=1, maxItems=profile.limits.max_prompts)
    needed: Mapping[type[TeiBody], Mapping[str, Schema]] = {
        TeiEmbedBody: {"inputs": texts},
        TeiEmbedAllBody: {"inputs": texts},
        TeiPredictBody: {"inputs": parts},
        TeiRerankBody: {"query": TEXT, "texts": several},
    }
    return {
        kind.__name__.replace("Body", "Request"): struct_body(
            kind, _EFFECTS, WORDS, profile, needed=fields, defaults=_DEFAULTS, own=_OWN_TYPES
        )
        for kind, fields in needed.items()
    }


# --- errors -----------------------------------------------------------------------------------------------------------

TeiErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class NothingGiven(InvalidPayload):
    """The request has no text; TEI has its own status for that."""


class TeiError(msgspec.Struct):
    """The body of an error."""

    error: str
    error_type: TeiErrorType


STATUSES = statuses(
    **dict.fromkeys((*INVALID, "capacity"), 422),
    **dict.fromkeys(("unsupported", "timeout", "cancelled", "engine_failed", "hook_error"), 424),
)
TYPES: Mapping[int, TeiErrorType] = {
    424: "Backend",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    507: "Overloaded",
}
"""The types of errors by status; all others are the client's fault."""
EMPTY_STATUS = 400


class TeiErrors(ErrorFamily):
    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        if isinstance(error, NothingGiven):
            return json_reply(EMPTY_STATUS, TeiError(error.message, "Empty"))
        status = STATUSES[error.kind]
        return json_reply(status, TeiError(error.message, TYPES.get(status, "Validation")))


ERRORS = TeiErrors(STATUSES, lambda status: {JSON_MEDIA_TYPE: TeiError})

# --- calls ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def root_dialect(profile: ModelProfile) -> Dialect:
    """The dialect of `POST /` in TEI's router for the model: its one operation."""
    return TextsDialect(profile, OPERATIONS[_OPERATION_OF_KIND[profile.pooling.facts.kind]])


async def _embed(call: TextsCall[TeiEmbedBody]) -> Any:
    body, service = call.body, embedder(call.profile)
    made = await _of_inputs(call, service.embed, dimensions=body.dimensions, normalize=body.normalize is not False)
    return await encoded_arrays(made.values, _numbers)


async def _embed_all(call: TextsCall[TeiEmbedAllBody]) -> Any:
    service = token_embedder(call.profile)
    normalize = None if service.facts.kind is PoolingKind.TOKENS else False
    return await encoded_arrays((await _of_inputs(call, service.token_vectors, normalize=normalize)).values, _numbers)


async def _embed_sparse(call: TextsCall[TeiEmbedAllBody]) -> Any:
    made = await _of_inputs(call, weigher(call.profile).weigh, normalize=False)
    return await encoded_arrays(made.values, _words)


async def _of_inputs(call: TextsCall[Any], ask: Callable[[EmbedRequest], Awaitable[T]], **more: Any) -> T:
    """`more`: further fields of the request. Raises: ServerError."""
    body = call.body
    _refuse_nothing("inputs", body.inputs)
    field, texts = read_texts("inputs", body.inputs, call.limits, WORDS)
    request = EmbedRequest(
        texts=texts,
        request_id=call.request_id,
        prompt_name=body.prompt_name,
        truncation=_truncation(body),
        **more,
    )
    return await field.asked(ask, request)


async def _predict(call: TextsCall[TeiPredictBody]) -> Any:
    service, inputs = classifier(call.profile), call.body.inputs
    _refuse_nothing("inputs", inputs)
    field = TextsField("inputs", isinstance(inputs, list) and isinstance(inputs[0], list))
    entries = inputs if field.is_list else [inputs]
    check_count("inputs", len(entries), call.limits.max_prompts, WORDS)
    request = ClassifyRequest(
        texts=[_text(field.place(index), entry, call.limits) for index, entry in enumerate(entries)],
        request_id=call.request_id,
        truncation=_truncation(call.body),
        raw=call.body.raw_scores is True,
    )
    made = await field.asked(service.classify, request)
    labels = service.facts.labels
    rows = [[TeiPrediction(row[place], labels[place]) for place in best_first(row)] for row in made.values.tolist()]
    return rows if field.is_list else rows[0]


def _text(name: str, value: Any, limits: Limits) -> str | tuple[str, str]:
    if isinstance(value, str):
        return read_string(name, value, limits, WORDS)
    if not isinstance(value, list) or len(value) not in (1, 2):
        raise WORDS.wrong(name, "a string or a list of one or two", value)
    parts = [read_string(f"{name}[{index}]", part, limits, WORDS) for index, part in enumerate(value)]
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


async def _rerank(call: TextsCall[TeiRerankBody]) -> list[TeiRank]:
    body, service = call.body, scorer(call.profile)
    _refuse_nothing("texts", body.texts)
    query = read_string("query", body.query, call.limits, WORDS)
    texts = read_strings("texts", body.texts, call.limits, WORDS)
    request = ScoreRequest(
        pairs=[(query, text) for text in texts],
        request_id=call.request_id,
        truncation=_truncation(body),
        raw=body.raw_scores is True,
    )
    made = await TextsField("texts").asked(service.score, request)
    scores = made.values.tolist()
    return [TeiRank(index, scores[index], texts[index] if body.return_text else UNSET) for index in best_first(scores)]


def _row(kind: type[msgspec.Struct], answer: Callable[[TextsCall[Any]], Awaitable[Any]]) -> TextsOperation[Any]:
    return TextsOperation(kind, answer, WORDS, ERRORS)


OPERATIONS: Mapping[str, TextsOperation[Any]] = {
    "embed": _row(TeiEmbedBody, _embed),
    "embed_all": _row(TeiEmbedAllBody, _embed_all),
    "embed_sparse": _row(TeiEmbedAllBody, _embed_sparse),
    "rerank": _row(TeiRerankBody, _rerank),
    "predict": _row(TeiPredictBody, _predict),
}
_OPERATION_OF_KIND: Mapping[PoolingKind, str] = {
    PoolingKind.EMBED: "embed",
    PoolingKind.TOKENS: "embed_all",
    PoolingKind.SPARSE: "embed_sparse",
    PoolingKind.SCORE: "rerank",
    PoolingKind.CLASSIFY: "predict",
}


def _truncation(body: TeiBody) -> Truncation:
    side = body.truncation_direction or "Right"
    if side not in SIDES:
        raise WORDS.wrong("truncation_direction", "left or right", side)
    if body.truncate is False:
        return Truncation.NONE
    return Truncation.LEFT if side.lower() == "left" else Truncation.RIGHT


def _refuse_nothing(name: str, value: Any) -> None:
    if value is None:
        raise WORDS.payload_fault(name, f"{name} is missing", param=name)
    if value in ("", []):
        raise NothingGiven(f"{name} must hold at least one text, got none", param=name)


def _numbers(index: int, array: npt.NDArray[Any]) -> Any:
    return array.tolist()


def _words(index: int, row: npt.NDArray[Any]) -> Any:
    return [TeiWord(word, value) for word, value in zip(row["index"].tolist(), row["value"].tolist(), strict=True)]


def tei_info(model: ServedModel, facts: PoolingFacts) -> TeiInfo:
    labels = facts.labels or ("LABEL_0",)
    named = {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    kind: Mapping[str, Mapping[str, Any]] = {"embedding": {"pooling": facts.pooling}}
    if facts.kind in (PoolingKind.SCORE, PoolingKind.CLASSIFY):
        kind = {"reranker" if facts.kind is PoolingKind.SCORE else "classifier": named}
    return TeiInfo(
        model_id=model.name,
        model_dtype=model.dtype or None,
        model_type=kind,
        max_concurrent_requests=model.admission.limit,
        max_input_length=facts.max_tokens,
        max_client_batch_size=model.limits.max_prompts,
        tokenization_workers=1,
        version=TEI_VERSION,
        docker_label=f"dragoman-{__version__}",
    )
