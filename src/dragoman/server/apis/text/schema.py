"""The bodies of the plain-text service, checked field by field.

`null` means "not given"; ids keep their exact JSON text, so that they return as sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from dragoman.errors import InvalidPayload
from dragoman.server.json_body import NotJson, check_fields, decode_json

PROMPT_FIELDS = ("id", "prompt", "maxLength")
BATCH_FIELDS = ("prompts", "maxLength")
MAX_SHOWN_LENGTH = 60  # how much of a wrong value an error repeats

Fields = Mapping[str, msgspec.Raw]


class PromptEntry(NamedTuple):
    """One prompt to continue. `id` is JSON text; `max_length` counts generated tokens."""

    id: msgspec.Raw
    prompt: str
    max_length: int


Parsed = tuple[list[PromptEntry], list[str]]
"""The prompts in order, and the names of fields that mean nothing here."""


class BatchAnswerItem(msgspec.Struct, frozen=True):
    """One element of a batch's answer, which has the order of the request; `id` as it was sent."""

    id: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["string", "number"]})]
    data: str


_FIELDS: Mapping[str, tuple[Any, str, str]] = {
    "id": (str | int | float, "a string or a number", ""),
    "prompt": (Annotated[str, Meta(min_length=1)], "a string", " that is not empty"),
    # 10.0 is an integer in JSON.
    "maxLength": (
        Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1, multiple_of=1)],
        "an integer of at least 1",
        "",
    ),
    "prompts": (list[msgspec.Raw], "an array of {id, prompt, maxLength}", ""),
}
"""The type of each field, its words in errors, and a further condition."""


def parse_one(body: bytes) -> Parsed:
    fields = _object(body, "The request body")
    return [_entry(fields, "", None)], _unknown(fields, PROMPT_FIELDS, "")


def parse_batch(body: bytes, max_prompts: int) -> Parsed:
    """The prompts, the shared `maxLength` filled in. Raises: InvalidPayload."""
    fields = _object(body, "The request body")
    shared = _value(fields, "", "maxLength")
    items = _needed(fields, "", "prompts")
    if not 1 <= len(items) <= max_prompts:
        raise InvalidPayload(f"prompts has {len(items)} entries, 1 to {max_prompts} are allowed", param="prompts")
    ignored = _unknown(fields, BATCH_FIELDS, "")
    entries: list[PromptEntry] = []
    for position, item in enumerate(items):
        name = f"prompts[{position}]"
        item_fields = _object(item, name)
        try:
            entries.append(_entry(item_fields, f"{name}.", shared))
        except InvalidPayload as error:
            has_id = "id" in item_fields and error.param != "id"
            raise (error.of(label_of(item_fields["id"])) if has_id else error) from error
        ignored.extend(_unknown(item_fields, PROMPT_FIELDS, f"{name}."))
    _refuse_duplicates(entries)
    return entries, ignored


def label_of(entry_id: msgspec.Raw) -> str:
    return f"id {_shown(entry_id)}"


def _object(raw: bytes | msgspec.Raw, name: str) -> Fields:
    """The fields of a JSON object, `null` ones left out."""
    try:
        fields: Fields = decode_json(raw, dict[str, msgspec.Raw])
        check_fields(fields)
    except msgspec.ValidationError as error:
        raise InvalidPayload(f"{name} must be a JSON object, got {_shown(raw)}") from error
    except NotJson as error:
        raise InvalidPayload(error.of(name)) from error
    return {key: value for key, value in fields.items() if bytes(value) != b"null"}


def _entry(fields: Fields, prefix: str, shared_max_length: int | None) -> PromptEntry:
    own_max_length = _value(fields, prefix, "maxLength")
    _needed(fields, prefix, "id")
    # A copy, or the id would keep the whole body alive while tokens are generated.
    entry_id, prompt = fields["id"].copy(), _needed(fields, prefix, "prompt")
    max_length = shared_max_length if own_max_length is None else own_max_length
    return PromptEntry(entry_id, prompt, int(max_length or _needed(fields, prefix, "maxLength")))


def _needed(fields: Fields, prefix: str, name: str) -> Any:
    value = _value(fields, prefix, name)
    if value is None:
        raise InvalidPayload(f"{prefix}{name} is missing: it must be {_FIELDS[name][1]}", param=name)
    return value


def _value(fields: Fields, prefix: str, name: str) -> Any:
    """None if it is not given. Raises: InvalidPayload if it is wrong."""
    if name not in fields:
        return None
    kind, allowed, condition = _FIELDS[name]
    try:
        return decode_json(fields[name], kind)
    except msgspec.ValidationError as error:
        message = f"{prefix}{name} must be {allowed}{condition}, got {_shown(fields[name])}"
        raise InvalidPayload(message, param=name) from error
    except NotJson as error:
        raise InvalidPayload(error.of(f"{prefix}{name}"), param=name) from error


def _refuse_duplicates(entries: list[PromptEntry]) -> None:
    """Answers are told apart by ids. `1` and `"1"` do differ."""
    seen: set[tuple[bool, Any]] = set()
    for entry in entries:
        value = decode_json(entry.id)
        key = (isinstance(value, str), value)
        if key in seen:
            message = f"id {_shown(entry.id)} occurs twice, ids must be unique in a batch"
            raise InvalidPayload(message, param="id")
        seen.add(key)


def _unknown(fields: Fields, known: tuple[str, ...], prefix: str) -> list[str]:
    return [f"{prefix}{name}" for name in fields if name not in known]


def _shown(raw: bytes | msgspec.Raw) -> str:
    text = bytes(raw)[: 4 * MAX_SHOWN_LENGTH].decode("utf-8", "replace")
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."
