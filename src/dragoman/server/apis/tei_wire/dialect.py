"""Text Embeddings Inference's `/embed`, `/embed_all`, `/embed_sparse`, `/rerank` and `/predict`.

Does: read, ask the model's service, write. Does not: tokenise or compute; its other operations.
Set up for each served model; called on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from dragoman import __version__
from dragoman.server.api import CallSwitches, Dialect, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct, shown, unknown_names
from dragoman.server.apis.openai_wire.pooling.rows import encoded_arrays, encoded_rows
from dragoman.server.apis.openai_wire.pooling.texts import read_string, read_strings, read_texts, told_as
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.rerank_wire.dialect import best_first
from dragoman.server.apis.tei_wire.errors import NothingGiven, TeiErrors
from dragoman.server.apis.tei_wire.schema import (
    SIDES,
    TEI_VERSION,
    TeiEmbedAllBody,
    TeiEmbedBody,
    TeiInfo,
    TeiPredictBody,
    TeiPrediction,
    TeiRank,
    TeiRerankBody,
    TeiWord,
)
from dragoman.server.pooling import (
    AnsweringDialect,
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
from dragoman.server.responder import note_ignored

WORDS = Profile(name="tei")
"""How its bodies are read; errors are told in general words."""

BodyT = TypeVar("BodyT", TeiEmbedBody, TeiEmbedAllBody, TeiPredictBody, TeiRerankBody)


class TeiEmbedDialect(TeiErrors, AnsweringDialect):
    """`/embed` for one model."""

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, WORDS)
        service = embedder(self._profile)
        body, truncation = _read(raw, TeiEmbedBody)
        _refuse_nothing("inputs", body.inputs)
        given = read_texts("inputs", body.inputs, self._profile.limits, WORDS)
        headers = note_ignored(switches, unknown_names(raw, TeiEmbedBody))
        with told_as({"texts": "inputs"}, partial(given.place, "inputs")):
            made = await service.embed(
                EmbedRequest(
                    texts=given.texts,
                    request_id=http.request_id,
                    prompt_name=body.prompt_name,
                    truncation=truncation,
                    dimensions=body.dimensions,
                    normalize=body.normalize is not False,
                )
            )
        return json_reply(200, await encoded_rows(made.vectors, _row), headers)


class TeiEmbedAllDialect(TeiErrors, AnsweringDialect):
    """`/embed_all`, or `/embed_sparse` if `is_sparse`, for one model."""

    def __init__(self, profile: ModelProfile, *, is_sparse: bool) -> None:
        super().__init__(profile)
        self._is_sparse = is_sparse

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, WORDS)
        service = weigher(self._profile) if self._is_sparse else token_embedder(self._profile)
        body, truncation = _read(raw, TeiEmbedAllBody)
        _refuse_nothing("inputs", body.inputs)
        given = read_texts("inputs", body.inputs, self._profile.limits, WORDS)
        headers = note_ignored(switches, unknown_names(raw, TeiEmbedAllBody))
        request = EmbedRequest(
            texts=given.texts,
            request_id=http.request_id,
            prompt_name=body.prompt_name,
            truncation=truncation,
            normalize=None if service.facts.kind is PoolingKind.TOKENS else False,
        )
        with told_as({"texts": "inputs"}, partial(given.place, "inputs")):
            if self._is_sparse:
                weighed = await service.weigh(request)
                return json_reply(200, await encoded_arrays(weighed.rows, _words), headers)
            made = await service.token_vectors(request)
        return json_reply(200, await encoded_arrays(made.rows, _tokens), headers)


class TeiPredictDialect(TeiErrors, AnsweringDialect):
    """`/predict` for one model."""

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, WORDS)
        service = classifier(self._profile)
        body, truncation = _read(raw, TeiPredictBody)
        _refuse_nothing("inputs", body.inputs)
        texts, is_list = self._texts(body.inputs)
        headers = note_ignored(switches, unknown_names(raw, TeiPredictBody))
        with told_as({"texts": "inputs"}, lambda index: f"inputs[{index}]" if is_list else "inputs"):
            made = await service.classify(
                ClassifyRequest(
                    texts=texts, request_id=http.request_id, truncation=truncation, raw=body.raw_scores is True
                )
            )
        labels = service.facts.labels
        told = [[TeiPrediction(row[place], labels[place]) for place in best_first(row)] for row in made.values.tolist()]
        return json_reply(200, told if is_list else told[0], headers)

    def _texts(self, given: Any) -> tuple[list[str | tuple[str, str]], bool]:
        """The texts or pairs, and whether there may be several. Raises: InvalidRequest."""
        if isinstance(given, list) and isinstance(given[0], list):
            check_count("inputs", len(given), self._profile.limits.max_prompts, WORDS)
            return [self._text(f"inputs[{index}]", one) for index, one in enumerate(given)], True
        return [self._text("inputs", given)], False

    def _text(self, name: str, given: Any) -> str | tuple[str, str]:
        limits = self._profile.limits
        if isinstance(given, str):
            return read_string(name, given, limits, WORDS)
        if not isinstance(given, list) or len(given) not in (1, 2):
            message = f"{name} must be a string or a list of one or two, got {shown(given)}"
            raise WORDS.fault(name, "type", message)
        parts = [read_string(f"{name}[{index}]", part, limits, WORDS) for index, part in enumerate(given)]
        return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def root_dialect(profile: ModelProfile) -> Dialect:
    """The dialect of `POST /` in TEI's router for the model: its one operation."""
    match profile.pooling.facts.kind:
        case PoolingKind.SCORE:
            return TeiRerankDialect(profile)
        case PoolingKind.CLASSIFY:
            return TeiPredictDialect(profile)
        case PoolingKind.SPARSE | PoolingKind.TOKENS as kind:
            return TeiEmbedAllDialect(profile, is_sparse=kind is PoolingKind.SPARSE)
    return TeiEmbedDialect(profile)


def tei_info(model: ServedModel, facts: PoolingFacts) -> TeiInfo:
    """The body of TEI's `GET /info`."""
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


class TeiRerankDialect(TeiErrors, AnsweringDialect):
    """`/rerank` for one model, of bodies with `texts`."""

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, WORDS)
        service = scorer(self._profile)
        body, truncation = _read(raw, TeiRerankBody)
        _refuse_nothing("texts", body.texts)
        limits = self._profile.limits
        query, texts = read_string("query", body.query, limits, WORDS), read_strings("texts", body.texts, limits, WORDS)
        headers = note_ignored(switches, unknown_names(raw, TeiRerankBody))
        with told_as({"pairs": "texts", "texts": "texts"}, "texts[{}]".format):
            made = await service.score(
                ScoreRequest(
                    pairs=[(query, text) for text in texts],
                    request_id=http.request_id,
                    truncation=truncation,
                    raw=body.raw_scores is True,
                )
            )
        scores = made.values.tolist()
        ranks = [
            TeiRank(index, scores[index], texts[index] if body.return_text else UNSET) for index in best_first(scores)
        ]
        return json_reply(200, ranks, headers)


def by_body(http: HttpCall, tei: str, by_documents: str) -> str:
    """Choose the dialect of a body of `/rerank`: one with `documents` and without `texts` is not TEI's."""
    return by_documents if http.field("texts") is None and http.field("documents") is not None else tei


def _read(raw: dict[str, Any], kind: type[BodyT]) -> tuple[BodyT, Truncation]:
    """The body, and what becomes of texts that are too long. Raises: InvalidRequest."""
    body: BodyT = read_struct(raw, kind, WORDS)
    side = body.truncation_direction or "Right"
    if side not in SIDES:
        message = f"truncation_direction must be left or right, got {shown(side)}"
        raise WORDS.fault("truncation_direction", "value", message)
    if body.truncate is False:
        return body, Truncation.NONE
    return body, Truncation.LEFT if side.lower() == "left" else Truncation.RIGHT


def _refuse_nothing(name: str, value: Any) -> None:
    if value is None:
        raise WORDS.payload_fault(name, f"{name} is missing", param=name)
    if value in ("", []):
        raise NothingGiven(f"{name} must hold at least one text, got none", param=name)


def _words(index: int, row: npt.NDArray[Any]) -> Any:
    return [TeiWord(word, value) for word, value in zip(row["index"].tolist(), row["value"].tolist(), strict=True)]


def _tokens(index: int, rows: npt.NDArray[Any]) -> Any:
    return rows.tolist()


def _row(index: int, row: npt.NDArray[np.float32]) -> Any:
    return row.tolist()
