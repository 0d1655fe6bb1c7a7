"""Turns items into messages for chat templates, and into the form that is stored.

Source: OpenAI API reference, responses, input items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import UnsupportedFeature
from dragoman.server.apis.openai_wire.conversation import joined_content, parsed_arguments, picture
from dragoman.server.apis.openai_wire.fields import check_count, check_length, check_word, either, shown
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.responses.request import InputItem, InputPart
from dragoman.server.apis.responses.store import Item
from dragoman.tokenizer.message_content import PART_SEPARATOR
from dragoman.types import Limits

ROLES = ("user", "assistant", "system", "developer")
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
REFUSED_PARTS: Mapping[str, str] = {
    "input_file": "files are not read here; send their text",
    "input_audio": "models here take no audio",
}
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def check_items(sent: Any, profile: Profile, limits: Limits) -> None:
    """Refuses items and parts that are not offered, before their fields are read. Raises: InvalidRequest."""
    if not isinstance(sent, list):
        return
    check_count("input", len(sent), limits.max_messages, profile)
    num_parts = num_chars = 0
    for position, item in enumerate(sent):
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        if isinstance(kind, str) and kind not in ITEM_TYPES:
            allowed = ", ".join(ITEM_TYPES)
            message = f"input[{position}].type {shown(kind)} is not supported: items here are {allowed}"
            raise UnsupportedFeature(message, param=f"input[{position}].type")
        arguments = item.get("arguments")
        num_chars += len(arguments) if isinstance(arguments, str) else 0
        for name in ("content", "output"):
            parts = item.get(name)
            if isinstance(parts, list):
                num_parts += len(parts)
                _check_parts(parts, f"input[{position}].{name}")
    check_count("input[].content", num_parts, limits.max_messages, profile)
    check_length("input[].arguments", num_chars, limits.max_text_chars, profile)


def _check_parts(parts: Sequence[Any], path: str) -> None:
    for position, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in REFUSED_PARTS:
            place = f"{path}[{position}]"
            raise UnsupportedFeature(f"{place}.type {kind} is not supported: {REFUSED_PARTS[kind]}", param=place)
        if kind == "input_image" and part.get("file_id") is not None and part.get("image_url") is None:
            place = f"{path}[{position}].file_id"
            raise UnsupportedFeature(
                f"{place} is not supported: uploaded files cannot be used; send image_url", param=place
            )


def type_of(item: InputItem) -> str:
    if item.type is not None:
        return item.type
    return "item_reference" if item.role is None and item.content is None and item.id is not None else "message"


def stored_form(sent: Item, kind: str, item_id: str) -> Item:
    """The item as lists of items show it. `item_id`: if it has none."""
    item = {name: value for name, value in sent.items() if value is not None}
    item = {"type": kind, "id": item_id, **item}
    if kind == "message":
        content = item.get("content")
        if isinstance(content, str):
            is_own = item.get("role") == "assistant"
            part = {"type": "output_text" if is_own else "input_text", "text": content}
            item["content"] = [{**part, "annotations": []} if is_own else part]
    if kind != "reasoning":
        item.setdefault("status", "completed")
    elif "summary" not in item:
        item["summary"] = []
    return item


def new_item_id(kind: str, response_id: str, place: str) -> str:
    """An id that shows which response the item belongs to; `place`: i or o, and a number."""
    return f"{_PREFIXES.get(kind, 'item')}_{response_id.removeprefix('resp_')}{place}"


class _Texts(list[str]):
    """Texts to be joined at the end: joining one by one would copy all of them each time."""

    def __init__(self, separator: str, first: str) -> None:
        super().__init__((first,))
        self.separator = separator


def _joined(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.separator.join(value) if isinstance(value, _Texts) else value for name, value in message.items()
    }


class Conversation:
    """Messages in the making. `instructions` come first, joined with leading system messages."""

    def __init__(self, profile: Profile, instructions: str | None) -> None:
        self._profile = profile
        self._messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None  # the assistant's, which goes on
        self._leading: _Texts | None = None  # the texts of the first message, where it is of the role system
        if instructions:
            self._lead(instructions)

    @property
    def num_messages(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        return tuple(map(_joined, self._messages))

    def add(self, item: InputItem, path: str) -> None:
        match type_of(item):
            case "message":
                self._add_message(item, path)
            case "function_call":
                self._add_call(item, path)
            case "function_call_output":
                self._add_output(item, path)
            case _:  # reasoning; references have been resolved
                self._add_reasoning(item)

    def _add_message(self, item: InputItem, path: str) -> None:
        role = item.role
        if not role:
            raise self._profile.missing(f"{path}.role", either(ROLES))
        check_word(f"{path}.role", role, ROLES, self._profile)
        if item.content is None:
            raise self._profile.missing(f"{path}.content", "a text or parts")
        content = self._content(item.content, f"{path}.content")
        if role == "assistant":
            turn = self._open_turn(is_new=self._turn is not None and bool(self._turn["content"]))
            turn["content"] = content
            return
        self._turn = None
        # Templates know one word for both, and want it once, at the beginning.
        role = "user" if role == "user" else "system"
        if role == "system" and isinstance(content, str) and len(self._messages) == (self._leading is not None):
            self._lead(content)
        else:
            self._messages.append({"role": role, "content": content})

    def _lead(self, text: str) -> None:
        if self._leading is not None:
            self._leading.append(text)
            return
        self._leading = _Texts("\n\n", text)
        self._messages.append({"role": "system", "content": self._leading})

    def _add_call(self, item: InputItem, path: str) -> None:
        for name in ("call_id", "name"):
            if not getattr(item, name):
                raise self._profile.missing(f"{path}.{name}")
        arguments: Any = {} if item.arguments is None else item.arguments
        if isinstance(arguments, str):
            arguments = parsed_arguments(arguments)
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}
        self._open_turn().setdefault("tool_calls", []).append(call)

    def _add_output(self, item: InputItem, path: str) -> None:
        if not item.call_id:
            raise self._profile.missing(f"{path}.call_id")
        if item.output is None:
            raise self._profile.missing(f"{path}.output")
        self._turn = None
        content = "" if item.output == [] else self._content(item.output, f"{path}.output")
        self._messages.append({"role": "tool", "content": content, "tool_call_id": item.call_id})

    def _add_reasoning(self, item: InputItem) -> None:
        parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
        text = item.content if isinstance(item.content, str) else PART_SEPARATOR.join(part.text or "" for part in parts)
        if text:
            turn = self._open_turn(is_new=self._turn is not None and bool(self._turn["content"]))
            if "reasoning_content" in turn:
                turn["reasoning_content"].append(text)
            else:
                turn["reasoning_content"] = _Texts("\n", text)

    def _open_turn(self, *, is_new: bool = False) -> dict[str, Any]:
        """The assistant's turn: its reasoning, text and calls until a message of another role."""
        if self._turn is None or is_new or ("tool_calls" in self._turn and self._messages[-1] is not self._turn):
            self._turn = {"role": "assistant", "content": ""}
            self._messages.append(self._turn)
        return self._turn

    # --- content ------------------------------------------------------------------------------------------------------

    def _content(self, content: str | list[InputPart], path: str) -> str | list[dict[str, Any]]:
        if isinstance(content, str):
            return content
        if not content:
            raise self._profile.fault(path, "empty", f"{path} must hold at least one part, got []")
        return joined_content([self._part(part, f"{path}[{position}]") for position, part in enumerate(content)])

    def _part(self, part: InputPart, path: str) -> dict[str, Any]:
        kind = part.type
        if kind in (*_TEXT_PARTS, "refusal"):
            name = "refusal" if kind == "refusal" else "text"
            text = part.refusal if kind == "refusal" else part.text
            if text is None:
                raise self._profile.missing(f"{path}.{name}")
            return {"type": "text", "text": text}
        if kind == "input_image":
            places = (f"{path}.image_url", f"{path}.detail")
            seen = picture(part.image_url, f"{path}.image_url", self._profile, places, part.detail)
            return {"type": "image_url", "image_url": seen}
        allowed = "input_text, input_image, output_text or refusal"
        if kind is None:
            raise self._profile.fault(f"{path}.type", "missing", f"{path}.type must be {allowed}, it is missing")
        raise self._profile.wrong(f"{path}.type", allowed, kind)
