"""Stored responses on disk, which outlive the server. Called on the event loop, writes on a thread of its own."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from dragoman.server.apis.responses.schema import Response, ResponseFailure
from dragoman.server.batches.records import Records, write_whole

_SECRET_BYTES = 32

logger = logging.getLogger("dragoman.server")


class ResponseDocument(msgspec.Struct, frozen=True):
    """A response as it is kept. `used_s`: seconds since the epoch. `has_ended` False = it is made in the background."""

    id: str
    owner: str
    used_s: float
    has_ended: bool
    response: Response
    items: tuple[dict[str, Any], ...]
    output: tuple[dict[str, Any], ...]


class ResponseDisk:
    def __init__(self, directory: Path) -> None:
        """Reads none of them yet. Raises: OSError."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._records: Records[ResponseDocument] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dragoman-responses")
        secret = directory / "secret"
        if not secret.exists():
            write_whole(secret, secrets.token_bytes(_SECRET_BYTES))
        self.secret = secret.read_bytes()

    def read(self) -> list[tuple[ResponseDocument, int]]:
        """The responses and their bytes, the longest unused first; unfinished ones have failed. Called once, on a thread."""
        self._records = Records(self._directory, ResponseDocument)
        documents = []
        for found in sorted(self._records.all(), key=lambda one: one.used_s):
            document = found
            if not found.has_ended:
                failure = ResponseFailure("server_error", "the server ended while the response was made")
                response = msgspec.structs.replace(found.response, status="failed", error=failure)
                document = msgspec.structs.replace(found, response=response, has_ended=True)
            encoded = msgspec.json.encode(document)
            if document is not found:
                self.put(document, encoded)
            documents.append((document, len(encoded)))
        return documents

    def put(self, document: ResponseDocument, encoded: bytes) -> None:
        """Keep it, soon. `encoded`: the same as JSON."""
        self._submit(document.id, "is not kept on disk", lambda records: records.put(document, encoded))

    def drop(self, response_id: str) -> None:
        self._submit(response_id, "stays on disk", lambda records: records.drop(response_id))

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    def _submit(self, response_id: str, fault: str, work: Callable[[Records[ResponseDocument]], None]) -> None:
        def write() -> None:
            assert self._records is not None
            try:
                work(self._records)
            except OSError as error:
                logger.error("response %s %s: %s", response_id, fault, error)

        self._writer.submit(write)
