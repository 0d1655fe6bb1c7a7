"""Calls about texts for which nothing is generated: from a body to the service's request and back; OpenAI's embeddings.

On the event loop. Sources: OpenAI API reference, embeddings; vLLM's embeddings.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import numpy.typing as npt
from msgspec import Meta

from dragoman.errors import ServerError, UnsupportedFeature
from dragoman.server.api import CallSwitches, ErrorTeller, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.describe import struct_body
from dragoman.server.apis.openai_wire.fields import (
    check_count,
    check_word,
    decode_object,
    is_token_id,
    read_struct,
    shown,
    unknown_names,
)
from dragoman.server.apis.openai_wire.keeping import TTL, TTL_EFFECT, is_ttl_idle, note_ttl
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.descriptions import TEXT, Schema, any_of, array
from dragoman.server.pooling.base import AnsweringDialect, EmbedRequest, Numbers, Text, Truncation, embedder
from dragoman.server.responder import note_ignored
from dragoman.types import Limits

_PLACE = re.compile(r"(?:text|pair) (\d+) ")

CUT = "truncate_prompt_tokens"
"""vLLM's name for the number of tokens that a text is cut to."""


# --- reading texts ----------------------------------------------------------------------------------------------------

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class TextsField:
    """The field of a body that holds the texts. `is_list`: the client sent a list, even if it has only one entry."""

    name: str
    is_list: bool = True

    def place(self, index: int) -> str:
        return f"{self.name}[{index}]" if self.is_list else self.name

    async def asked(self, ask: Callable[[RequestT], Awaitable[ResultT]], request: RequestT, **names: str) -> ResultT:
        """The service's result for `request`. Its errors get the body's names instead of the request's; so do `names`."""
        try:
            return await ask(request)
        except ServerError as error:
            self._rename(error, {"texts": self.name, "pairs": self.name, "max_tokens": CUT, **names})
            raise

    def _rename(self, error: ServerError, names: Mapping[str, str]) -> None:
        named = error.param
        if named is None or named not in names:
            return
        error.param = names[named]
        if found := _PLACE.match(error.message):
            error.message = f"{self.place(int(found[1]))} {error.message[found.end() :]}"
        elif error.message.startswith(f"{named} "):
            error.message = names[named] + error.message.removeprefix(named)
        error.args = (error.message,)


def read_texts(name: str, value: Any, limits: Limits, words: Profile) -> tuple[TextsField, list[Text]]:
    """The texts of a field: a string, token ids, or a list of either. Raises: InvalidRequest."""
    if not isinstance(value, str | list):
        raise words.wrong(name, "a string, an array of strings or token ids", value, "type")
    if value == []:
        raise words.fault(name, "empty", f"{name} must hold at least one text, got none")
    field = TextsField(name, isinstance(value, list) and not is_token_id(value[0]))
    values = value if field.is_list else [value]
    if field.is_list:
        check_count(name, len(values), limits.max_prompts, words)
    return field, [_text(field.place(index), value, limits, words) for index, value in enumerate(values)]


def read_strings(name: str, values: Sequence[Any], limits: Limits, words: Profile) -> list[str]:
    if not values:
        raise words.fault(name, "empty", f"{name} must hold at least one text, got none")
    check_count(name, len(values), limits.max_prompts, words)
    return [read_string(f"{name}[{index}]", value, limits, words) for index, value in enumerate(values)]


def read_string(name: str, value: Any, limits: Limits, words: Profile) -> str:
    if not isinstance(value, str):
        raise words.wrong(name, "a string", value, "type")
    most = limits.max_text_chars
    if len(value) > most:
        raise words.fault(name, "length", f"{name} must have at most {most} characters, got {len(value)}")
    return value


def _text(name: str, value: Any, limits: Limits, words: Profile) -> Text:
    if isinstance(value, str):
        return read_string(name, value, limits, words)
    if isinstance(value, list):
        return _token_ids(name, value, limits, words)
    raise words.wrong(name, "a string or an array of token ids", value, "type")


def _token_ids(name: str, values: list[Any], limits: Limits, words: Profile) -> tuple[int, ...]:
    check_count(name, len(values), limits.max_token_ids, words)
    if not values:
        raise words.fault(name, "empty", f"{name} must hold at least one token, got none")
    if set(map(type, values)) != {int}:
        wrong = next(index for index, value in enumerate(values) if not is_token_id(value))
        place = f"{name}[{wrong}]"
        raise words.wrong(place, "a token id like the others", values[wrong], "type")
    return tuple(values)


def read_cut(num_tokens: int | None, words: Profile, default: Truncation = Truncation.NONE) -> dict[str, Any]:
    """The fields of a request by `truncate_prompt_tokens`: -1 is the most that the model takes. Raises: InvalidRequest."""
    if num_tokens is None:
        return {"truncation": default}
    if num_tokens < -1 or num_tokens == 0:
        raise words.fault(CUT, "low", f"{CUT} must be -1 or at least 1, got {num_tokens}")
    return {"truncation": Truncation.RIGHT, "max_tokens": None if num_tokens == -1 else num_tokens}


# --- writing vectors --------------------------------------------------------------------------------------------------

_VALUES_AT_ONCE = 20_000  # about two milliseconds

_ENCODER = msgspec.json.Encoder()


async def encoded_arrays(
    arrays: Sequence[npt.NDArray[Any]] | npt.NDArray[Any], item: Callable[[int, npt.NDArray[Any]], Any]
) -> Any:
    """A JSON array with the `item` of each array, to stand in an answer as it is."""
    pieces, num_values, begin = [], 0, 0
    for index, row in enumerate(arrays):
        num_values += row.size
        if num_values >= _VALUES_AT_ONCE or index == len(arrays) - 1:
            chosen = range(begin, index + 1)
            pieces.append(_ENCODER.encode([item(place, arrays[place]) for place in chosen])[1:-1])
            num_values, begin = 0, index + 1
            await asyncio.sleep(0)
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")


def vector_writer(encoding_format: str | None) -> Callable[[Numbers], list[Any] | str]:
    """Numbers, or the base64 of little-endian 32-bit floats, row after row."""
    if encoding_format == "base64":
        return lambda row: b64encode(row.astype("<f4", copy=False).tobytes()).decode()
    return lambda row: row.tolist()


# --- schemas ----------------------------------------------------------------------------------------------------------

CUT_SCHEMA: Schema = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}


def texts_schema(limits: Limits) -> Schema:
    ids = array({"type": "integer", "minimum": 0}, minItems=1, maxItems=limits.max_token_ids)
    return any_of(TEXT, ids, array(any_of(TEXT, ids), minItems=1, maxItems=limits.max_prompts))


MODEL: Schema = {"anyOf": [TEXT, {"type": "null"}], "description": "the default model if absent"}


IGNORED_FIELDS: Mapping[str, str] = {
    "user": "nothing is tracked per user",
    "priority": "texts are computed in the order in which they come",
}

# --- operations -------------------------------------------------------------------------------------------------------

BodyT = TypeVar("BodyT", bound=msgspec.Struct)
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TextsCall(Generic[BodyT]):
    """One call. `raw`: its body as sent. `words`: how it is read. `clock`: seconds since the epoch."""

    profile: ModelProfile
    request_id: str
    raw: Mapping[str, Any]
    body: BodyT
    words: Profile
    clock: Clock

    @property
    def limits(self) -> Limits:
        return self.profile.limits


@dataclass(frozen=True, slots=True)
class TextsOperation(Generic[BodyT]):
    """Differences between operations. `answer`: returns what is sent as JSON. `idle`: names without effect."""

    kind: type[BodyT]
    answer: Callable[[TextsCall[BodyT]], Awaitable[Any]]
    words: Profile
    errors: ErrorTeller | None = None
    idle: Callable[[TextsCall[BodyT]], Iterable[str]] = lambda call: unknown_names(call.raw, type(call.body))


class TextsDialect(AnsweringDialect, Generic[BodyT]):
    def __init__(self, profile: ModelProfile, operation: TextsOperation[BodyT], clock: Clock = time.time) -> None:
        super().__init__(profile)
        self._operation = operation
        self._clock = clock
        self.errors = operation.errors or operation.words.errors

    async def _answer(self, http: HttpCall, switches: CallSwitches) -> Reply:
        operation = self._operation
        raw = decode_object(http, operation.words)
        body = read_struct(raw, operation.kind, operation.words)
        call = TextsCall(self._profile, http.request_id, raw, body, operation.words, self._clock)
        headers = note_ignored(switches, [*operation.idle(call)])
        return json_reply(200, await operation.answer(call), headers)


# --- embeddings --------------------------------------------------------------------------------------------------------

FORMATS = ("float", "base64")


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of an embeddings call; `input` is read by hand, as it may be many things."""

    input: Any = None
    model: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    task: str | None = None
    ttl: float | None = None
    allow_token_ids: bool | None = None


class EmbeddingItem(msgspec.Struct):
    """One text's vector: numbers, or the base64 of their little-endian 32-bit floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | Annotated[str, Meta(description="base64 of little-endian 32-bit floats")]


class TextUsage(msgspec.Struct):
    """Tokens that were computed, special ones included."""

    prompt_tokens: int
    total_tokens: int


def usage_of(num_tokens: Iterable[int]) -> TextUsage:
    total = sum(num_tokens)
    return TextUsage(total, total)


class EmbeddingList(msgspec.Struct):
    """The vectors in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: TextUsage


_EFFECTS = {
    "model": "the default model if absent",
    "dimensions": "keep so many of the first components",
    "encoding_format": "",
    "truncate_prompt_tokens": (
        "cut texts to so many tokens, -1 to what the model takes; too long ones are refused if absent"
    ),
    "add_special_tokens": "put the model's own tokens around texts",
    "allow_token_ids": "token ids are this model's own; without it, only texts are embedded",
    "normalize": "vectors of length 1; as the model does if absent",
    "prompt_name": "one of the model's prompts, which goes before each text",
    "task": "what the vectors are for, as Jina has it; another name of `prompt_name`",
    TTL: TTL_EFFECT,
}


def embeddings_body(words: Profile, profile: ModelProfile) -> Schema:
    return struct_body(
        EmbeddingsBody,
        _EFFECTS,
        replace(words, ignored={"user": "an end-user label; nothing is tracked per user"}),
        profile,
        needed={"input": texts_schema(profile.limits)},
        defaults={"encoding_format": "float", "add_special_tokens": True, "allow_token_ids": False},
        own={
            "dimensions": {"type": "integer", "minimum": 1},
            "encoding_format": {"enum": list(FORMATS)},
            "truncate_prompt_tokens": CUT_SCHEMA,
        },
    )


async def _embed(call: TextsCall[EmbeddingsBody]) -> EmbeddingList:
    profile, body, words = call.profile, call.body, call.words
    service = embedder(profile)
    _check_body(call.raw, body, words)
    field, texts = read_texts("input", body.input, call.limits, words)
    check_token_ids(texts, body.allow_token_ids, profile, words)
    names = {} if body.task is None else {"prompt_name": "task"}
    request = embed_request(call, texts, body.task if body.prompt_name is None else body.prompt_name)
    made = await field.asked(service.embed, request, **names)
    written = vector_writer(body.encoding_format)
    data = await encoded_arrays(made.values, lambda index, row: EmbeddingItem("embedding", index, written(row)))
    return EmbeddingList("list", data, body.model or profile.name, usage_of(made.num_tokens))


def _check_body(raw: Mapping[str, Any], body: EmbeddingsBody, words: Profile) -> None:
    if body.ttl is not None:
        note_ttl(body.ttl, words)
    words.check_model(body.model)
    if body.input is None and "messages" in raw:
        raise UnsupportedFeature("messages cannot be embedded: send the texts as input", param="messages")
    if body.input is None:
        raise words.missing("input")
    if None not in (body.task, body.prompt_name) and body.task != body.prompt_name:
        raise words.wrong("task", f"the same as prompt_name ({shown(body.prompt_name)})", body.task, "conflict")
    check_word("encoding_format", body.encoding_format, FORMATS, words)


def embed_request(call: TextsCall[Any], texts: Sequence[Text], prompt_name: str | None) -> EmbedRequest:
    """The request of a body with vLLM's fields. Raises: InvalidRequest."""
    body = call.body
    return EmbedRequest(
        texts=texts,
        request_id=call.request_id,
        prompt_name=prompt_name,
        **read_cut(body.truncate_prompt_tokens, call.words),
        dimensions=body.dimensions,
        normalize=body.normalize,
        add_special_tokens=body.add_special_tokens is not False,
    )


def _idle(call: TextsCall[EmbeddingsBody]) -> Iterator[str]:
    yield from unknown_names(call.raw, EmbeddingsBody)
    if call.body.ttl is not None and is_ttl_idle():
        yield TTL


def check_token_ids(texts: Sequence[Text], is_allowed: bool | None, profile: ModelProfile, words: Profile) -> None:
    """Raises: InvalidParameter for token ids that may be another model's: LangChain sends those of OpenAI's."""
    if is_allowed or (is_allowed is None and profile.settings.get("allow_token_ids")):
        return
    if not all(isinstance(text, str) for text in texts):
        message = (
            "input holds token ids, which may be those of another model: send texts (LangChain does with "
            "check_embedding_ctx_length=False), or say allow_token_ids: true if they are this model's"
        )
        raise words.fault("input", "token_ids", message)


def embeddings(words: Profile) -> TextsOperation[EmbeddingsBody]:
    return TextsOperation(EmbeddingsBody, _embed, words, idle=_idle)
