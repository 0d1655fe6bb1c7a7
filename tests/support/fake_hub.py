"""A Hugging Face hub on loopback: the calls that huggingface_hub makes to list and download a model, and their failures.

Plain HTTP, one thread for each connection. Source: huggingface.co/docs/hub/api and what huggingface_hub sends.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 1000  # bytes from which a file counts as one of Git LFS


@dataclass
class FakeRepository:
    """One model. `token`: who may read it, "" = everybody. `is_gated`: listed, but its files need a token."""

    files: dict[str, bytes]
    token: str = ""
    is_gated: bool = False
    tags: tuple[str, ...] = ()

    @property
    def commit(self) -> str:
        """The only commit, which changes with the files."""
        listed = [f"{name}:{hashlib.sha256(data).hexdigest()}" for name, data in sorted(self.files.items())]
        return hashlib.sha1("\n".join(listed).encode()).hexdigest()

    def has(self, revision: str) -> bool:
        """True for the branch, the tags and the commit."""
        return revision in ("main", self.commit, *self.tags)


@dataclass
class FakeHub:
    """What it serves, how it fails, and what it was asked. `requests`: method and path of each, in order."""

    url: str = ""
    repositories: dict[str, FakeRepository] = field(default_factory=dict)
    breaks: dict[str, list[int]] = field(default_factory=dict)  # file name -> bytes after which each answer breaks off
    is_failing: bool = False  # 500 for everything
    waits: dict[str, threading.Event] = field(default_factory=dict)  # file name -> half of it comes after that
    reached_half: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    bytes_sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, files: Mapping[str, bytes], **facts: Any) -> FakeRepository:
        """A repository with these files."""
        self.repositories[name] = FakeRepository(dict(files), **facts)
        return self.repositories[name]

    def asked_for(self, name: str) -> int:
        """How often this file was asked for with GET."""
        return sum(method == "GET" and path.endswith(f"/{name}") for method, path in self.requests)


def etag(data: bytes) -> str:
    """What the hub calls these contents."""
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub without repositories, on a free port."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        for event in hub.waits.values():
            event.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or heads and bodies wait for each other

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.hub.requests.append((self.command, urlsplit(self.path).path))
        if self.hub.is_failing:
            self._refuse(500, "", "the hub is tired")
        elif parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._tell("/".join(parts[2:4]), parts[4] if len(parts) > 4 else "revision", "/".join(parts[5:]) or "main")
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._send_file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._refuse(404, "", "no such route")

    def _tell(self, name: str, what: str, revision: str) -> None:
        repository = self._readable(name, revision)
        if repository is None:
            return
        if what == "tree":
            self._json([_tree_entry(path, data) for path, data in sorted(repository.files.items())])
            return
        siblings = [_sibling(path, data) for path, data in sorted(repository.files.items())]
        self._json({"id": name, "modelId": name, "sha": repository.commit, "private": False, "siblings": siblings,
                    "gated": "manual" if repository.is_gated else False, "tags": [], "downloads": 0})  # fmt: skip

    def _readable(self, name: str, revision: str, *, files: bool = False) -> FakeRepository | None:
        """The repository, or None after the refusal was sent."""
        repository = self.hub.repositories.get(name)
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if repository is None or (repository.token and not repository.is_gated and token != repository.token):
            self._refuse(401 if not token else 404, "RepoNotFound", "Repository not found")
            return None
        if files and repository.is_gated and token != repository.token:
            self._refuse(403 if token else 401, "GatedRepo", "Access to this model is restricted")
            return None
        if not repository.has(revision):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository

    def _send_file(self, name: str, revision: str, path: str) -> None:
        repository = self._readable(name, revision, files=True)
        if repository is None:
            return
        data = repository.files.get(path)
        if data is None:
            self._refuse(404, "EntryNotFound", "Entry not found", commit=repository.commit)
            return
        begin = self._begin(len(data))
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{etag(data)}"')
        self.send_header("X-Repo-Commit", repository.commit)
        if len(data) >= LARGE:
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("X-Linked-Etag", f'"{etag(data)}"')
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if self.command == "GET":
            self._send_body(path, data[begin:])

    def _begin(self, size: int) -> int:
        wanted = self.headers.get("range") or ""
        if self.command == "GET" and wanted:
            self.hub.ranges.append(wanted)
        begin = wanted.removeprefix("bytes=").partition("-")[0]
        return min(int(begin), size - 1) if begin.isdecimal() else 0

    def _send_body(self, path: str, body: bytes) -> None:
        breaks = self.hub.breaks.get(path)
        end = breaks.pop(0) if breaks else len(body)
        event = self.hub.waits.get(path)
        if event is not None:
            self._write(body[: len(body) // 2])
            self.hub.reached_half.set()
            event.wait(60)
            body, end = body[len(body) // 2 :], end - len(body) // 2
        self._write(body[:end])
        if end < len(body):
            self.close_connection = True

    def _write(self, data: bytes) -> None:
        with self.hub.lock:
            self.hub.bytes_sent += len(data)  # before: whoever has the last byte may ask at once
        self.wfile.write(data)
        self.wfile.flush()

    def _refuse(self, status: int, code: str, message: str, commit: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _sibling(path: str, data: bytes) -> dict[str, Any]:
    plain = {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
    if len(data) < LARGE:
        return plain | {"blobId": etag(data)}
    return plain | {"lfs": {"size": len(data), "sha256": etag(data), "pointerSize": 130}}


def _tree_entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
    if len(data) >= LARGE:
        entry["lfs"] = {"size": len(data), "oid": etag(data), "pointerSize": 130}
    return entry
