"""Where the OpenAI-shaped APIs differ from each other: one value per prefix, read by one implementation.

Does: name the differences (defaults, limits, wording) as data. Does not: parse or encode.
Used by the completions and chat dialects, on the event loop.

`texts` maps "<parameter>.<problem>" to the exact words of a server that clients compare with; everything not listed there
gets the general sentence with the value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dragoman.errors import InvalidParameter, InvalidPayload, InvalidRequest

_SUBSCRIPT = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed interval of a number; None = unbounded on that side."""

    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    note: str = ""  # what else there is to say about what is allowed

    def problem(self, value: float) -> Literal["negative", "low", "high"] | None:
        """Which side `value` is out on, None if it is inside. "negative" is "low" for numbers that cannot be negative."""
        if self.low is not None and (value < self.low or (self.is_low_open and value == self.low)):
            return "negative" if value < 0 <= self.low else "low"
        if self.high is not None and (value > self.high or (self.is_high_open and value == self.high)):
            return "high"
        return None

    def __str__(self) -> str:
        """What is allowed, in words."""
        low = "" if self.low is None else f"greater than {self.low}" if self.is_low_open else f"at least {self.low}"
        high = "" if self.high is None else f"less than {self.high}" if self.is_high_open else f"at most {self.high}"
        if low and high and not (self.is_low_open or self.is_high_open):
            return f"between {self.low} and {self.high}{self.note}"
        return " and ".join(part for part in (low, high) if part) + self.note


@dataclass(frozen=True, slots=True)
class Profile:
    """One set of defaults. The fields' own defaults are those of OpenAI's API."""

    name: Literal["v1", "v3", "lmi"]
    error_shape: Literal["openai", "ovms", "lmi"]
    texts: Mapping[str, str] = field(default_factory=dict)
    payload_params: frozenset[str] = frozenset()  # parameters whose wrong type makes the whole body invalid
    bounds: Mapping[str, Bounds] = field(default_factory=dict)  # where they differ from the common ones
    has_strict_types: bool = False  # False: "256" is a number and "true" a boolean
    requires_model: bool = False
    ignores_model: bool = False  # an unknown `model` means the one that is served
    default_seed: int | None = None
    default_max_tokens: int | None = 16  # completions only. Source: OpenAI API reference, completions, max_tokens
    max_stop_strings: int | None = None  # None = the operator's limit
    is_best_of_beam_width: bool = False
    is_best_of_limit_exclusive: bool = False
    shows_stop_in_stream: bool = False  # the matched stop string is part of streamed text, and cannot be left out
    max_ignore_eos_tokens: int | None = None
    refuses_empty_prompt: bool = False
    refuses_zero_top_p: bool = False  # while sampling; elsewhere the smallest nucleus is meant
    clips_overflow: bool = False  # prompt + max_tokens beyond the context: generate what fits instead of refusing
    chunk_object: str = "text_completion"

    def fault(self, param: str, problem: str, message: str, **values: object) -> InvalidRequest:
        """The error for one parameter in this profile's words, into which `values` go where it names them.

        `param` may hold subscripts, as in stop[2]; the texts' keys have them empty.
        """
        place = _SUBSCRIPT.sub("[]", param)
        own = self.texts.get(f"{place}.{problem}")
        if own is None and problem == "negative":
            own = self.texts.get(f"{place}.low")
        text = message if own is None else own.format(**values)
        if param in self.payload_params:
            return InvalidPayload(text, param=param)
        return InvalidParameter(text, param=param)

    def payload_fault(
        self, problem: str, message: str, *, param: str | None = None, **values: object
    ) -> InvalidPayload:
        """The error for a body that is unusable as a whole; `values` as in `fault`."""
        own = self.texts.get(f"body.{problem}")
        return InvalidPayload(message if own is None else own.format(**values), param=param)


ProposerKind = Literal["draft", "lookup"]
"""Who guesses tokens for speculative decoding: a draft model or prompt lookup."""

V1 = Profile(name="v1", error_shape="openai")
# A completion or a conversation on /invocations: the same parameters, LMI's errors and overflow rule.
LMI = Profile(name="lmi", error_shape="lmi", ignores_model=True, clips_overflow=True)
