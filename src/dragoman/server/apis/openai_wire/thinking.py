"""Limits on reasoning and repetition. Sources: vLLM SamplingParams; OpenRouter, reasoning tokens; llama.cpp's server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.parameters import Bounds
from dragoman.server.apis.openai_wire.fields import BOUNDS, check_number
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.descriptions import range_of
from dragoman.types import Limits, RepetitionDetection

BUDGETS = ("thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens")
"""vLLM's name for the most tokens of reasoning, and those of llama.cpp."""

REASONING_TOKENS = "reasoning.max_tokens"

NO_REASONING = "the model has no reasoning that could be told from its answer"

_SIZES, _COUNTS = Bounds(0, Limits().max_pattern_size), Bounds(0, 1_000_000)
_REPETITION_BOUNDS: Mapping[str, Bounds] = {
    "max_pattern_size": _SIZES,
    "min_pattern_size": _SIZES,
    "min_count": _COUNTS,
}
_Size = Annotated[int, Meta(extra_json_schema=range_of(_SIZES))]
_Count = Annotated[int, Meta(extra_json_schema=range_of(_COUNTS))]
_Budget = Annotated[int, Meta(extra_json_schema=range_of(BOUNDS["thinking_token_budget"]))]
_LEAST_COUNT = 2


class RepetitionBody(msgspec.Struct, kw_only=True):
    """`repetition_detection`: the answer's end is the same pattern, of some size in tokens, so often in a row."""

    max_pattern_size: _Size = 0
    min_pattern_size: _Size = 0
    min_count: _Count = 0


class ReasoningBody(msgspec.Struct, kw_only=True):
    """`reasoning` of a conversation, as OpenRouter has it."""

    max_tokens: _Budget | None = None
    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None


def thinking_budget(body: msgspec.Struct, profile: Profile, reasoning_tokens: int | None) -> int:
    """Most tokens of reasoning; at least one field says it. Raises: InvalidRequest."""
    if reasoning_tokens is not None:
        check_number(REASONING_TOKENS, reasoning_tokens, BOUNDS["thinking_token_budget"], profile)
    budgets: dict[str, int | None] = {
        REASONING_TOKENS: reasoning_tokens,
        **{name: getattr(body, name) for name in BUDGETS},
    }
    present = {name: value for name, value in budgets.items() if value is not None}
    (first, budget), *others = present.items()
    for name, value in others:
        if value != budget:
            message = f"{name} must be the same as {first} ({budget}), got {value}; give one of them"
            raise profile.fault(name, "conflict", message)
    return budget


def effort_switches(effort: str | None) -> dict[str, Any]:
    """Template variables for a reasoning effort, under each name in use; `none` switches thinking off."""
    if effort is None:
        return {}
    is_on = effort != "none"
    return {"reasoning_effort": effort, "enable_thinking": is_on, "thinking": is_on}


def repetition_detection(body: RepetitionBody, profile: Profile) -> RepetitionDetection:
    name = "repetition_detection"
    for field, bounds in _REPETITION_BOUNDS.items():
        check_number(f"{name}.{field}", getattr(body, field), bounds, profile)
    if body.min_pattern_size > body.max_pattern_size:
        message = (
            f"{name}.min_pattern_size must be at most max_pattern_size ({body.max_pattern_size}), "
            f"got {body.min_pattern_size}"
        )
        raise profile.fault(f"{name}.min_pattern_size", "high", message)
    if not body.max_pattern_size:
        return RepetitionDetection()
    if body.min_count < _LEAST_COUNT:
        message = f"{name}.min_count must be at least {_LEAST_COUNT} beside max_pattern_size, got {body.min_count}"
        raise profile.fault(f"{name}.min_count", "low", message)
    return RepetitionDetection(body.max_pattern_size, max(1, body.min_pattern_size), body.min_count)
