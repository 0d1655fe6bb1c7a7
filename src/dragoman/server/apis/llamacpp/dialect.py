"""Reads `/completion` and `/infill`. On the event loop. Source: llama.cpp, tools/server/README.md, and its server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import Call, HttpCall, ModelProfile, PureDialect
from dragoman.server.apis.llamacpp.encoder import LlamaEncoder
from dragoman.server.apis.llamacpp.errors import ERRORS
from dragoman.server.apis.llamacpp.parameters import WORDS, max_tokens_of, read_parameters, reading_of, tells_progress
from dragoman.server.apis.llamacpp.schema import LlamaCompletionBody, LlamaInfillBody, LlamaSharedBody
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct
from dragoman.types import InfillPrompt, Limits, MixedPrompt, Prompt


class AppliedAdapter:
    """The adapter for calls that name none; None = as the model's name says."""

    name: str | None = None


class _Dialect(PureDialect):
    errors = ERRORS

    def __init__(self, profile: ModelProfile, applied: AppliedAdapter) -> None:
        self._profile = profile
        self._reading = reading_of(profile)
        self.applied = applied

    def _call(
        self, http: HttpCall, raw: Mapping[str, Any], body: LlamaSharedBody, prompts: Sequence[Prompt], *, is_list: bool
    ) -> Call:
        found = read_parameters(raw, body, self._profile, self._reading, self.applied.name, http.request_id)
        request = found.request
        ids = [http.request_id] if len(prompts) == 1 else [f"{http.request_id}-{i}" for i in range(len(prompts))]
        requests = tuple(
            msgspec.structs.replace(
                request, request_id=request_id, prompt=prompt, cache_salt=request_id if request.cache_salt else ""
            )
            for request_id, prompt in zip(ids, prompts, strict=True)
        )
        return Call(
            requests,
            LlamaEncoder(requests, body, self._profile, found.settings, is_list=is_list),
            stream=bool(body.stream),
            ignored=found.ignored,
            reasons=found.reasons,
            wants_progress=tells_progress(body, self._profile),
        )


class CompletionDialect(_Dialect):
    def parse(self, http: HttpCall) -> Call:
        raw = decode_object(http, WORDS)
        body = read_struct(raw, LlamaCompletionBody, WORDS)
        prompts, is_list = read_prompts(body.prompt, self._profile.limits)
        return self._call(http, raw, body, prompts, is_list=is_list)


class InfillDialect(_Dialect):
    def parse(self, http: HttpCall) -> Call:
        raw = decode_object(http, WORDS)
        body = read_struct(raw, LlamaInfillBody, WORDS)
        files = body.input_extra or []
        check_count("input_extra", len(files), self._profile.limits.max_messages, WORDS)
        prompt = InfillPrompt(
            before=body.input_prefix,
            behind=body.input_suffix,
            begun=body.prompt or "",
            files=tuple((one.filename, one.text) for one in files),
            num_answer_tokens=max_tokens_of(body) or 0,
        )
        return self._call(http, raw, body, [prompt], is_list=False)


# --- prompts -----------------------------------------------------------------------------------------------------------

_ALLOWED = "a text, an array of texts and token ids, an object with prompt_string, or an array of these"


def read_prompts(value: Any, limits: Limits) -> tuple[list[MixedPrompt], bool]:
    """The prompts, and whether they came as a list of several. Raises: InvalidRequest."""
    if value is None:
        raise WORDS.missing("prompt", _ALLOWED)
    if not isinstance(value, list) or any(map(_is_id, value)):
        return [_prompt("prompt", value, limits)], False
    if not value:
        raise WORDS.fault("prompt", "empty", "prompt must hold at least one prompt, got []")
    check_count("prompt", len(value), limits.max_prompts, WORDS)
    return [_prompt(f"prompt[{position}]", one, limits) for position, one in enumerate(value)], True


def _prompt(name: str, value: Any, limits: Limits) -> MixedPrompt:
    if isinstance(value, str):
        return MixedPrompt((value,))
    if isinstance(value, dict):
        return _wrapped(name, value)
    if not isinstance(value, list):
        raise WORDS.wrong(name, _ALLOWED, value)
    return MixedPrompt(_parts(name, value, limits))


def _wrapped(name: str, value: dict[str, Any]) -> MixedPrompt:
    text = value.get("prompt_string")
    if not isinstance(text, str):
        raise WORDS.wrong(f"{name}.prompt_string", "a text", text)
    if value.get("multimodal_data"):
        raise UnsupportedFeature(
            f"{name}.multimodal_data is not supported: send pictures in messages to /v1/chat/completions",
            param=f"{name}.multimodal_data",
        )
    return MixedPrompt((text,))


def _parts(name: str, values: Sequence[Any], limits: Limits) -> tuple[str | int, ...]:
    check_count(name, len(values), limits.max_token_ids, WORDS)
    if not values:
        raise WORDS.fault(name, "empty", f"{name} must hold at least one token id or text, got []")
    for position, one in enumerate(values):
        if not (isinstance(one, str) or (_is_id(one) and one >= 0)):
            raise WORDS.wrong(f"{name}[{position}]", "a token id or a text", one)
    return tuple(values)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
