"""LM Studio's additions to OpenAI's answers, and its list of models. Source: LM Studio's documentation, REST API v0."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.server.apis.openai_wire.chat.schema import ChatCompletion
from dragoman.server.apis.openai_wire.completions import Completion

StopReason = Literal[
    "eosFound", "stopStringFound", "maxPredictedTokensReached", "contextLengthReached", "toolCalls", "userStopped"
]


class LmStats(msgspec.Struct, kw_only=True):
    """Statistics of the answer; times in seconds, null where none passed."""

    tokens_per_second: float | None
    time_to_first_token: float | None
    generation_time: float | None
    stop_reason: StopReason


class LmModelInfo(msgspec.Struct):
    """The model that answered."""

    arch: str
    quant: str
    format: str
    context_length: int


class LmRuntime(msgspec.Struct):
    """The runtime of the model."""

    name: str
    version: str
    supported_formats: list[str]


class LmDetails(msgspec.Struct):
    """The additions to OpenAI's fields; in a stream, the last event before its end."""

    stats: LmStats
    model_info: LmModelInfo
    runtime: LmRuntime


class LmChatCompletion(ChatCompletion, kw_only=True):
    """The answer of a conversation."""

    stats: LmStats
    model_info: LmModelInfo
    runtime: LmRuntime


class LmCompletion(Completion, kw_only=True):
    """The answer to a prompt."""

    stats: LmStats
    model_info: LmModelInfo
    runtime: LmRuntime


class LmModel(msgspec.Struct, kw_only=True):
    """A model of the list; one that is not loaded is loaded by the next call that names it."""

    id: str
    object: Literal["model"] = "model"
    type: Literal["llm", "vlm", "embeddings"]
    publisher: str
    arch: str
    compatibility_type: str
    quantization: str
    state: Literal["loaded", "not-loaded"] = "loaded"
    max_context_length: int
    loaded_context_length: int | UnsetType = UNSET


class LmModelList(msgspec.Struct):
    """The models."""

    data: list[LmModel]
    object: Literal["list"] = "list"
