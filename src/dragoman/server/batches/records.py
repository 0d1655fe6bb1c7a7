"""Documents on disk, one file each, written atomically. On any thread, one at a time for each document."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from dragoman.batch.answers import sync_directory

_SUFFIX = ".json"

logger = logging.getLogger("dragoman.server")


class Document(Protocol):
    """`id`: letters, digits, - and _."""

    @property
    def id(self) -> str: ...


D = TypeVar("D", bound=Document)


class Records(Generic[D]):
    """The documents of one kind in a directory, by their ids."""

    def __init__(self, directory: Path, kind: type[D]) -> None:
        """Reads all documents; an unreadable one stays where it is and is logged. Raises: OSError."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._kind = kind
        self._documents: dict[str, D] = {}
        found: list[D] = []
        for path in directory.glob(f"*{_SUFFIX}"):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=kind))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                logger.error("%s: cannot be read, and is left alone: %s", path, " ".join(str(error).split()))
        for document in found:
            self._documents[document.id] = document

    def __len__(self) -> int:
        return len(self._documents)

    def all(self) -> list[D]:
        return list(self._documents.values())

    def get(self, document_id: str) -> D | None:
        return self._documents.get(document_id)

    def put(self, document: D, encoded: bytes | None = None) -> None:
        """Write the document, replacing the one with its id. It is on the disk when this returns. Raises: OSError."""
        path = self._directory / f"{document.id}{_SUFFIX}"
        write_whole(path, encoded or msgspec.json.encode(document))
        self._documents[document.id] = document

    def drop(self, document_id: str) -> None:
        """Delete the document. Raises: OSError."""
        self._documents.pop(document_id, None)
        (self._directory / f"{document_id}{_SUFFIX}").unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write the file completely or not at all. Raises: OSError."""
    beside = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
