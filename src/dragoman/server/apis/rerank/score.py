"""Scoring as vLLM has it: a number for each pair of texts. Called on the event loop. Source: vLLM's score API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.apis.openai_wire.embeddings.schema import usage_of
from dragoman.server.apis.openai_wire.pooling.dialect import TextsCall, TextsOperation
from dragoman.server.apis.openai_wire.pooling.texts import CUT, read_cut, read_string, read_strings, told_as
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.rerank_wire.schema import SIDES, ScoreBody, ScoreItem, ScoreList
from dragoman.server.pooling import ScoreRequest, scorer
from dragoman.types import Limits


async def _score(call: TextsCall[ScoreBody]) -> ScoreList:
    body, service = call.body, scorer(call.profile, by_similarity=True)
    first, second = names_of_sides(call.raw)
    pairs = _pairs(call, first, second)
    is_list = isinstance(call.raw[second], list)
    cut = read_cut(body.truncate_prompt_tokens, V1)
    activation = body.activation if body.use_activation is None else body.use_activation
    names = {"pairs": second, "texts": second, "max_tokens": CUT}
    with told_as(names, lambda index: f"{second}[{index}]" if is_list else second):
        made = await service.score(
            ScoreRequest(
                pairs=pairs,
                request_id=call.request_id,
                truncation=cut.truncation,
                max_tokens=cut.max_tokens,
                raw=activation is False,
                instruction=body.instruction,
            )
        )
    return ScoreList(
        f"score-{call.request_id}",
        "list",
        int(call.clock()),
        body.model or call.profile.name,
        [ScoreItem(index, "score", score) for index, score in enumerate(made.values.tolist())],
        usage_of(made.num_tokens),
    )


SCORE = TextsOperation(ScoreBody, _score, V1)


def _pairs(call: TextsCall[ScoreBody], first: str, second: str) -> list[tuple[str, str]]:
    ones, others = (_side(name, call.raw[name], call.limits) for name in (first, second))
    if len(ones) == 1:
        ones *= len(others)
    if len(ones) != len(others):
        message = f"{first} must have 1 text or as many as {second}, got {len(ones)} and {len(others)}"
        raise V1.fault(first, "count", message)
    return list(zip(ones, others, strict=True))


def _side(name: str, value: Any, limits: Limits) -> list[str]:
    return read_strings(name, value, limits, V1) if isinstance(value, list) else [read_string(name, value, limits, V1)]


def names_of_sides(raw: Mapping[str, Any]) -> tuple[str, str]:
    """The names that the call uses for the two sides. Raises: InvalidRequest if one is missing."""
    for first, second in SIDES:
        if first in raw and second in raw:
            return first, second
    present = next((pair for pair in SIDES if pair[0] in raw or pair[1] in raw), SIDES[0])
    missing = present[0] if present[0] not in raw else present[1]
    raise V1.fault(missing, "missing", f"{missing} is missing: give text_1 and text_2, or queries and documents")
