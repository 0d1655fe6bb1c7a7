"""Text Embeddings Inference's operations on texts, and its `GET /info`. On the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy.typing as npt
from msgspec import UNSET

from dragoman import __version__
from dragoman.server.api import Dialect, ModelProfile
from dragoman.server.apis.openai_wire.fields import check_count
from dragoman.server.apis.openai_wire.pooling import (
    TextsCall,
    TextsDialect,
    TextsOperation,
    encoded_arrays,
    read_string,
    read_strings,
    read_texts,
    told_as,
)
from dragoman.server.apis.rerank_wire import best_first
from dragoman.server.apis.tei_wire.schema import (
    SIDES,
    TEI_VERSION,
    WORDS,
    NothingGiven,
    TeiBody,
    TeiEmbedAllBody,
    TeiEmbedBody,
    TeiErrors,
    TeiInfo,
    TeiPredictBody,
    TeiPrediction,
    TeiRank,
    TeiRerankBody,
    TeiWord,
)
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

T = TypeVar("T")


def tei_dialect(profile: ModelProfile, name: str) -> Dialect:
    return TextsDialect(profile, OPERATIONS[name])


def root_dialect(profile: ModelProfile) -> Dialect:
    """The dialect of `POST /` in TEI's router for the model: its one operation."""
    return tei_dialect(profile, _OPERATION_OF_KIND[profile.pooling.facts.kind])


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
    given = read_texts("inputs", body.inputs, call.limits, WORDS)
    request = EmbedRequest(
        texts=given.texts,
        request_id=call.request_id,
        prompt_name=body.prompt_name,
        truncation=_truncation(body),
        **more,
    )
    with told_as({"texts": "inputs"}, partial(given.place, "inputs")):
        return await ask(request)


async def _predict(call: TextsCall[TeiPredictBody]) -> Any:
    service, given = classifier(call.profile), call.body.inputs
    _refuse_nothing("inputs", given)
    is_list = isinstance(given, list) and isinstance(given[0], list)
    if is_list:
        check_count("inputs", len(given), call.limits.max_prompts, WORDS)
        texts = [_text(f"inputs[{index}]", one, call.limits) for index, one in enumerate(given)]
    else:
        texts = [_text("inputs", given, call.limits)]
    with told_as({"texts": "inputs"}, lambda index: f"inputs[{index}]" if is_list else "inputs"):
        made = await service.classify(
            ClassifyRequest(
                texts=texts,
                request_id=call.request_id,
                truncation=_truncation(call.body),
                raw=call.body.raw_scores is True,
            )
        )
    labels = service.facts.labels
    told = [[TeiPrediction(row[place], labels[place]) for place in best_first(row)] for row in made.values.tolist()]
    return told if is_list else told[0]


def _text(name: str, given: Any, limits: Limits) -> str | tuple[str, str]:
    if isinstance(given, str):
        return read_string(name, given, limits, WORDS)
    if not isinstance(given, list) or len(given) not in (1, 2):
        raise WORDS.wrong(name, "a string or a list of one or two", given)
    parts = [read_string(f"{name}[{index}]", part, limits, WORDS) for index, part in enumerate(given)]
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


async def _rerank(call: TextsCall[TeiRerankBody]) -> list[TeiRank]:
    body, service = call.body, scorer(call.profile)
    _refuse_nothing("texts", body.texts)
    query = read_string("query", body.query, call.limits, WORDS)
    texts = read_strings("texts", body.texts, call.limits, WORDS)
    with told_as({"pairs": "texts", "texts": "texts"}, "texts[{}]".format):
        made = await service.score(
            ScoreRequest(
                pairs=[(query, text) for text in texts],
                request_id=call.request_id,
                truncation=_truncation(body),
                raw=body.raw_scores is True,
            )
        )
    scores = made.values.tolist()
    return [TeiRank(index, scores[index], texts[index] if body.return_text else UNSET) for index in best_first(scores)]


def _row(kind: type[msgspec.Struct], answer: Callable[[TextsCall[Any]], Awaitable[Any]]) -> TextsOperation[Any]:
    return TextsOperation(kind, answer, WORDS, TeiErrors())


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
