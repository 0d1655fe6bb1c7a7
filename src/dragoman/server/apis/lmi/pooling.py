"""LMI's bodies for models that embed or score: `inputs` in, vectors or scores out. One dialect per model, on the event loop.

Source: the LMI 0.31 text embedding guide: the Java engines' answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dragoman.errors import CapacityError, InvalidPayload, InvalidRequest, ServerError
from dragoman.server.api import CallSwitches, HttpCall, Reply, json_reply
from dragoman.server.apis.lmi.errors import ErrorContext, error_reply, front_error
from dragoman.server.apis.lmi_wire.body import Payload, read_payload
from dragoman.server.apis.openai_wire.fields import check_count, shown
from dragoman.server.apis.openai_wire.pooling import encoded_arrays, read_string, read_texts, told_as
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.pooling.base import (
    AnsweringDialect,
    EmbedRequest,
    PoolingKind,
    ScoreRequest,
    Truncation,
    embedder,
    scorer,
)
from dragoman.server.responder import note_ignored

WORDS = Profile(name="lmi")
"""Its errors are told in general words."""

_KEYS = ("key", "value")  # of a pair


class LmiPoolingDialect(AnsweringDialect):
    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The Java engines' translator tells what the client did wrong."""
        if isinstance(error, InvalidRequest | CapacityError):
            return front_error(400, "TranslateException", error.message)
        return error_reply(error, ErrorContext())

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        payload = read_payload(http)
        if payload.inputs is None:
            raise InvalidPayload('Missing "inputs" in json.', param="inputs")
        idle = [f"parameters.{name}" for name in payload.parameters]
        if payload.stream is not None:
            idle.append("stream")
        headers = note_ignored(switches, [*payload.unknown, *idle])
        is_scorer = self._profile.pooling.facts.kind is PoolingKind.SCORE
        made = await (self._scores if is_scorer else self._vectors)(payload, http.request_id)
        return json_reply(200, made, headers)

    async def _vectors(self, payload: Payload, request_id: str) -> Any:
        given = read_texts("inputs", payload.inputs, self._profile.limits, WORDS)
        with told_as({"texts": "inputs"}, partial(given.place, "inputs")):
            request = EmbedRequest(texts=given.texts, request_id=request_id, truncation=Truncation.RIGHT)
            made = await embedder(self._profile).embed(request)
        if not given.is_list:
            return made.values[0].tolist()
        return await encoded_arrays(made.values, lambda _, row: row.tolist())

    async def _scores(self, payload: Payload, request_id: str) -> list[float]:
        values = payload.inputs if isinstance(payload.inputs, list) else [payload.inputs]
        with told_as({"pairs": "inputs", "texts": "inputs"}, "inputs[{}]".format):
            request = ScoreRequest(pairs=self._pairs(values), request_id=request_id, truncation=Truncation.RIGHT)
            made = await scorer(self._profile).score(request)
        scores: list[float] = made.values.tolist()
        return scores

    def _pairs(self, values: Sequence[Any]) -> list[tuple[str, str]]:
        if not values:
            raise WORDS.fault("inputs", "empty", "inputs must hold at least one pair, got none")
        check_count("inputs", len(values), self._profile.limits.max_prompts, WORDS)
        return [self._pair(f"inputs[{index}]", value) for index, value in enumerate(values)]

    def _pair(self, name: str, value: Any) -> tuple[str, str]:
        if not isinstance(value, dict) or not value.keys() >= set(_KEYS):
            raise WORDS.fault(name, "type", f"{name} must be an object with key and value, got {shown(value)}")
        key, document = (read_string(f"{name}.{part}", value[part], self._profile.limits, WORDS) for part in _KEYS)
        return key, document
