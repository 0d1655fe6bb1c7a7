"""The servers of `chat` and `complete`, called by OpenAI's API on the main thread, where Ctrl-C ends a wait.

A server is at a URL, over HTTP, or a model in this process (`local_model`). Reads their answers and errors.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

CHAT_PATH, COMPLETIONS_PATH, MODELS_PATH = "/chat/completions", "/completions", "/models"
MAX_ERROR_CHARS = 500
_TIMEOUT_S = 600.0  # between two pieces: a long prompt may wait in a queue
_CHUNK_BYTES = 65536
_TELLING = ("dragoman", "llamacpp")  # owners of models on servers with `return_progress`


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


class RemoteAnswer:
    """An answer over HTTP; closing its connection cancels the request."""

    def __init__(self, response: http.client.HTTPResponse | urllib.error.HTTPError, url: str) -> None:
        self.status: int = response.status or 0
        self._response = response
        self._url = url

    def chunks(self) -> Iterator[bytes]:
        try:
            while piece := self._response.read1(_CHUNK_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise AskFailed(f"the answer of {self._url} broke off: {error!r}") from None

    def close(self) -> None:
        self._response.close()


class RemoteServer:
    """The server at `url`, with or without the version in its path. `model` None = the first of the server's list.

    Raises: AskFailed for an empty list or an unreachable server.
    """

    def __init__(self, url: str, model: str | None, key: str) -> None:
        self.label = url
        self._base = url if urlsplit(url).path.strip("/") else f"{url}/v1"
        self._headers = {"content-type": "application/json", "accept": "text/event-stream, application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self.tells_progress = False
        self.model = model or self._first_model()

    def send(self, path: str, body: Mapping[str, Any] | None = None) -> RemoteAnswer:
        url = self._base + path
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(url, data, self._headers)
            return RemoteAnswer(urllib.request.urlopen(request, timeout=_TIMEOUT_S), url)
        except urllib.error.HTTPError as error:
            return RemoteAnswer(error, url)
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise AskFailed(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from None

    def close(self) -> None:
        """Do nothing: connections end with their answers."""

    def _first_model(self) -> str:
        try:
            listed = _listed_models(self)
        except AskFailed as error:
            raise AskFailed(f"{self.label} does not list its models ({error}); name one with --remote-model") from None
        if not listed:
            raise AskFailed(f"{self.label} lists no models; name one with --remote-model")
        self.tells_progress = str(listed[0].get("owned_by")) in _TELLING
        return str(listed[0]["id"])


def model_names(server: ModelServer) -> list[str]:
    return [str(entry["id"]) for entry in _listed_models(server)]


def _listed_models(server: ModelServer) -> list[dict[str, Any]]:
    listed = read_json(server, MODELS_PATH)
    entries = listed.get("data") if isinstance(listed, dict) else None
    return [entry for entry in entries or () if isinstance(entry, dict) and "id" in entry]


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


class FunctionPiece(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallPiece] | None = None


class ChatChoice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None


class CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class ChatEvent(msgspec.Struct):
    choices: list[ChatChoice] | None = None
    usage: Usage | None = None
    prompt_progress: dict[str, int | float | None] | None = None


class TokenLogprobs(msgspec.Struct):
    """Tokens with their log-probabilities; None for the first token of a prompt."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class TextChoice(msgspec.Struct):
    text: str | None = None
    logprobs: TokenLogprobs | None = None


class TextEvent(msgspec.Struct):
    choices: list[TextChoice] | None = None


Event = TypeVar("Event", ChatEvent, TextEvent)


def events(answer: Answer, kind: type[Event]) -> Iterator[Event]:
    """The events of a stream. Raises: AskFailed for a refusal, an error in the stream or an event of another form."""
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
        try:
            understood = msgspec.convert(event, kind)
        except msgspec.ValidationError as error:
            raise AskFailed(f"an event of the stream is not understood: {error}: {_shown(data)}") from None
        yield understood


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
