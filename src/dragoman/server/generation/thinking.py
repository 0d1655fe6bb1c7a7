"""The bounds of one request's reasoning, and the tokens that end it. Called by the preparer, on any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.errors import InvalidParameter
from dragoman.server.generation.output_parsers.reasoning import ThoughtMarks
from dragoman.server.json_body import shown_json
from dragoman.tokenizer.base import Tokenizer
from dragoman.types import ChatPrompt, GenerationRequest, Prompt, RepetitionDetection, Thinking

FindThought = Callable[[GenerationRequest, str], ThoughtMarks | None]
"""(request, prompt text) -> the marks of its answer's reasoning, None if it has none."""

UNBOUNDED = -1
_MOST = 2**32 - 1  # as of all numbers of tokens
_BUDGET = "thinking_budget"  # its name in templates that show it to the model
_TOLD = f"chat_template_kwargs.{_BUDGET}"
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class ThinkingBounds:
    """For conversations that set none. `last_words`: the text where reasoning is cut off, None = the model's own."""

    budget: int | None = None
    repetition: RepetitionDetection | None = None
    last_words: str | None = None


NO_BOUNDS = ThinkingBounds()


class ThinkingPlan:
    def __init__(self, find: FindThought, bounds: ThinkingBounds, tokenizer: Tokenizer) -> None:
        self._find = find
        self._bounds = bounds
        self._tokenizer = tokenizer
        self._ids: dict[str, tuple[int, ...]] = {}  # of the few texts that end reasoning

    def budget_of(self, request: GenerationRequest, defaults: Mapping[str, Any]) -> int | None:
        """In tokens, None = any number. `defaults`: the template's arguments of every chat. Raises: InvalidParameter."""
        budget = request.sampling.thinking_token_budget
        if isinstance(request.prompt, ChatPrompt):
            template_budget = told_budget(request.prompt.template_kwargs)
            if None not in (budget, template_budget) and budget != template_budget:
                allowed = f"the same as the budget that the request says elsewhere ({budget})"
                raise InvalidParameter(f"{_TOLD} must be {allowed}, got {template_budget}", param=_TOLD)
            candidates = (budget, template_budget, told_budget(defaults), self._bounds.budget)
            budget = next((candidate for candidate in candidates if candidate is not None), None)
        return None if budget == UNBOUNDED else budget

    def thinking_of(self, request: GenerationRequest, prompt_text: str, budget: int | None) -> Thinking | None:
        """The facts with which an engine ends the reasoning; None if there is none, or it is unbounded."""
        repetition = request.sampling.repetition_detection
        if repetition is None and isinstance(request.prompt, ChatPrompt):
            repetition = self._bounds.repetition
        if budget is None and (repetition is None or not repetition.max_pattern_size):
            return None
        marks = self._find(request, prompt_text)
        if marks is None:
            return None
        last_words = marks.last_words if self._bounds.last_words is None else self._bounds.last_words
        return Thinking(
            marks.begin,
            marks.ends,
            self._encoded(marks.closing if budget == 0 else last_words + marks.closing),
            marks.is_open,
            marks.recurs,
            budget,
            repetition,
            self._encoded(marks.reclosing),
        )

    def _encoded(self, text: str) -> tuple[int, ...]:
        if text not in self._ids:
            self._ids[text] = tuple(self._tokenizer.encode_continuation(text)) if text else ()
        return self._ids[text]


def told_budget(kwargs: Mapping[str, Any]) -> int | None:
    """The budget in a template's arguments. Raises: InvalidParameter."""
    budget = kwargs.get(_BUDGET)
    if budget is not None and (type(budget) is not int or not UNBOUNDED <= budget <= _MOST):
        message = f"{_TOLD} must be an integer between {UNBOUNDED} and {_MOST}, got {shown_json(budget, 60)}"
        raise InvalidParameter(message, param=_TOLD)
    return budget


def told_of(prompt: Prompt, budget: int | None) -> Prompt:
    """The prompt with the budget in its template's arguments; a budget of 0 also switches thinking off there."""
    if budget is None or not isinstance(prompt, ChatPrompt):
        return prompt
    kwargs = {_BUDGET: budget, **prompt.template_kwargs, **({} if budget else dict.fromkeys(_SWITCHES, False))}
    return msgspec.structs.replace(prompt, template_kwargs=kwargs)
