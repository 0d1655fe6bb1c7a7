"""Documents on disk, one file each, which survive whatever happens to the process or the machine.

Does: read all of them once, write one atomically, delete it. Does not: know what they say. Called by `store`, on any
thread, one at a time for each document.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

_SUFFIX = ".json"

logger = logging.getLogger("dragoman.server")


class Document(Protocol):
    """A document that is kept. `id`: letters, digits, - and _."""

    @property
    def id(self) -> str: ...


D = TypeVar("D", bound=Document)


class Records(Generic[D]):
    """The documents of one kind in a directory, by their ids."""

    def __init__(self, directory: Path, kind: type[D]) -> None:
        """Reads all of them; one that cannot be read is left where it is, and named in the log. Raises: OSError."""
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
        """All documents."""
        return list(self._documents.values())

    def get(self, document_id: str) -> D | None:
        """The document of that id."""
        return self._documents.get(document_id)

    def put(self, document: D, encoded: bytes | None = None) -> None:
        """Keep the document, replacing the one with its id. It is on the disk when this returns. Raises: OSError.

        `encoded`: the same as JSON, if the caller has it.
        """
        path = self._directory / f"{document.id}{_SUFFIX}"
        write_whole(path, encoded or msgspec.json.encode(document))
        self._documents[document.id] = document

    def drop(self, document_id: str) -> None:
        """Forget the document. Raises: OSError."""
        self._documents.pop(document_id, None)
        (self._directory / f"{document_id}{_SUFFIX}").unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Have the file hold the content, or stay what it was. Raises: OSError."""
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


def sync_directory(path: Path) -> None:
    """Have the directory's names last whatever happens to the machine. Raises: OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
