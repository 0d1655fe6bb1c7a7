"""The options that bound reasoning, a part of the table in `options`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dragoman.config.kinds import Integer, Text
from dragoman.config.option import Alias, option
from dragoman.types import Limits

_LARGEST_PATTERN = Limits().max_pattern_size
_NUM_FIELDS = 3


@dataclass(frozen=True, slots=True)
class Repetition:
    """When a text has begun to repeat itself, as vLLM's JSON; `off` = never."""

    allowed = (
        'off, or JSON as {"max_pattern_size": 512, "min_pattern_size": 128, "min_count": 4}: sizes from 1 to '
        f"{_LARGEST_PATTERN}, the first not below the second, which is 1 where it is left out, and a count of at least 2"
    )

    placeholder = "{off,JSON}"

    def parse(self, text: str) -> str:
        if text.lower() in ("off", "none", "false", "{}"):
            return "off"
        try:
            found = json.loads(text)
        except RecursionError as error:
            raise ValueError(text) from error
        if not isinstance(found, dict):
            raise ValueError(text)
        rule = {"max_pattern_size": -1, "min_pattern_size": 1, "min_count": -1, **found}
        if len(rule) > _NUM_FIELDS or not all(type(number) is int for number in rule.values()):
            raise ValueError(text)
        if rule["max_pattern_size"] == 0:
            return "off"
        if not 1 <= rule["min_pattern_size"] <= rule["max_pattern_size"] <= _LARGEST_PATTERN or rule["min_count"] < 2:
            raise ValueError(text)
        return json.dumps(rule)


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """Reasoning"""

    reasoning_budget: int | None = option(
        None,
        Integer(-1),
        "Most reasoning tokens in conversations that set no budget themselves. When it is spent, the server ends the "
        "reasoning and the answer follows. 0: no reasoning; -1: no limit.",
        unit="tokens",
        unset="no limit",
        env=(Alias("LLAMA_ARG_THINK_BUDGET"),),
        open_to="load",
    )
    reasoning_budget_message: str | None = option(
        None,
        Text(),
        "Text appended to reasoning that the server ends.",
        unset="the text the model was trained with, if known",
        env=(Alias("LLAMA_ARG_THINK_BUDGET_MESSAGE"),),
    )
    reasoning_repetition_detection: str = option(
        '{"max_pattern_size": 512, "min_pattern_size": 128, "min_count": 4}',
        Repetition(),
        "When to end reasoning that repeats itself, as a spent budget would: its last tokens are one pattern, of a "
        "size between the two bounds, repeated min_count times. Requests may override it.",
        open_to="load",
    )
