"""Calls about texts for which nothing is generated: from a body to the service's request and back. On the event loop."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from re import compile as pattern
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy.typing as npt

from dragoman.errors import ServerError
from dragoman.server.api import CallSwitches, ErrorTeller, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.fields import check_count, decode_object, read_struct, unknown_names
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.describe.json_schema import TEXT, Schema, any_of, array
from dragoman.server.pooling.base import AnsweringDialect, Numbers, Text, Truncation
from dragoman.server.responder import note_ignored
from dragoman.types import Limits

_PLACE = pattern(r"(?:text|pair) (\d+) ")

CUT = "truncate_prompt_tokens"
"""vLLM's name for the number of tokens that a text is cut to."""


CUT_SCHEMA: Schema = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}


# --- reading texts ----------------------------------------------------------------------------------------------------


class Texts(NamedTuple):
    """`is_list`: the client sent a list, even if it has only one entry."""

    texts: list[Text]
    is_list: bool

    def place(self, name: str, index: int) -> str:
        return f"{name}[{index}]" if self.is_list else name


def read_texts(name: str, value: Any, limits: Limits, words: Profile) -> Texts:
    """The texts of a field: a string, token ids, or a list of either. Raises: InvalidRequest."""
    if isinstance(value, str):
        return Texts([_checked(name, value, limits, words)], is_list=False)
    if not isinstance(value, list):
        raise words.wrong(name, "a string, an array of strings or token ids", value, "type")
    if not value:
        raise words.fault(name, "empty", f"{name} must hold at least one text, got none")
    if _is_id(value[0]):
        return Texts([_token_ids(name, value, limits, words)], is_list=False)
    check_count(name, len(value), limits.max_prompts, words)
    return Texts([_text(f"{name}[{index}]", one, limits, words) for index, one in enumerate(value)], is_list=True)


def read_strings(name: str, values: Sequence[Any], limits: Limits, words: Profile) -> list[str]:
    if not values:
        raise words.fault(name, "empty", f"{name} must hold at least one text, got none")
    check_count(name, len(values), limits.max_prompts, words)
    return [read_string(f"{name}[{index}]", value, limits, words) for index, value in enumerate(values)]


def read_string(name: str, value: Any, limits: Limits, words: Profile) -> str:
    if not isinstance(value, str):
        raise words.wrong(name, "a string", value, "type")
    return _checked(name, value, limits, words)


def _text(name: str, value: Any, limits: Limits, words: Profile) -> Text:
    if isinstance(value, str):
        return _checked(name, value, limits, words)
    if isinstance(value, list):
        return _token_ids(name, value, limits, words)
    raise words.wrong(name, "a string or an array of token ids", value, "type")


def _token_ids(name: str, values: list[Any], limits: Limits, words: Profile) -> tuple[int, ...]:
    check_count(name, len(values), limits.max_token_ids, words)
    if not values:
        raise words.fault(name, "empty", f"{name} must hold at least one token, got none")
    if set(map(type, values)) != {int}:
        wrong = next(index for index, one in enumerate(values) if not _is_id(one))
        place = f"{name}[{wrong}]"
        raise words.wrong(place, "a token id like the others", values[wrong], "type")
    return tuple(values)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked(name: str, text: str, limits: Limits, words: Profile) -> str:
    most = limits.max_text_chars
    if len(text) > most:
        raise words.fault(name, "length", f"{name} must have at most {most} characters, got {len(text)}")
    return text


class Cut(NamedTuple):
    truncation: Truncation
    max_tokens: int | None


def read_cut(num_tokens: int | None, words: Profile, default: Truncation = Truncation.NONE) -> Cut:
    """The truncation that `truncate_prompt_tokens` asks for: -1 is the most that the model takes. Raises: InvalidRequest."""
    if num_tokens is None:
        return Cut(default, None)
    if num_tokens < -1 or num_tokens == 0:
        raise words.fault(CUT, "low", f"{CUT} must be -1 or at least 1, got {num_tokens}")
    return Cut(Truncation.RIGHT, None if num_tokens == -1 else num_tokens)


@contextmanager
def told_as(names: Mapping[str, str], place: Callable[[int], str]) -> Iterator[None]:
    """Translate errors of the service: its request's fields get these names, and a text its `place`."""
    try:
        yield
    except ServerError as error:
        own = error.param
        if own is not None and own in names:
            error.param = names[own]
            if found := _PLACE.match(error.message):
                error.message = f"{place(int(found[1]))} {error.message[found.end() :]}"
            elif error.message.startswith(f"{own} "):
                error.message = names[own] + error.message.removeprefix(own)
            error.args = (error.message,)
        raise


def texts_schema(limits: Limits) -> Schema:
    ids = array({"type": "integer", "minimum": 0}, minItems=1, maxItems=limits.max_token_ids)
    return any_of(TEXT, ids, array(any_of(TEXT, ids), minItems=1, maxItems=limits.max_prompts))


MODEL: Schema = {"anyOf": [TEXT, {"type": "null"}], "description": "the default model if absent"}


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
