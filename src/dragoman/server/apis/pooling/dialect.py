"""vLLM's `/classify` and `/pooling`.

Does: read, ask the model's service, write. Does not: tokenise or compute. Set up for each served model; called on the event
loop. Source: vLLM's pooling API.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.errors import ServerError, UnsupportedFeature
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.embeddings.dialect import check_token_ids
from dragoman.server.apis.openai_wire.embeddings.schema import FORMATS, TextUsage
from dragoman.server.apis.openai_wire.errors import OPENAI
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct, shown
from dragoman.server.apis.openai_wire.pooling.ignored import idle_names
from dragoman.server.apis.openai_wire.pooling.rows import encoded_arrays
from dragoman.server.apis.openai_wire.pooling.texts import CUT, Texts, read_cut, read_texts, told_as
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.pooling.schema import (
    TASKS,
    ClassifyBody,
    ClassItem,
    ClassList,
    PoolingBody,
    PoolingItem,
    PoolingList,
)
from dragoman.server.pooling import (
    AnsweringDialect,
    Classes,
    ClassifyRequest,
    EmbedRequest,
    PoolingKind,
    classifier,
    embedder,
    token_embedder,
)
from dragoman.server.responder import note_ignored

BodyT = TypeVar("BodyT", bound=ClassifyBody)

_USUAL = {PoolingKind.TOKENS: "token_embed", PoolingKind.CLASSIFY: "classify", PoolingKind.SCORE: "classify"}
"""The task of a call that names none."""


class ClassifyDialect(AnsweringDialect):
    """`/classify` for one model. `clock`: seconds since the epoch."""

    def __init__(self, profile: ModelProfile, clock: Callable[[], float] = time.time) -> None:
        super().__init__(profile)
        self._clock = clock

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return OPENAI.reply(error)

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, V1)
        labels = classifier(self._profile).facts.labels
        body, given = self._read(raw, ClassifyBody)
        headers = note_ignored(switches, idle_names(raw, ClassifyBody))
        made = await self._classes(body, given, http.request_id)
        rows = made.values.tolist()
        data = [ClassItem(index, labels[row.index(max(row))], row, len(labels)) for index, row in enumerate(rows)]
        now, model = int(self._clock()), body.model or self._profile.name
        answer = ClassList(f"classify-{http.request_id}", "list", now, model, data, _usage(made.num_tokens))
        return json_reply(200, answer, headers)

    def _read(self, raw: dict[str, Any], kind: type[BodyT]) -> tuple[BodyT, Texts]:
        """The body and its texts. Raises: InvalidRequest."""
        body = read_struct(raw, kind, V1)
        if body.input is None and "messages" in raw:
            raise UnsupportedFeature("messages are not supported: send the texts as input", param="messages")
        if body.input is None:
            raise V1.fault("input", "missing", "input is missing")
        given = read_texts("input", body.input, self._profile.limits, V1)
        check_token_ids(given.texts, body.allow_token_ids, self._profile, V1)
        return body, given

    async def _classes(self, body: ClassifyBody, given: Texts, request_id: str) -> Classes:
        cut = read_cut(body.truncate_prompt_tokens, V1)
        activation = body.activation if body.use_activation is None else body.use_activation
        with told_as({"texts": "input", "max_tokens": CUT}, partial(given.place, "input")):
            return await classifier(self._profile).classify(
                ClassifyRequest(
                    texts=given.texts,
                    request_id=request_id,
                    truncation=cut.truncation,
                    max_tokens=cut.max_tokens,
                    add_special_tokens=body.add_special_tokens is not False,
                    raw=activation is False,
                )
            )


class PoolingDialect(ClassifyDialect):
    """`/pooling` for one model: what its `task` says."""

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, V1)
        task = self._task(raw)
        body, given = self._read(raw, PoolingBody)
        if body.encoding_format is not None and body.encoding_format not in FORMATS:
            message = f"encoding_format must be float or base64, got {shown(body.encoding_format)}"
            raise V1.fault("encoding_format", "value", message)
        idle = _ONLY_VECTORS if task == "classify" else _ONLY_CLASSES
        headers = note_ignored(switches, [*idle_names(raw, PoolingBody), *(name for name in raw if name in idle)])
        rows, num_tokens = await self._made(task, body, given, http.request_id)
        as_item = _as_base64 if body.encoding_format == "base64" else _as_numbers
        now, model = int(self._clock()), body.model or self._profile.name
        data: Any = await encoded_arrays(rows, as_item)
        answer = PoolingList(f"pool-{http.request_id}", "list", now, model, data, _usage(num_tokens))
        return json_reply(200, answer, headers)

    def _task(self, raw: dict[str, Any]) -> str:
        """The task asked for. Raises: UnsupportedFeature if the model does not do that."""
        task = raw.get("task")
        if task is not None and task not in TASKS:
            message = f"task must be one of {', '.join(TASKS)}, got {shown(task)}"
            raise V1.fault("task", "value", message)
        if task is None:
            service = self._profile.pooling
            task = "embed" if service is None else _USUAL.get(service.facts.kind, "embed")
        {"embed": embedder, "token_embed": token_embedder, "classify": classifier}[task](self._profile)
        return str(task)

    async def _made(
        self, task: str, body: PoolingBody, given: Texts, request_id: str
    ) -> tuple[Sequence[npt.NDArray[np.float32]], Sequence[int]]:
        """An array for each text, and how many tokens they had."""
        if task == "classify":
            classes = await self._classes(body, given, request_id)
            return list(classes.values), classes.num_tokens
        cut = read_cut(body.truncate_prompt_tokens, V1)
        request = EmbedRequest(
            texts=given.texts,
            request_id=request_id,
            prompt_name=body.prompt_name,
            truncation=cut.truncation,
            max_tokens=cut.max_tokens,
            dimensions=body.dimensions,
            normalize=body.normalize,
            add_special_tokens=body.add_special_tokens is not False,
        )
        with told_as({"texts": "input", "max_tokens": CUT}, partial(given.place, "input")):
            if task == "embed":
                embedded = await embedder(self._profile).embed(request)
                return list(embedded.vectors), embedded.num_tokens
            made = await token_embedder(self._profile).token_vectors(request)
        return made.rows, made.num_tokens


_ONLY_VECTORS = ("dimensions", "normalize", "prompt_name")
_ONLY_CLASSES = ("use_activation", "activation")


def _usage(num_tokens: Sequence[int]) -> TextUsage:
    total = sum(num_tokens)
    return TextUsage(total, total)


def _as_numbers(index: int, row: npt.NDArray[Any]) -> PoolingItem:
    return PoolingItem(index, "pooling", row.tolist())


def _as_base64(index: int, row: npt.NDArray[Any]) -> PoolingItem:
    return PoolingItem(index, "pooling", b64encode(row.astype("<f4", copy=False).tobytes()).decode())
