"""A server that answers OpenAI's chat calls as a test has written it down, and remembers what it was asked.

It runs on threads of its own, for tests of clients that block.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG = object()
"""In the place of a piece: nothing more comes until the client leaves."""


@dataclass
class ScriptedChatServer:
    """Answers each chat call with the next of `answers`: deltas of a stream, or an error's body with its status.

    `usage`: told at the end of streams. `left`: set when a client has closed a stream that hung.
    """

    answers: list[Sequence[Any] | tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    models: Sequence[str] = ("first", "second")
    usage: Mapping[str, Any] = field(default_factory=lambda: {"prompt_tokens": 5, "completion_tokens": 2})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    owner: str = "somebody"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may leave when they like; other errors fail the test that waits for an answer."""


@contextmanager
def scripted_chat_server() -> Iterator[ScriptedChatServer]:
    """The server, listening at its `url`."""
    script = ScriptedChatServer()
    server = _Server(("127.0.0.1", 0), _handler(script))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(script: ScriptedChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/v1/models"
            listed = {"object": "list", "data": [{"id": name, "owned_by": script.owner} for name in script.models]}
            self._send(200 if known else 404, listed if known else {"error": {"message": f"no {self.path}"}})

        def do_POST(self) -> None:
            script.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = script.answers.pop(0)
            if isinstance(answer, tuple):
                self._send(*answer)
            else:
                self._stream(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the test's output is not for it."""

        def _send(self, status: int, value: Mapping[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, deltas: Sequence[Any]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()  # without a length: the connection's end is the answer's
            for delta in deltas:
                if delta is HANG:
                    self.rfile.read(1)  # returns when the client has closed the connection
                    script.left.set()
                    return
                event = delta if "error" in delta else {"choices": [{"index": 0, "delta": delta}]}
                self._event(json.dumps(event))
            self._event(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
            self._event(json.dumps({"choices": [], "usage": script.usage}))
            self._event("[DONE]")

        def _event(self, data: str) -> None:
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()

    return Handler


def said(*texts: str) -> list[dict[str, str]]:
    """The deltas of an answer that comes in these pieces."""
    return [{"content": text} for text in texts]
