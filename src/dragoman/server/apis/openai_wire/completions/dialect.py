"""Completions in OpenAI's shape: turns a body into one GenerationRequest per prompt. On the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dragoman.parameters import UINT32_MAX, Bounds
from dragoman.server.api import Call, HttpCall, ModelProfile, PureDialect
from dragoman.server.apis.openai_wire.common import Reading
from dragoman.server.apis.openai_wire.completions.encoder import CompletionEncoder
from dragoman.server.apis.openai_wire.completions.schema import CompletionBody
from dragoman.server.apis.openai_wire.fields import check_count, check_number, decode_object, read_struct, shown
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.sampling import (
    check_shared,
    logprob_bounds,
    logprob_count,
    reasons_of,
    shared_request,
    tells_progress,
    without_effect,
)
from dragoman.types import GenerationRequest, Prompt, TextPrompt, TokenPrompt

MAX_TOKENS = Bounds(1, UINT32_MAX, note=" (or 0 with echo: true)")


def with_echo(profile: Profile) -> Profile:
    """The profile for completions, where `echo` lets nothing be generated."""
    return replace(profile, bounds={**profile.bounds, "max_tokens": MAX_TOKENS})


class CompletionsDialect(PureDialect):
    """`clock` returns Unix time in seconds."""

    def __init__(self, model: ModelProfile, profile: Profile, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.errors = profile.errors
        self._reading = Reading(with_echo(profile), model)

    def parse(self, http: HttpCall) -> Call:
        profile = self._reading.profile
        raw = decode_object(http, profile)
        body = read_struct(raw, CompletionBody, profile)
        only_prompt = body.max_tokens == 0 and body.echo
        check_shared(raw, body, self._reading, exempt=("max_tokens",) if only_prompt else ())
        self._check(body)
        requests = self._requests(body, _prompts(body, self._reading), http.request_id)
        ignored = tuple(without_effect(raw, body, requests[0], self._reading))
        return Call(
            requests=requests,
            encoder=CompletionEncoder(body, requests, self._reading, http, int(self._clock())),
            stream=bool(body.stream),
            ignored=ignored,
            reasons=reasons_of(ignored, body, self._reading),
            wants_progress=tells_progress(body, self._reading),
        )

    def _check(self, body: CompletionBody) -> None:
        profile = self._reading.profile
        body.prompt_logprobs = logprob_count("prompt_logprobs", body.prompt_logprobs, self._reading)
        if body.n_probs is not None:
            check_number("n_probs", body.n_probs, logprob_bounds(self._reading), profile)
            body.logprobs = body.logprobs if body.logprobs is not None else body.n_probs or None
        if body.logprobs is not None:
            check_number("logprobs", body.logprobs, logprob_bounds(self._reading), profile)
        if body.detokenize is False and body.stop:
            message = f"stop cannot be used with detokenize: false, got {shown(body.stop)}"
            raise profile.fault("stop", "detokenize", message)

    def _requests(
        self, body: CompletionBody, prompts: Sequence[Prompt], request_id: str
    ) -> tuple[GenerationRequest, ...]:
        first = shared_request(
            body,
            self._reading,
            request_id=request_id,
            prompt=prompts[0],
            logprobs=body.logprobs,
            max_tokens=self._reading.profile.default_max_tokens if body.n_predict is None else None,
        )
        if body.echo and body.logprobs is not None:
            asked = max(body.logprobs, first.sampling.prompt_logprobs or 0)
            first = msgspec.structs.replace(
                first, sampling=msgspec.structs.replace(first.sampling, prompt_logprobs=asked)
            )
        if len(prompts) == 1:
            return (first,)
        return tuple(
            msgspec.structs.replace(first, request_id=f"{request_id}-{number}", prompt=prompt)
            for number, prompt in enumerate(prompts)
        )


def _prompts(body: CompletionBody, reading: Reading) -> list[Prompt]:
    """The prompts in order. A list of integers is one prompt, a list of anything else one prompt per element."""
    given, profile = body.prompt, reading.profile
    if given is None or given == []:
        raise profile.fault("prompt", "missing", "prompt is missing: it must be text, token ids, or a list of either")
    if isinstance(given, str):
        return [_text_prompt(given, body, profile)]
    if set(map(type, given)) == {int}:
        return [_token_prompt("prompt", given, body, profile)]
    check_count("prompt", len(given), reading.model.limits.max_prompts, profile)
    prompts: list[Prompt] = []
    for position, element in enumerate(given):
        if isinstance(element, str):
            prompts.append(_text_prompt(element, body, profile))
        elif isinstance(element, list):
            prompts.append(_token_prompt(f"prompt[{position}]", element, body, profile))
        else:
            message = f"prompt[{position}] must be of the same kind as the other prompts, got {shown(element)}"
            raise profile.fault("prompt", "mixed", message)
    return prompts


def _text_prompt(text: str, body: CompletionBody, profile: Profile) -> TextPrompt:
    if not text and profile.refuses_empty_prompt:
        raise profile.fault("prompt", "missing", "prompt must not be empty")
    # An empty suffix is what editors send at the end of a file: there is nothing to fill in before it.
    return TextPrompt(text, suffix=body.suffix or None, add_special_tokens=body.add_special_tokens is not False)


def _token_prompt(name: str, ids: Sequence[Any], body: CompletionBody, profile: Profile) -> TokenPrompt:
    if body.suffix:
        message = f"suffix needs a prompt of text, got token ids and suffix {shown(body.suffix)}"
        raise profile.fault("suffix", "token_prompt", message)
    if not ids:
        raise profile.fault("prompt", "missing", f"{name} must hold at least one token id, got []")
    if min(ids) < 0:
        raise profile.fault("prompt", "low", f"{name} must hold token ids of at least 0, got {min(ids)}")
    return TokenPrompt(tuple(ids))
