"""Text Embeddings Inference's `/embed` and `/rerank`.

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
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Opening, Reply
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct, shown, unknown_names
from dragoman.server.apis.openai_wire.pooling.rows import encoded_rows
from dragoman.server.apis.openai_wire.pooling.texts import read_string, read_strings, read_texts, told_as
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.rerank.dialect import best_first
from dragoman.server.apis.tei.errors import NothingGiven, TeiErrors
from dragoman.server.apis.tei.schema import SIDES, TEI_VERSION, TeiEmbedBody, TeiInfo, TeiRank, TeiRerankBody
from dragoman.server.http.replies import json_reply
from dragoman.server.pooling import (
    EmbedRequest,
    PoolingFacts,
    PoolingKind,
    ScoreRequest,
    Truncation,
    embedder,
    opening,
    scorer,
)
from dragoman.server.registry import ServedModel
from dragoman.server.responder import note_ignored

WORDS = Profile(name="tei")
"""How its bodies are read; errors are told in general words."""

BodyT = TypeVar("BodyT", TeiEmbedBody, TeiRerankBody)


class TeiEmbedDialect(TeiErrors):
    """`/embed` for one model."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile

    def open(self, http: HttpCall) -> Opening:
        """The call, which is answered without generating."""
        return opening(partial(self._answer, http))

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, WORDS)
        service = embedder(self._profile)
        body, truncation = _read(raw, TeiEmbedBody)
        if body.inputs is None:
            raise WORDS.payload_fault("inputs", "inputs is missing", param="inputs")
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


def root_dialect(profile: ModelProfile) -> TeiEmbedDialect | TeiRerankDialect:
    """What `POST /` of TEI's router is for the model: its one operation."""
    is_scorer = profile.pooling.facts.kind is PoolingKind.SCORE
    return TeiRerankDialect(profile) if is_scorer else TeiEmbedDialect(profile)


def tei_info(model: ServedModel, facts: PoolingFacts) -> TeiInfo:
    """The body of TEI's `GET /info`."""
    kind: Mapping[str, Mapping[str, Any]] = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    if facts.kind is PoolingKind.EMBED:
        kind = {"embedding": {"pooling": facts.pooling}}
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


class TeiRerankDialect(TeiErrors):
    """`/rerank` for one model, of bodies with `texts`."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile

    def open(self, http: HttpCall) -> Opening:
        """The call, which is answered without generating."""
        return opening(partial(self._answer, http))

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
    """Whose words a body of `/rerank` is in: one with `documents` and without `texts` is not TEI's."""
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
    if value in ("", []):
        raise NothingGiven(f"{name} must hold at least one text, got none", param=name)


def _row(index: int, row: npt.NDArray[np.float32]) -> Any:
    return row.tolist()
