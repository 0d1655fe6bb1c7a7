"""Calls to a server with OpenAI's API, remote or local, and their answers, on the main thread."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

CHAT_PATH, COMPLETIONS_PATH, MODELS_PATH = "/chat/completions", "/completions", "/models"
MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to ask. `url` None = a model loaded here. `model` None = the first. `key_variable`: of the environment."""

    url: str | None = None
    model: str | None = None
    key_variable: str = ""


class AskFailed(Exception):
    """There is no answer, or an incomplete one; the message is one line for people."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Answer(Protocol):
    """An incoming answer. `close` before its end cancels the request; a second one does nothing."""

    status: int

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives. Raises: AskFailed if it breaks off."""
        ...

    def close(self) -> None: ...


class ModelServer(Protocol):
    """Answers calls. `model`: the model name to send in calls; `label`: its name for people.

    `tells_progress`: it knows `return_progress`; others may refuse a parameter that they do not know.
    """

    model: str
    label: str
    tells_progress: bool

    def send(self, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Post `body`, or get without one. Raises: AskFailed if no server is there."""
        ...

    def close(self) -> None: ...


def read_json(server: ModelServer, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The whole answer as JSON. Raises: AskFailed, also for a refusal."""
    answer = server.send(path, body)
    try:
        raw = b"".join(answer.chunks())
    finally:
        answer.close()
    if answer.status != 200:
        raise AskFailed(refusal(answer.status, raw))
    try:
        return json.loads(raw)
    except ValueError:
        raise AskFailed(f"{server.label} did not answer with JSON: {_shown(raw)}") from None


def events(answer: Answer) -> Iterator[Mapping[str, Any]]:
    """The objects of an event stream. Raises: AskFailed for a refusal or an error in the stream."""
    if answer.status != 200:
        raise AskFailed(refusal(answer.status, b"".join(answer.chunks())))
    for line in _lines(answer.chunks()):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise AskFailed(f"an event of the stream is not JSON: {_shown(data)}") from None
        if not isinstance(event, dict) or event.get("error"):
            raise AskFailed(_error_text(event) or f"an event of the stream is not an object: {_shown(data)}")
        yield event


def refusal(status: int, raw: bytes) -> str:
    try:
        text = _error_text(json.loads(raw))
    except ValueError:
        text = ""
    return f"refused with {status}: {text or _shown(raw) or 'without a reason'}"


def _error_text(body: Any) -> str:
    """The message in an error's body, OpenAI's object or a text; "" without one."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error") or body.get("message") or body.get("detail") or ""
    if isinstance(error, dict):
        error = error.get("message") or json.dumps(error)
    return str(error)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def _shown(raw: bytes) -> str:
    return raw[:MAX_ERROR_CHARS].decode("utf-8", "replace")
