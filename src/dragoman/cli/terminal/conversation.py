"""A conversation in the form of OpenAI's API: messages, and attachments of the next one. Calls no model."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")

_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
    b"RIFF": "image/webp",
}


class Conversation:
    """The messages so far. `pictures`: paths that go with the next message of the user."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.messages: list[dict[str, Any]] = []
        self._pictures: list[tuple[Path, str]] = []

    @property
    def pictures(self) -> list[Path]:
        return [path for path, _ in self._pictures]

    def sent(self) -> list[dict[str, Any]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def attach(self, path: Path) -> None:
        """Attach a picture to the next message. Raises: OSError, ValueError for another kind of file."""
        self._pictures.append((path, picture_url(path)))

    def say(self, text: str) -> None:
        """Add the user's message with its pictures, or the result of a waiting tool call."""
        waiting = self.waiting_calls()
        if waiting:
            self.messages.append({"role": "tool", "tool_call_id": waiting[0]["id"], "content": text})
            return
        content: Any = text
        if self._pictures:
            content = [{"type": "image_url", "image_url": {"url": url}} for _, url in self._pictures]
            content.append({"type": "text", "text": text})
        self.messages.append({"role": "user", "content": content})
        self._pictures.clear()

    def waiting_calls(self) -> list[dict[str, Any]]:
        """The last answer's tool calls without a result, in order."""
        answered: set[str] = set()
        for message in reversed(self.messages):
            if message["role"] == "tool":
                answered.add(message["tool_call_id"])
                continue
            return [call for call in message.get("tool_calls") or () if call["id"] not in answered]
        return []

    def answer(self, content: str, tool_calls: Sequence[Mapping[str, Any]] = ()) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if tool_calls:
            message["tool_calls"] = list(tool_calls)
        self.messages.append(message)

    def take_back(self) -> str | None:
        """Remove the last, unanswered message and return its text; its pictures become attachments again."""
        if not self.messages:
            return None
        content = self.messages.pop()["content"]
        if isinstance(content, str):
            return content
        self._pictures = [
            (Path("(attached)"), part["image_url"]["url"]) for part in content if part["type"] == "image_url"
        ]
        return "\n".join(part["text"] for part in content if part["type"] == "text")

    def forget_answer(self) -> bool:
        """Remove everything after the last user or tool message, for another answer; False without such a message."""
        said = [place for place, message in enumerate(self.messages) if message["role"] in ("user", "tool")]
        if not said:
            return False
        del self.messages[said[-1] + 1 :]
        return True

    def clear(self) -> None:
        self.messages.clear()
        self._pictures.clear()

    def save(self, path: Path) -> None:
        with path.open("x", encoding="utf-8") as file:
            json.dump({"messages": self.sent()}, file, ensure_ascii=False, indent=2)
            file.write("\n")

    def load(self, path: Path) -> None:
        """Replace the conversation by a file's; an error changes nothing. Raises: OSError, ValueError."""
        messages = _read_messages(path.read_text(encoding="utf-8"))
        first = messages[0] if messages and messages[0]["role"] == "system" else None
        if first is not None:
            messages = messages[1:]
        self.system = None if first is None else str(first["content"])
        self.messages = messages
        self._pictures.clear()


def picture_url(path: Path) -> str:
    """The picture as a data URL. Raises: OSError, ValueError for an unsupported format."""
    content = path.read_bytes()
    media_type = next((kind for start, kind in _PICTURES.items() if content.startswith(start)), None)
    if media_type is None or (media_type == "image/webp" and content[8:12] != b"WEBP"):
        raise ValueError("must be a picture: PNG, JPEG, GIF, BMP or WebP")
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def read_tools(path: Path) -> list[Any]:
    """The tools in a file. Raises: OSError, ValueError."""
    tools = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("must hold a JSON array of objects")
    return tools


def _read_messages(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        raise ValueError('must hold {"messages": [...]} or an array of messages')
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES or "content" not in message:
            raise ValueError(f"messages[{place}]: must have content and a role, one of {', '.join(ROLES)}")
    return messages
