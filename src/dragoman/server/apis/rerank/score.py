"""Scoring as vLLM has it: two texts, or two lists of them, and a number for each pair.

Does: read, ask, write. Does not: tokenise or compute. Set up for each served model; called on the event loop.
Source: vLLM's score API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.errors import ServerError
from dragoman.server.api import CallSwitches, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.embeddings.schema import TextUsage
from dragoman.server.apis.openai_wire.errors import OPENAI
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct
from dragoman.server.apis.openai_wire.pooling.ignored import idle_names
from dragoman.server.apis.openai_wire.pooling.texts import (
    CUT,
    read_cut,
    read_string,
    read_strings,
    told_as,
)
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.rerank_wire.schema import SIDES, ScoreBody, ScoreItem, ScoreList
from dragoman.server.pooling import AnsweringDialect, ScoreRequest, scorer
from dragoman.server.responder import note_ignored

Pairs = list[tuple[str, str]]


class ScoreDialect(AnsweringDialect):
    """Scoring by one model. `clock`: seconds since the epoch."""

    def __init__(self, profile: ModelProfile, clock: Callable[[], float] = time.time) -> None:
        super().__init__(profile)
        self._clock = clock

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return OPENAI.reply(error)

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        raw = decode_object(http, V1)
        service = scorer(self._profile, by_similarity=True)
        body = read_struct(raw, ScoreBody, V1)
        first, second = names_of_sides(raw)
        pairs, is_list = self._pairs(first, raw[first], second, raw[second])
        cut = read_cut(body.truncate_prompt_tokens, V1)
        activation = body.activation if body.use_activation is None else body.use_activation
        headers = note_ignored(switches, idle_names(raw, ScoreBody))
        names = {"pairs": second, "texts": second, "max_tokens": CUT}
        with told_as(names, lambda index: f"{second}[{index}]" if is_list else second):
            made = await service.score(
                ScoreRequest(
                    pairs=pairs,
                    request_id=http.request_id,
                    truncation=cut.truncation,
                    max_tokens=cut.max_tokens,
                    raw=activation is False,
                    instruction=body.instruction,
                )
            )
        num_tokens = sum(made.num_tokens)
        answer = ScoreList(
            f"score-{http.request_id}",
            "list",
            int(self._clock()),
            body.model or self._profile.name,
            [ScoreItem(index, "score", score) for index, score in enumerate(made.values.tolist())],
            TextUsage(num_tokens, num_tokens),
        )
        return json_reply(200, answer, headers)

    def _pairs(self, first: str, one: Any, second: str, other: Any) -> tuple[Pairs, bool]:
        """The pairs, and whether the second side is a list. Raises: InvalidRequest."""
        ones, others = self._side(first, one), self._side(second, other)
        if len(ones) == 1:
            ones *= len(others)
        if len(ones) != len(others):
            message = f"{first} must have 1 text or as many as {second}, got {len(ones)} and {len(others)}"
            raise V1.fault(first, "count", message)
        return list(zip(ones, others, strict=True)), isinstance(other, list)

    def _side(self, name: str, value: Any) -> list[str]:
        limits = self._profile.limits
        if isinstance(value, list):
            return read_strings(name, value, limits, V1)
        return [read_string(name, value, limits, V1)]


def names_of_sides(raw: Mapping[str, Any]) -> tuple[str, str]:
    """The names that the call uses for the two sides. Raises: InvalidRequest if one is missing."""
    for first, second in SIDES:
        if first in raw and second in raw:
            return first, second
    present = next((pair for pair in SIDES if pair[0] in raw or pair[1] in raw), SIDES[0])
    missing = present[0] if present[0] not in raw else present[1]
    raise V1.fault(missing, "missing", f"{missing} is missing: give text_1 and text_2, or queries and documents")
