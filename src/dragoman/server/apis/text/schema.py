"""The bodies of the plain-text service: what clients send, checked field by field.

Does: decode and validate `/api/generate-one` and `/api/generate-batch`. Does not: know generation or HTTP status codes.
Used by the text dialect only. `null` means "not given"; ids keep their exact JSON text, so that they return as sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

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


class Payload(NamedTuple):
    """A checked body: its prompts in order, and the names of fields that mean nothing here."""

    entries: tuple[PromptEntry, ...]
    ignored: tuple[str, ...]


class BatchAnswerItem(msgspec.Struct, frozen=True):
    """One element of a batch's answer, which has the order of the request; `id` as it was sent."""

    id: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["string", "number"]})]
    data: str


def parse_one(body: bytes) -> Payload:
    """The prompt of a generate-one body. Raises: InvalidPayload."""
    fields = _object(body, "The request body")
    return Payload((_entry(fields, "", None),), _unknown(fields, PROMPT_FIELDS, ""))


def parse_batch(body: bytes, max_prompts: int) -> Payload:
    """The prompts of a generate-batch body, the shared `maxLength` filled in. Raises: InvalidPayload."""
    fields = _object(body, "The request body")
    shared = _max_length(fields, "")
    items = _items(fields, max_prompts)
    ignored = list(_unknown(fields, BATCH_FIELDS, ""))
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
    return Payload(tuple(entries), tuple(ignored))


def label_of(entry_id: msgspec.Raw) -> str:
    """The name in errors for the prompt with this id."""
    return f"id {_shown(bytes(entry_id))}"


def _object(raw: bytes | msgspec.Raw, name: str) -> Fields:
    """The given fields of a JSON object, `null` ones left out."""
    try:
        fields: Fields = decode_json(raw, dict[str, msgspec.Raw])
        check_fields(fields)
    except msgspec.ValidationError as error:
        raise InvalidPayload(f"{name} must be a JSON object, got {_shown(bytes(raw))}") from error
    except NotJson as error:
        raise InvalidPayload(error.of(name)) from error
    return {key: value for key, value in fields.items() if bytes(value) != b"null"}


def _items(fields: Fields, max_prompts: int) -> list[msgspec.Raw]:
    if "prompts" not in fields:
        raise InvalidPayload("prompts is missing: it must be an array of {id, prompt, maxLength}", param="prompts")
    try:
        items: list[msgspec.Raw] = decode_json(fields["prompts"], list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise _wrong("prompts", fields["prompts"], "an array of {id, prompt, maxLength}") from error
    if not 1 <= len(items) <= max_prompts:
        raise InvalidPayload(f"prompts has {len(items)} entries, 1 to {max_prompts} are allowed", param="prompts")
    return items


def _entry(fields: Fields, prefix: str, shared_max_length: int | None) -> PromptEntry:
    own_max_length = _max_length(fields, prefix)
    max_length = shared_max_length if own_max_length is None else own_max_length
    entry_id, prompt = _id(fields, prefix), _prompt(fields, prefix)
    if max_length is None:
        raise InvalidPayload(f"{prefix}maxLength is missing: it must be an integer of at least 1", param="maxLength")
    return PromptEntry(entry_id, prompt, max_length)


def _id(fields: Fields, prefix: str) -> msgspec.Raw:
    if "id" not in fields:
        raise InvalidPayload(f"{prefix}id is missing: it must be a string or a number", param="id")
    value = _value(fields["id"], f"{prefix}id")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(f"{prefix}id", fields["id"], "a string or a number")
    return fields["id"].copy()  # a copy, or the id would keep the whole body alive while tokens are generated


def _prompt(fields: Fields, prefix: str) -> str:
    if "prompt" not in fields:
        raise InvalidPayload(f"{prefix}prompt is missing: it must be a string", param="prompt")
    value = _value(fields["prompt"], f"{prefix}prompt")
    if not isinstance(value, str) or not value:
        raise _wrong(f"{prefix}prompt", fields["prompt"], "a string that is not empty")
    return value


def _max_length(fields: Fields, prefix: str) -> int | None:
    if "maxLength" not in fields:
        return None
    name = f"{prefix}maxLength"
    value = _value(fields["maxLength"], name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 10.0 is an integer in JSON
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(name, fields["maxLength"], "an integer of at least 1")
    return value


def _value(raw: msgspec.Raw, name: str) -> Any:
    try:
        return decode_json(raw)
    except NotJson as error:
        raise InvalidPayload(error.of(name), param=name) from error


def _refuse_duplicates(entries: list[PromptEntry]) -> None:
    """Ids must differ: answers are told apart by them. `1` and `"1"` do differ."""
    seen: set[tuple[bool, Any]] = set()
    for entry in entries:
        value = decode_json(entry.id)
        key = (isinstance(value, str), value)
        if key in seen:
            raise InvalidPayload(
                f"id {_shown(bytes(entry.id))} occurs twice, ids must be unique in a batch", param="id"
            )
        seen.add(key)


def _unknown(fields: Fields, known: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}" for name in fields if name not in known)


def _wrong(name: str, raw: msgspec.Raw, allowed: str) -> InvalidPayload:
    return InvalidPayload(f"{name} must be {allowed}, got {_shown(bytes(raw))}", param=name)


def _shown(raw: bytes) -> str:
    """A wrong value as an error repeats it."""
    text = raw[: 4 * MAX_SHOWN_LENGTH].decode("utf-8", "replace")
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."
