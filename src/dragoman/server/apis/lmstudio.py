"""LM Studio's own API below `/api/v0`: OpenAI's operations with statistics, and its list of models.

On the event loop. Source: LM Studio's documentation, REST API v0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dragoman import __version__
from dragoman.errors import ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    SSE_DONE,
    SSE_MEDIA_TYPE,
    Call,
    Dialect,
    Dialects,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    ModelCard,
    ModelProfile,
    Opening,
    Reply,
    TellsErrors,
    model_of_body,
    sse,
)
from dragoman.server.apis.openai_wire.chat import ChatCompletion, ChatCompletionChunk, ChatDialect
from dragoman.server.apis.openai_wire.completions import Completion, CompletionChunk, CompletionsDialect
from dragoman.server.apis.openai_wire.describe import chat_body, completion_body
from dragoman.server.apis.openai_wire.errors import ERRORS, OpenAiError
from dragoman.server.apis.openai_wire.pooling import TextsDialect, embeddings, embeddings_body
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.openai_wire.routes import embeddings_operation
from dragoman.server.descriptions import (
    FINDING,
    GENERATED,
    INTEGER,
    LISTING,
    MESSAGES,
    QUESTION,
    Answer,
    Schema,
    any_of,
    json_answer,
    ref,
)
from dragoman.server.model_facts import UNLOADED, ModelFacts, facts_of_all, facts_of_name
from dragoman.server.observation.record import current_measure
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server, looked_at
from dragoman.server.security.callers import Scope
from dragoman.server.timings import ShownTimings, ToldProgress
from dragoman.types import FinishReason, GenerationEvent, GenerationRequest, GenerationResult

# --- additions to answers, and the list -------------------------------------------------------------------------------

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


# --- dialect ----------------------------------------------------------------------------------------------------------

RUNTIME = LmRuntime("dragoman", __version__, ["gguf", "safetensors", "openvino"])
_STOPS: Mapping[FinishReason, StopReason] = {
    FinishReason.EOS: "eosFound",
    FinishReason.STOP_TOKEN: "eosFound",
    FinishReason.STOP_STRING: "stopStringFound",
    FinishReason.LENGTH: "maxPredictedTokensReached",
    FinishReason.REPETITION: "stopStringFound",  # the nearest word: what a request has asked to end at
    FinishReason.ABORT: "userStopped",
}


def arch_of(card: ModelCard) -> str:
    kind = card.config.get("model_type")
    return kind if isinstance(kind, str) else ""


class StatsDialect(TellsErrors):
    def __init__(self, inner: Dialect, profile: ModelProfile) -> None:
        self._inner = self.errors = inner
        self._info = LmModelInfo(arch_of(profile.card), profile.dtype, profile.card.format, profile.max_model_len)

    def open(self, http: HttpCall) -> Opening:
        body = http.field("max_tokens")
        if body == -1 and isinstance(sent := http.json(), dict):  # as many as there is room for
            kept = {name: value for name, value in sent.items() if name != "max_tokens"}
            http = msgspec.structs.replace(http, _decoded=[kept])
        opening = self._inner.open(http)
        return msgspec.structs.replace(opening, parse=partial(self._parse, opening))

    def _parse(self, opening: Opening) -> Call:
        call = opening.parse()
        return msgspec.structs.replace(call, encoder=_StatsEncoder(call.encoder, call.requests, self._info))


class _StatsEncoder(Encoder):
    def __init__(self, inner: Encoder, requests: Sequence[GenerationRequest], info: LmModelInfo) -> None:
        self._inner = inner
        self._max_tokens = requests[0].max_tokens
        self._info = info
        self._measure = current_measure([request.request_id for request in requests])
        self._num_tokens = 0
        self._end = FinishReason.ABORT
        self._calls_tools = False

    def show_timings(self, timings: ShownTimings) -> bool:
        return self._inner.show_timings(timings)

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        sequence = results[0].sequences[0]
        self._end, self._num_tokens = sequence.finish_reason, len(sequence.tokens)
        self._calls_tools = bool(sequence.tool_calls)
        reply = self._inner.full(results)
        block = msgspec.json.encode(self._details())
        return msgspec.structs.replace(reply, body=reply.body.rstrip()[:-1] + b"," + block[1:])

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return self._inner.head(events)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        if request_index == event.index == 0:
            self._num_tokens += len(event.tokens)
            self._end = event.finish_reason or self._end
            self._calls_tools |= bool(event.tool_calls)
        return self._inner.event(request_index, event)

    def progress(self, progress: ToldProgress) -> bytes:
        return self._inner.progress(progress)

    def end(self) -> bytes:
        last = self._inner.end()
        return last.removesuffix(SSE_DONE) + sse(msgspec.json.encode(self._details())) + SSE_DONE

    def stream_error(self, error: ServerError) -> bytes | None:
        return self._inner.stream_error(error)

    def trailers(self) -> Sequence[tuple[str, str]]:
        return self._inner.trailers()

    def _details(self) -> LmDetails:
        wanted, stop = self._max_tokens, _STOPS[self._end]
        if self._end is FinishReason.LENGTH and (wanted is None or self._num_tokens < wanted):
            stop = "contextLengthReached"
        stats = LmStats(
            tokens_per_second=None,
            time_to_first_token=None,
            generation_time=None,
            stop_reason="toolCalls" if self._calls_tools else stop,
        )
        if self._measure is not None:
            timings = self._measure(0)
            stats.tokens_per_second = timings.predicted_per_second
            stats.time_to_first_token = ((timings.queue_ms or 0.0) + timings.prompt_ms) / 1000
            stats.generation_time = timings.predicted_ms / 1000
        return LmDetails(stats, self._info, RUNTIME)


# --- the API ----------------------------------------------------------------------------------------------------------

NAME = "lmstudio"
TAG = "LM Studio"
CHAT, COMPLETIONS, EMBEDDINGS = f"{NAME}.chat", f"{NAME}.completions", f"{NAME}.embeddings"

_ENDLESS = replace(V1, default_max_tokens=None)
"""Completions without a limit go on to their end."""


def set_up(profile: ModelProfile) -> Dialects:
    chat = ChatDialect(profile, lambda model, http: V1)
    completions = CompletionsDialect(profile, _ENDLESS)
    return {
        CHAT: StatsDialect(chat, profile),
        COMPLETIONS: StatsDialect(completions, profile),
        EMBEDDINGS: TextsDialect(profile, embeddings(V1)),
    }


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    bodies = {"LmChatRequest": chat_body(V1, profile, {}), "LmCompletionRequest": completion_body(_ENDLESS, profile)}
    for body in bodies.values():
        limit = body["properties"]["max_tokens"]
        body["properties"] = {**body["properties"], "max_tokens": any_of(limit, {**INTEGER, "const": -1})}
    return {**bodies, "LmEmbeddingsRequest": embeddings_body(V1, profile)}


async def models(http: HttpCall, server: Server) -> LmModelList:
    await looked_at(server)
    return LmModelList([_listed(facts, facts.name) for facts in facts_of_all(server.models)])


async def model(http: HttpCall, server: Server) -> LmModel:
    """Raises: NotFound, and the errors of loading a model."""
    name = http.path_params["name"]
    return _listed(facts_of_name(server.models, name), name)


def _listed(facts: ModelFacts, name: str) -> LmModel:
    trained, length = facts.card.config.get("max_position_embeddings"), facts.max_model_len
    return LmModel(
        id=name,
        type="embeddings" if facts.is_pooling else "vlm" if "vision" in facts.abilities else "llm",
        publisher=name.partition("/")[0] if "/" in name else "",
        arch=arch_of(facts.card),
        compatibility_type=facts.card.format,
        quantization=facts.dtype,
        state="not-loaded" if facts.status == UNLOADED else "loaded",
        max_context_length=trained if isinstance(trained, int) else length or 0,
        loaded_context_length=UNSET if length is None else length,
    )


def _generates(name: str, summary: str, whole: type, chunk: type, body: str, **example: Any) -> GenerateOperation:
    content = {JSON_MEDIA_TYPE: whole, SSE_MEDIA_TYPE: (chunk, LmDetails, OpenAiError)}
    return GenerateOperation(
        path=f"/api/v0/{name}",
        tag=TAG,
        summary=summary,
        answers=ERRORS.beside(Answer("the answer", content, GENERATED)),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", **example, "max_tokens": 32, "temperature": 0},
        dialect=CHAT if body == "LmChatRequest" else COMPLETIONS,
        model=model_of_body,
    )


_lists = partial(AnswerOperation, tag=TAG, method="GET", scope=Scope.INFERENCE)

API = Api(
    name=NAME,
    title="LM Studio",
    owns=("/api/v0",),
    set_up=set_up,
    teller=lambda dialects: dialects[COMPLETIONS],
    schemas=_schemas,
    operations=(
        _generates(
            "chat/completions",
            "A conversation, with statistics",
            LmChatCompletion,
            ChatCompletionChunk,
            "LmChatRequest",
            messages=MESSAGES,
            stream=True,
        ),
        _generates(
            "completions",
            "A completion, with statistics",
            LmCompletion,
            CompletionChunk,
            "LmCompletionRequest",
            prompt=QUESTION,
        ),
        embeddings_operation(
            path="/api/v0/embeddings",
            summary="Embed texts",
            errors=ERRORS,
            body="LmEmbeddingsRequest",
            dialect=EMBEDDINGS,
        ),
        _lists(
            path="/api/v0/models",
            summary="The models, as LM Studio lists them",
            answers=ERRORS.beside(json_answer(LmModelList, "the list"), LISTING),
            answer=models,
        ),
        _lists(
            path="/api/v0/models/{name}",
            summary="One model",
            answers=ERRORS.beside(json_answer(LmModel, "the description"), FINDING),
            parameters=("name_path",),
            answer=model,
        ),
    ),
)
