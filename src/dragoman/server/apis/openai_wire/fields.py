"""Reads a JSON body into a Struct and checks its values; errors name the parameter, the value and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dragoman.errors import InvalidRequest
from dragoman.parameters import ALIASES, PARAMETERS, UINT32_MAX, Bounds, bounds_of
from dragoman.server.api import HttpCall
from dragoman.server.apis.openai_wire.profile import MAX_SHOWN_LENGTH, Profile
from dragoman.server.json_body import NotJson, shown_json

StructT = TypeVar("StructT", bound=msgspec.Struct)

MAX_BIAS = 100  # source: OpenAI API reference, logit_bias
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512  # source: OpenAI API reference, metadata
_MAX_ID_DIGITS = 18  # of a token id; more would be slow to convert

_PATH = re.compile(r"`\$\.?(?P<path>[^`]*)`")
_STEP = re.compile(r"(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]")
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]+)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")
_TYPE_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}

_ENUM_WORDS = {"early_stopping": 'true, false or "never"'}

_CHECKED_APART = ("num_beams", "logprobs", "prompt_logprobs")  # no field, or one with values of its own

BOUNDS: Mapping[str, Bounds] = {
    **bounds_of(*(name for name in (*PARAMETERS, *ALIASES) if name not in _CHECKED_APART)),
    **bounds_of(
        max_completion_tokens="max_tokens",
        repeat_penalty="repetition_penalty",
        **dict.fromkeys(
            ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"), "thinking_token_budget"
        ),
    ),
    "n_predict": Bounds(-1, UINT32_MAX),
    "repeat_last_n": Bounds(-1, UINT32_MAX),
    "n_keep": Bounds(-1, UINT32_MAX),
    "n_discard": Bounds(0, UINT32_MAX),
    "n_indent": Bounds(0, UINT32_MAX),
    "t_max_predict_ms": Bounds(-1, UINT32_MAX),
    "temperature": Bounds(0.0, 2.0),
    "priority": Bounds(-(2**31), 2**31 - 1),
    "ttl": Bounds(0.0, UINT32_MAX),
}
"""Allowed ranges: the parameters' own, but for what OpenAI's document changes. The operator's limits are checked apart."""


def decode_object(http: HttpCall, profile: Profile) -> dict[str, Any]:
    """The body without fields that are null or set to empty ("not given"). Not to be changed. Raises: InvalidPayload."""
    try:
        raw = http.json()
    except NotJson as error:
        raise profile.payload_fault(error.problem, error.of("the body"), reason=error) from None
    if not isinstance(raw, dict):
        raise profile.payload_fault("object", f"the body must be a JSON object, got {shown(raw)}")
    if None not in raw.values() and raw.get("top_k") != "":  # as nearly always
        return raw
    # An empty text may take the place of a number: "Set to empty or -1", says OVMS v2025.0 of `top_k`.
    return {name: value for name, value in raw.items() if value is not None and (value != "" or name != "top_k")}


def read_struct(raw: Mapping[str, Any], struct_type: type[StructT], profile: Profile) -> StructT:
    """The fields of `raw` that `struct_type` names, typed. Raises: InvalidRequest for the first wrong one."""
    try:
        return msgspec.convert(raw, struct_type, strict=profile.has_strict_types)
    except msgspec.ValidationError as error:
        raise _type_fault(raw, str(error), profile) from None


def check_bounds(raw: Mapping[str, Any], body: msgspec.Struct, profile: Profile, exempt: Collection[str] = ()) -> None:
    for name in raw:
        bounds = profile.bounds.get(name) or BOUNDS.get(name)
        if bounds is not None and name not in exempt and (value := getattr(body, name, None)) is not None:
            check_number(name, value, bounds, profile)


def check_number(name: str, value: float, bounds: Bounds, profile: Profile) -> None:
    """Raises InvalidRequest unless `value` is finite and within `bounds`."""
    if isinstance(value, float) and not math.isfinite(value):
        raise profile.fault(name, "type", f"{name} must be a finite number, got {value}")
    problem = bounds.problem(value)
    if problem:
        text = str(value)
        beginning = text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."
        raise profile.fault(name, problem, f"{name} must be {bounds}, got {beginning}")


def check_word(name: str, word: str | None, allowed: Sequence[str], profile: Profile) -> None:
    if word is not None and word not in allowed:
        raise profile.wrong(name, either(allowed), word)


def either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def check_count(name: str, count: int, most: int, profile: Profile) -> None:
    if count > most:
        raise profile.fault(name, "count", f"{name} must have at most {most} entries, got {count}", limit=most)


def check_length(name: str, num_chars: int, most: int, profile: Profile) -> None:
    if num_chars > most:
        message = f"{name} must have at most {most} characters together, got {num_chars}"
        raise profile.fault(name, "length", message)


def check_metadata(metadata: Mapping[str, str], profile: Profile) -> None:
    check_count("metadata", len(metadata), MAX_METADATA, profile)
    for part, texts, most in (("key", metadata, MAX_METADATA_KEY), ("value", metadata.values(), MAX_METADATA_VALUE)):
        longest = max(map(len, texts), default=0)
        if longest > most:
            message = f"every {part} in metadata must have at most {most} characters, got {longest}"
            raise profile.fault("metadata", "length", message)


def check_word_lengths(name: str, words: Sequence[str], most: int, profile: Profile) -> None:
    for position, word in enumerate(words):
        if len(word) > most:
            message = f"{name}[{position}] must have at most {most} characters, got {len(word)}"
            raise profile.fault(f"{name}[{position}]", "length", message)


def read_texts(
    name: str, value: str | Sequence[str] | None, most: int, max_word_chars: int, profile: Profile
) -> tuple[str, ...]:
    """The texts of a parameter, none of them empty: one, or a list of at most `most`. Raises: InvalidRequest."""
    texts = (value,) if isinstance(value, str) else tuple(value or ())
    if len(texts) > most:
        raise profile.fault(name, "count", f"{name} must have at most {most} strings, got {len(texts)}", limit=most)
    check_word_lengths(name, texts, max_word_chars, profile)
    if "" in texts:
        raise profile.fault(name, "empty", f"{name} must hold non-empty strings, got {shown(value)}")
    return texts


def is_token_id(value: Any) -> bool:
    """True for a whole number, which may be out of range; truth values are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def read_token_ids(name: str, ids: Sequence[int] | None, most: int, profile: Profile) -> tuple[int, ...]:
    if not ids:
        return ()
    check_count(name, len(ids), most, profile)
    if (least := min(ids)) < 0:
        place = f"{name}[{ids.index(least)}]"
        raise profile.fault(place, "low", f"{place} must be at least 0, got {least}")
    return tuple(ids)


def read_logit_bias(name: str, written: Mapping[str, float] | None, most: int, profile: Profile) -> dict[int, float]:
    bias: dict[int, float] = {}
    if not written:
        return bias
    check_count(name, len(written), most, profile)
    if _are_ids(written) and min(written.values()) >= -MAX_BIAS and max(written.values()) <= MAX_BIAS:
        return dict(zip(map(int, written), written.values(), strict=True))
    for key, value in written.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS):
            raise profile.fault(name, "key", f"{name} must map token ids to numbers, got the key {shown(key)}")
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise profile.fault(name, "value", f"{name}[{key}] must be between -{MAX_BIAS} and {MAX_BIAS}, got {value}")
        bias[int(key)] = value
    return bias


def _are_ids(keys: Collection[str]) -> bool:
    """True if all keys are token ids. There may be many, so it checks them joined."""
    joined = "".join(keys)
    return joined.isascii() and joined.isdigit() and all(keys) and max(map(len, keys)) <= _MAX_ID_DIGITS


def unknown_names(raw: Mapping[str, Any], struct_type: type[msgspec.Struct]) -> tuple[str, ...]:
    known: Collection[str] = struct_type.__struct_encode_fields__
    return tuple(name for name in raw if name not in known)


def shown(value: object) -> str:
    """The value as an error message repeats it: one line of JSON, cut where it is long."""
    return shown_json(value, MAX_SHOWN_LENGTH)


def _type_fault(raw: Mapping[str, Any], problem: str, profile: Profile) -> InvalidRequest:
    found = _PATH.search(problem)
    path = found["path"] if found else ""
    missing = _MISSING.search(problem)
    if missing:
        param = f"{path}.{missing['name']}" if path else missing["name"]
        return profile.fault(param, "missing", f"{param} is missing")
    param = path.replace("[...]", "")
    expected = _EXPECTED.search(problem)
    allowed = _in_words(expected["types"]) if expected else _ENUM_WORDS.get(param, "a number of fewer digits")
    subject = param if param == path else f"every value in {param}"
    return profile.fault(param, "type", f"{subject} must be {allowed}, got {shown(_value_at(raw, path))}")


def _in_words(types: str) -> str:
    names = [name for name in types.split(" | ") if name != "null"]
    return " or ".join(_TYPE_WORDS.get(name, name) for name in names)


def _value_at(raw: Mapping[str, Any], path: str) -> Any:
    """The value that msgspec's path points at, or the object with free keys that holds it (`[...]` in the path)."""
    value: Any = raw
    for step in _STEP.finditer(path.partition("[...]")[0]):
        value = value[int(step["index"])] if step["index"] else value[step["name"]]
    return value
