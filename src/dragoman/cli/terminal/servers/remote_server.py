"""A server at a URL, called over HTTP on the main thread, where Ctrl-C ends a wait."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from dragoman.cli.terminal.servers.answers import MODELS_PATH, AskFailed, ModelServer, read_json

_TIMEOUT_S = 600.0  # between two pieces: a long prompt may wait in a queue
_CHUNK_BYTES = 65536
_TELLING = ("dragoman", "llamacpp")  # owners of models on servers with `return_progress`


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
