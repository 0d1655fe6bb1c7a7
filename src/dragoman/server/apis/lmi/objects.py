"""Builds the JSON objects of LMI and TGI answers from neutral results: tokens, details, sequences.

Does: field names, their order, which of them are shown. Does not: framing or HTTP. Objects are plain dictionaries, built
by hand because one is made per token. Called by the encoders, on the event loop.
Source of names and order: the LMI schema pages v0.31 and v0.26, the TGI API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.server.apis.lmi.request import AnswerPlan
from dragoman.types import LOWEST_LOGPROB, FinishReason, PromptInfo, SequenceResult, TokenOutput, TopToken

LMI_FINISH: Mapping[FinishReason, str] = {
    FinishReason.EOS: "eos_token",
    FinishReason.STOP_TOKEN: "eos_token",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
}

Json = dict[str, Any]
NO_TOKEN = TokenOutput(id=-1, text="")


@dataclass(frozen=True, slots=True)
class Shape:
    """Which of the LMI shapes. `is_tgi`: tgi_compat or TGI's routes. `is_tgi_route`: also the fields that only TGI has."""

    is_tgi: bool = False
    is_tgi_route: bool = False
    is_v026: bool = False


def finite(logprob: float | None) -> float | None:
    """The log-probability as JSON can carry it."""
    if logprob is None or logprob >= LOWEST_LOGPROB:
        return logprob
    return LOWEST_LOGPROB  # minus infinity, and NaN, which compares false with everything


class ObjectBuilder:
    """Builds the objects of one call. `token` makes a generated token's object in the call's shape."""

    def __init__(self, shape: Shape, answer: AnswerPlan) -> None:
        self._shape = shape
        self._answer = answer
        self.token: Callable[[TokenOutput], Json] = _lmi_token
        if shape.is_tgi:
            self.token = _tgi_token
        elif shape.is_v026:
            self.token = _v026_token

    def result(self, prompt_text: str, prompt: PromptInfo, sequences: Sequence[SequenceResult]) -> Json:
        """The whole answer to one prompt: the best sequence, and the others under best_of_sequences."""
        best, *others = best_first(sequences, is_ranked=self._answer.is_beam_search)
        body: Json = {"generated_text": self.text(prompt_text, best.text)}
        if not (self._answer.has_details or self._answer.is_several):
            return body
        body["details"] = details = self._sequence_details(best, prompt, prompt_text)
        if others:
            details["best_of_sequences"] = [self._other_sequence(other, prompt, prompt_text) for other in others]
        if self._shape.is_v026 and not self._shape.is_tgi:
            body["token"] = details["tokens"]
        return body

    def text(self, prompt_text: str, text: str) -> str:
        """The answer's text, after the prompt if the client asked for the full text."""
        return prompt_text + text if self._answer.has_full_text else text

    def stream_details(
        self,
        finish_reason: FinishReason,
        num_tokens: int,
        prompt_text: str,
        prompt: PromptInfo,
        top_tokens: Sequence[list[Json]],
    ) -> Json:
        """The details of a stream's last line: without the tokens, which were sent already."""
        details: Json = {"finish_reason": LMI_FINISH[finish_reason]}
        if self._shape.is_tgi or not self._shape.is_v026:
            details["generated_tokens"] = num_tokens
            details["inputs"] = prompt_text
        self._add_prefill(details, prompt)
        if self._answer.has_top_tokens and not self._shape.is_tgi_route:  # TGI has them on every event only
            details["top_tokens"] = top_tokens
        if self._shape.is_tgi:
            details["seed"] = prompt.seed
            details["input_length"] = len(prompt.token_ids)
        return details

    def top_tokens(self, token: TokenOutput) -> list[Json]:
        """The most likely tokens at the place of `token`."""
        return [self._top_token(top, is_special=token.special and top.id == token.id) for top in token.top]

    def _sequence_details(self, sequence: SequenceResult, prompt: PromptInfo, prompt_text: str) -> Json:
        details = self._sequence(sequence, prompt)
        if self._shape.is_v026 and not self._shape.is_tgi:
            del details["generated_tokens"]
            return details
        if self._answer.is_several:
            return {"inputs": prompt_text, **details}
        head = {name: details.pop(name) for name in ("finish_reason", "generated_tokens")}
        return {**head, "inputs": prompt_text, **details}

    def _other_sequence(self, sequence: SequenceResult, prompt: PromptInfo, prompt_text: str) -> Json:
        return {**self._sequence(sequence, prompt), "generated_text": self.text(prompt_text, sequence.text)}

    def _sequence(self, sequence: SequenceResult, prompt: PromptInfo) -> Json:
        details: Json = {
            "finish_reason": LMI_FINISH[sequence.finish_reason],
            "generated_tokens": len(sequence.tokens),
            "tokens": [self.token(token) for token in sequence.tokens],
        }
        self._add_prefill(details, prompt)
        if self._answer.has_top_tokens:
            details["top_tokens"] = [self.top_tokens(token) for token in sequence.tokens]
        if self._shape.is_tgi:
            details["seed"] = prompt.seed
        return details

    def _add_prefill(self, details: Json, prompt: PromptInfo) -> None:
        """The prompt's tokens where they were asked for; TGI's clients expect the field in any case."""
        if self._answer.has_prefill:
            details["prefill"] = [self._prompt_token(token) for token in prompt.tokens]
        elif self._shape.is_tgi:
            details["prefill"] = []

    def _prompt_token(self, token: TokenOutput) -> Json:
        logprob = finite(token.logprob)
        entry: Json = {"id": token.id, "text": token.token_text or token.text}
        if self._shape.is_tgi:
            entry["logprob"] = logprob
        entry["log_prob"] = logprob
        if self._answer.has_prompt_top_tokens:
            entry["top_tokens"] = self.top_tokens(token)
        return entry

    def _top_token(self, top: TopToken, *, is_special: bool) -> Json:
        return self.token(TokenOutput(top.id, top.text, logprob=top.logprob, special=is_special))


def best_first(sequences: Sequence[SequenceResult], *, is_ranked: bool) -> list[SequenceResult]:
    """The sequences by their log-probability, the highest first; beams come ranked already."""
    if is_ranked or any(sequence.cumulative_logprob is None for sequence in sequences):
        return list(sequences)
    return sorted(sequences, key=lambda sequence: sequence.cumulative_logprob or 0.0, reverse=True)


def _lmi_token(token: TokenOutput) -> Json:
    return {"id": token.id, "text": token.text, "log_prob": finite(token.logprob)}


def _v026_token(token: TokenOutput) -> Json:
    return {
        "id": token.id,
        "text": token.text,
        "log_prob": finite(token.logprob),
        "special_token": token.special,
    }


def _tgi_token(token: TokenOutput) -> Json:
    logprob = finite(token.logprob) or 0.0  # always a float: clients check the type
    return {
        "id": token.id,
        "text": token.text,
        "logprob": logprob,
        "log_prob": logprob,
        "special": token.special,
    }
