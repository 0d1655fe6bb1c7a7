"""Reads one parameter value as the type its row in the table names, the way the LMI containers coerce.

Does: turn JSON values into Python values ("256" -> 256, "true" -> True), or say what is allowed instead.
Does not: know any parameter or range. Called by `reader`, on the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from dragoman.errors import InvalidParameter
from dragoman.server.apis.openai_wire.grammars import (
    read_choice,
    read_json_schema,
    read_lark,
    read_regex,
    read_response_format,
)
from dragoman.server.json_body import shown_json

MAX_SHOWN = 80  # characters of a refused value that an error message repeats

MAX_INTEGER = 2**31 - 1  # engines hold counts and token ids in 32 bits; seeds have a range of their own

IGNORED = object()
"""Read in place of a value that is legal but has no meaning here."""


def show(value: Any) -> str:
    """The value as JSON on one line, cut to a length that fits a message."""
    return shown_json(value, MAX_SHOWN)


def wrong(name: str, value: Any, allowed: str) -> InvalidParameter:
    """The error for a value of a wrong type or range: parameter, what is allowed, what was given."""
    return InvalidParameter(f"Parameter '{name}' must be {allowed}, got {show(value)}", param=name)


def read_boolean(value: Any) -> bool:
    """True, false, and what Python clients write for them. Raises: ValueError."""
    match value:
        case bool():
            return value
        case str() if value.strip().lower() in ("true", "1"):
            return True
        case str() if value.strip().lower() in ("false", "0"):
            return False
        case int() | float() if value in (0, 1):
            return bool(value)
    raise ValueError


def read_integer(value: Any) -> int:
    """A whole number, also as a float without fraction or as a numeric string. Raises: ValueError."""
    match value:
        case bool():
            raise ValueError
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case str():
            return _integer_text(value.strip())
    raise ValueError


def _integer_text(text: str) -> int:
    if len(text) > 40:  # no legal value is as long, and long digit strings are slow to convert
        raise ValueError
    try:
        return int(text)
    except ValueError:
        return read_integer(float(text))


def read_float(value: Any) -> float:
    """A finite number, also as a numeric string. Raises: ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError from error
    if not math.isfinite(number):
        raise ValueError
    return number


def read_string(value: Any) -> str:
    """A string. Raises: ValueError."""
    if not isinstance(value, str):
        raise ValueError
    return value


def read_strings(value: Any) -> tuple[str, ...]:
    """A list of non-empty strings, or one such string. Raises: ValueError."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ValueError
    return tuple(items)


def read_stop(value: Any) -> Any:
    """A list of strings or one string; a boolean, as LMI 0.31 types it for TensorRT-LLM, has no meaning."""
    return IGNORED if isinstance(value, bool) else read_strings(value)


def read_token_ids(value: Any) -> tuple[int, ...]:
    """A list of token ids, or one. Raises: ValueError."""
    items = value if isinstance(value, list) else [value]
    ids = tuple(items if set(map(type, items)) == {int} else map(read_integer, items))
    if ids and not 0 <= min(ids) <= max(ids) <= MAX_INTEGER:
        raise ValueError
    return ids


def read_logit_bias(value: Any) -> dict[int, float]:
    """An object of biases by token id. Raises: ValueError."""
    if not isinstance(value, dict):
        raise ValueError
    biases = {read_integer(key): read_float(bias) for key, bias in value.items()}
    if not all(0 <= token_id <= MAX_INTEGER for token_id in biases):
        raise ValueError
    if any(abs(bias) > 100 for bias in biases.values()):  # 100: OpenAI reference, logit_bias
        raise ValueError
    return biases


def read_early_stopping(value: Any) -> Any:
    """A boolean, or "never". Raises: ValueError."""
    return value if value == "never" else read_boolean(value)


def _in_place(read: Callable[[str, Any], Any]) -> Callable[[Any], Any]:
    """A reader of grammars for a value whose name the caller puts before what is wrong."""
    return partial(read, "")


class ValueType(Enum):
    """The types of the table: how messages and the documentation call them, and how they are read."""

    BOOLEAN = ("a boolean", read_boolean)
    INTEGER = ("an integer", read_integer)
    FLOAT = ("a number", read_float)
    STRING = ("a string", read_string)
    STRINGS = ("a list of non-empty strings", read_strings)
    STOP = ("a non-empty string or a list of them", read_stop)
    TOKEN_IDS = ("a list of token ids", read_token_ids)
    LOGIT_BIAS = ("an object of token ids and biases from -100 to 100", read_logit_bias)
    EARLY_STOPPING = ('a boolean or "never"', read_early_stopping)
    RESPONSE_FORMAT = (
        "an object with type text, json_object, json_schema, json or regex",
        _in_place(read_response_format),
    )
    GUIDED_JSON = ("a JSON schema, as an object or as text", _in_place(read_json_schema))
    REGEX = ("a regular expression", _in_place(read_regex))
    CHOICE = ("a list of non-empty strings", _in_place(read_choice))
    LARK = ("a Lark grammar", _in_place(read_lark))
    TGI_GRAMMAR = ("an object with type json, json_schema or regex and a value", _in_place(read_response_format))

    def __init__(self, label: str, reader: Callable[[Any], Any]) -> None:
        self.label = label
        self.reader = reader
