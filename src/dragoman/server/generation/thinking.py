"""How long one request's reasoning may be, what ends it, and what the chat template is told of it.

Does: choose among what the request, its template's arguments and the operator say; turn marks into tokens for the engine.
Does not: know families of models (`output_parsers` does), or end anything (engines do). Called by the preparer, on any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.errors import InvalidParameter
from dragoman.server.generation.output_parsers.reasoning import ThoughtMarks
from dragoman.tokenizer.base import Tokenizer
from dragoman.types import ChatPrompt, GenerationRequest, Prompt, RepetitionDetection, Thinking

FindThought = Callable[[GenerationRequest, str], ThoughtMarks | None]
"""(request, prompt text) -> where its answer's reasoning stands, None if it has none."""

UNBOUNDED = -1
_BUDGET = "thinking_budget"  # what templates call it that tell the model
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class ThinkingBounds:
    """What holds for conversations that do not say otherwise. `budget`, `repetition` None = there is no such bound.

    `last_words`: what is said where reasoning is cut off, None = what the model was trained to.
    """

    budget: int | None = None
    repetition: RepetitionDetection | None = None
    last_words: str | None = None


NO_BOUNDS = ThinkingBounds()


def budget_of(request: GenerationRequest, bounds: ThinkingBounds, defaults: Mapping[str, Any]) -> int | None:
    """The tokens that the request's reasoning may have, None = any number. Raises: InvalidParameter.

    `defaults`: what every conversation tells the template.
    """
    budget = request.sampling.thinking_token_budget
    if isinstance(request.prompt, ChatPrompt):
        told = {**defaults, **request.prompt.template_kwargs}.get(_BUDGET)
        candidates = (budget, None if told is None else _checked(told), bounds.budget)
        budget = next((one for one in candidates if one is not None), None)
    return None if budget == UNBOUNDED else budget


def _checked(told: Any) -> int:
    if type(told) is not int or told < UNBOUNDED:
        name = f"chat_template_kwargs.{_BUDGET}"
        raise InvalidParameter(f"{name} must be an integer of at least {UNBOUNDED}, got {str(told)[:60]!r}", param=name)
    return told


def told_of(prompt: Prompt, budget: int | None) -> Prompt:
    """The prompt, whose template is told of the budget; of none, that there is no thinking, whatever else is said."""
    if budget is None or not isinstance(prompt, ChatPrompt):
        return prompt
    kwargs = {_BUDGET: budget, **prompt.template_kwargs, **({} if budget else dict.fromkeys(_SWITCHES, False))}
    return msgspec.structs.replace(prompt, template_kwargs=kwargs)


def thinking_of(
    request: GenerationRequest, marks: ThoughtMarks, budget: int | None, bounds: ThinkingBounds, tokenizer: Tokenizer
) -> Thinking | None:
    """What an engine has to know to end the reasoning; None if nothing does."""
    repetition = request.sampling.repetition_detection
    if repetition is None and isinstance(request.prompt, ChatPrompt):
        repetition = bounds.repetition
    if budget is None and (repetition is None or not repetition.max_pattern_size):
        return None
    last_words = marks.last_words if bounds.last_words is None else bounds.last_words
    closing = marks.closing if budget == 0 else last_words + marks.closing
    return Thinking(
        marks.begin,
        marks.ends,
        tuple(tokenizer.encode_continuation(closing)),
        marks.is_open,
        marks.recurs,
        budget,
        repetition,
        tuple(tokenizer.encode_continuation(marks.reclosing)) if marks.reclosing else (),
    )
