"""`/completion` and `/infill`: prompts, or code with a gap, become neutral requests.

Does: read both bodies, remember which adapter is applied where calls name none. Does not: encode.
Set up for each served model; called on the event loop.
Source: llama.cpp, tools/server/README.md, and its server where the document is silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.server.api import Call, HttpCall, ModelProfile, PureDialect
from dragoman.server.apis.llamacpp.encoder import LlamaEncoder
from dragoman.server.apis.llamacpp.errors import ERRORS
from dragoman.server.apis.llamacpp.parameters import WORDS, max_tokens_of, read_parameters, reading_of, tells_progress
from dragoman.server.apis.llamacpp.prompts import read_prompts
from dragoman.server.apis.llamacpp.schema import LlamaCompletionBody, LlamaInfillBody, LlamaSharedBody
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct
from dragoman.types import InfillPrompt, Prompt


class AppliedAdapter:
    """The adapter of a model that holds where calls name none; None = as the model's name says."""

    name: str | None = None


class _Dialect(PureDialect):
    """Shared by both dialects."""

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
    """`/completion` for one model."""

    def parse(self, http: HttpCall) -> Call:
        """The call in neutral words. Raises: InvalidRequest."""
        raw = decode_object(http, WORDS)
        body = read_struct(raw, LlamaCompletionBody, WORDS)
        prompts, is_list = read_prompts(body.prompt, self._profile.limits)
        return self._call(http, raw, body, prompts, is_list=is_list)


class InfillDialect(_Dialect):
    """`/infill` for one model."""

    def parse(self, http: HttpCall) -> Call:
        """The call in neutral words. Raises: InvalidRequest."""
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
