"""The Structs of completions. Sources: OpenAI API reference, completions; OVMS v2025.0, completions API; vLLM."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.server.apis.openai_wire.common import Created, PromptLogprobs, Usage
from dragoman.server.apis.openai_wire.profile import OPENAI_FINISH, ChunkName
from dragoman.server.apis.openai_wire.sampling import SharedBody
from dragoman.server.progress import ToldProgress
from dragoman.server.timings import Timings


class CompletionBody(SharedBody, kw_only=True):
    """`prompt` is one string, strings, token ids, or lists of token ids."""

    return_progress: bool | None = None
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    n_probs: int | None = None
    detokenize: bool | None = None
    return_token_ids: bool | None = None
    return_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None


class CompletionLogprobs(msgspec.Struct):
    """One row per token. `text_offset`: where the token's text begins in `text`, in characters."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] = []
    text_offset: list[int] = []


FinishWord = Annotated[str, Meta(extra_json_schema={"enum": sorted(set(OPENAI_FINISH.values()))})]


class CompletionChoice(msgspec.Struct):
    """One choice of an answer or of a chunk; `finish_reason` is null while the generation continues."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishWord | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """A whole answer."""

    id: str
    object: Literal["text_completion"]
    created: Created
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings | UnsetType = UNSET


class CompletionChunk(msgspec.Struct):
    """One event or line of a stream; `usage` is null in the chunks of a stream that will tell it at the end."""

    id: str
    object: ChunkName
    created: Created
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: ToldProgress | UnsetType = UNSET
