"""Differences between the OpenAI-shaped APIs, as data: defaults, limits and wording; read by one implementation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.errors import InvalidParameter, InvalidPayload, InvalidRequest
from dragoman.parameters import Bounds
from dragoman.server.apis.openai_wire.errors import ERRORS, ErrorShape
from dragoman.server.json_body import shown_json
from dragoman.types import FinishReason

MAX_SHOWN_LENGTH = 60  # characters of a refused value that an error message repeats

OPENAI_FINISH: Mapping[FinishReason, str] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.REPETITION: "repetition",  # vLLM's word
    FinishReason.ABORT: "length",  # the API has no word for it, and the text was cut short
}

ChunkName = Literal["text_completion", "text_completion.chunk"]

_SUBSCRIPT = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Profile:
    """One set of defaults; the fields' own are OpenAI's. `texts`: "<parameter>.<problem>" -> a server's exact words."""

    name: str
    errors: ErrorShape = ERRORS
    finish_words: Mapping[FinishReason, str] = field(default_factory=lambda: OPENAI_FINISH)  # of conversations
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
    chunk_object: ChunkName = "text_completion"
    fixes_defaults: bool = False  # the API's document says how is sampled by default, whatever the model's file says
    restricted_beside_images: str = ""  # what no text of a conversation with images may hold
    place: str = ""  # of the parameters in a body, as errors name it before them
    defaults: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the API's document; the model's file goes before them
    random_seeds: frozenset[int] = frozenset()  # with which a client asks to have one drawn
    ignored: Mapping[str, str] = field(default_factory=dict)  # parameters that are known and have no effect, and why
    asks_nothing: Mapping[str, object] = field(default_factory=dict)  # of these, the values that are not worth a word

    def fault(self, param: str, problem: str, message: str, **values: object) -> InvalidRequest:
        """The error for a parameter in this profile's words. Subscripts in `param`, as in stop[2], match `[]` in `texts`."""
        place = _SUBSCRIPT.sub("[]", param)
        own = self.texts.get(f"{place}.{problem}")
        if own is None and problem == "negative":
            own = self.texts.get(f"{place}.low")
        text = self.place + (message if own is None else own.format(**values))
        kind = InvalidPayload if param in self.payload_params else InvalidParameter
        return kind(text, param=self.place + param)

    def wrong(self, param: str, allowed: str, value: object, problem: str = "value") -> InvalidRequest:
        return self.fault(param, problem, f"{param} must be {allowed}, got {shown_json(value, MAX_SHOWN_LENGTH)}")

    def missing(self, param: str, allowed: str = "") -> InvalidRequest:
        return self.fault(param, "missing", f"{param} is missing" + (f": it must be {allowed}" if allowed else ""))

    def conflict(self, param: str, other: str) -> InvalidRequest:
        return self.fault(param, "conflict", f"{param} cannot be used together with {other}: give one of them")

    def check_model(self, named: str | None) -> None:
        if self.requires_model and named is None:
            raise self.payload_fault("model", "model is missing", param="model")

    def payload_fault(
        self, problem: str, message: str, *, param: str | None = None, **values: object
    ) -> InvalidPayload:
        """The error for a body that is unusable as a whole; `values` as in `fault`."""
        text = self.texts.get(f"body.{problem}")
        return InvalidPayload(message if text is None else text.format(**values), param=param)


V1 = Profile(name="v1")
