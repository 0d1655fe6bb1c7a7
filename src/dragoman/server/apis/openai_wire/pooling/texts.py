"""Reads the texts to embed or rank, and tells the service's errors by the clients' names. On the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from re import compile as pattern
from typing import Any, NamedTuple

from dragoman.errors import ServerError
from dragoman.server.apis.openai_wire.fields import check_count, shown
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.describe.json_schema import TEXT, Schema, any_of, array
from dragoman.server.pooling import Truncation
from dragoman.server.pooling.base import Text
from dragoman.types import Limits

_PLACE = pattern(r"(?:text|pair) (\d+) ")

CUT = "truncate_prompt_tokens"
"""vLLM's name for the number of tokens that a text is cut to."""


CUT_SCHEMA: Schema = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}


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
        message = f"{name} must be a string, an array of strings or token ids, got {shown(value)}"
        raise words.fault(name, "type", message)
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
        raise words.fault(name, "type", f"{name} must be a string, got {shown(value)}")
    return _checked(name, value, limits, words)


def _text(name: str, value: Any, limits: Limits, words: Profile) -> Text:
    if isinstance(value, str):
        return _checked(name, value, limits, words)
    if isinstance(value, list):
        return _token_ids(name, value, limits, words)
    raise words.fault(name, "type", f"{name} must be a string or an array of token ids, got {shown(value)}")


def _token_ids(name: str, values: list[Any], limits: Limits, words: Profile) -> tuple[int, ...]:
    check_count(name, len(values), limits.max_token_ids, words)
    if not values:
        raise words.fault(name, "empty", f"{name} must hold at least one token, got none")
    if set(map(type, values)) != {int}:
        wrong = next(index for index, one in enumerate(values) if not _is_id(one))
        place = f"{name}[{wrong}]"
        raise words.fault(place, "type", f"{place} must be a token id like the others, got {shown(values[wrong])}")
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
        _rename(error, names, place)
        raise


def _rename(error: ServerError, names: Mapping[str, str], place: Callable[[int], str]) -> None:
    own = error.param
    name = None if own is None else names.get(own)
    if own is None or name is None:
        return
    error.param = name
    if found := _PLACE.match(error.message):
        error.message = f"{place(int(found[1]))} {error.message[found.end() :]}"
    elif error.message.startswith(f"{own} "):
        error.message = name + error.message.removeprefix(own)
    error.args = (error.message,)


def texts_schema(limits: Limits) -> Schema:
    ids = array({"type": "integer", "minimum": 0}, minItems=1, maxItems=limits.max_token_ids)
    return any_of(TEXT, ids, array(any_of(TEXT, ids), minItems=1, maxItems=limits.max_prompts))


MODEL: Schema = {"anyOf": [TEXT, {"type": "null"}], "description": "the default model if absent"}
