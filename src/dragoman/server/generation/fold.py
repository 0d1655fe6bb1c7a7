"""Folds a request's events into its result, so that streamed and complete answers never differ. On the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from dragoman.errors import EngineFailed
from dragoman.types import (
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    TokenOutput,
    ToolCall,
    ToolCallDelta,
)


@dataclass(slots=True)
class _CallFold:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def push(self, delta: ToolCallDelta) -> None:
        self.id = delta.id or self.id
        self.name = delta.name or self.name
        self.arguments.append(delta.arguments)

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, "".join(self.arguments))


@dataclass(slots=True)
class _SequenceFold:
    texts: list[str] = field(default_factory=list)
    tokens: list[TokenOutput] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    calls: dict[int, _CallFold] = field(default_factory=dict)
    last: GenerationEvent | None = None

    def push(self, event: GenerationEvent) -> None:
        self.texts.append(event.text)
        self.tokens += event.tokens
        self.contents.append(event.content)
        self.reasonings.append(event.reasoning)
        for delta in event.tool_calls:
            self.calls.setdefault(delta.index, _CallFold()).push(delta)
        self.last = event

    def result(self, index: int) -> SequenceResult:
        if self.last is None or self.last.finish_reason is None:
            raise EngineFailed(f"generation ended before sequence {index} finished")
        return SequenceResult(
            index=index,
            text="".join(self.texts),
            tokens=tuple(self.tokens),
            finish_reason=self.last.finish_reason,
            stop_match=self.last.stop_match,
            content="".join(self.contents),
            reasoning="".join(self.reasonings),
            tool_calls=tuple(self.calls[position].call() for position in sorted(self.calls)),
            cumulative_logprob=self.last.cumulative_logprob,
        )


class ResultFold:
    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._prompt: PromptInfo | None = None
        self._sequences = [_SequenceFold() for _ in range(request.sampling.n)]

    def push(self, event: GenerationEvent) -> None:
        self._prompt = self._prompt or event.prompt
        if event.num_cached_tokens and self._prompt is not None:
            self._prompt = msgspec.structs.replace(self._prompt, num_cached_tokens=event.num_cached_tokens)
        self._sequences[event.index].push(event)

    def result(self) -> GenerationResult:
        """Raises: EngineFailed if the events did not finish every sequence."""
        if self._prompt is None:
            raise EngineFailed("generation ended before it began")
        sequences = tuple(sequence.result(index) for index, sequence in enumerate(self._sequences))
        return GenerationResult(self._request, self._prompt, sequences)
