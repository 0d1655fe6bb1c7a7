"""Servers of language models that answer at once, each in the form of its API; they keep what they were asked.

They run on threads of their own, because the command under test has an event loop of its own.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECES = ("One", " two", " three")
PROMPT_TOKENS, OUTPUT_TOKENS = 7, 4  # one more than the pieces: the token that ends the text has none

Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What is sent back. `chunks`: of the body; `is_cut`: the connection is closed without the last, empty chunk; `closes`:
    it is closed behind that, which the head does not say."""

    chunks: Sequence[bytes]
    status: int = 200
    is_cut: bool = False
    closes: bool = False


def sse(*events: object) -> list[bytes]:
    """A chunk for each event; a string stands there as it is."""
    return [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in events]


def lines(*objects: object) -> list[bytes]:
    """A chunk for each line of JSON."""
    return [json.dumps(one).encode() + b"\n" for one in objects]


def chat(pieces: Sequence[str] = PIECES) -> list[bytes]:
    first = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    middle = [{"choices": [{"delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS}}
    return sse(first, *middle, last, usage, "[DONE]")


def completions(pieces: Sequence[str] = PIECES) -> list[bytes]:
    middle = [{"choices": [{"text": piece, "finish_reason": None}]} for piece in pieces]
    usage = {"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS}}
    return sse(*middle, {"choices": [{"text": "", "finish_reason": "stop"}]}, usage, "[DONE]")


def responses(pieces: Sequence[str] = PIECES) -> list[bytes]:
    middle = [{"type": "response.output_text.delta", "delta": piece} for piece in pieces]
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    done = {"type": "response.completed", "response": {"usage": usage}}
    return sse({"type": "response.created", "response": {"usage": None}}, *middle, done)


def messages(pieces: Sequence[str] = PIECES) -> list[bytes]:
    usage = {"input_tokens": PROMPT_TOKENS - 5, "cache_read_input_tokens": 5, "output_tokens": 1}
    start = {"type": "message_start", "message": {"usage": usage}}
    middle = [{"type": "content_block_delta", "delta": {"text": piece}} for piece in pieces]
    return sse(
        start, *middle, {"type": "message_delta", "usage": {"output_tokens": OUTPUT_TOKENS}}, {"type": "message_stop"}
    )


def _tokens(pieces: Sequence[str]) -> list[Body]:
    details = {"finish_reason": "eos_token", "generated_tokens": OUTPUT_TOKENS, "input_length": PROMPT_TOKENS}
    events: list[Body] = [{"token": {"id": 1, "text": piece}, "generated_text": None} for piece in pieces]
    return [*events, {"token": {"id": 2, "text": ""}, "generated_text": "".join(pieces), "details": details}]


def lmi(pieces: Sequence[str] = PIECES) -> list[bytes]:
    return lines(*_tokens(pieces))


def tgi(pieces: Sequence[str] = PIECES) -> list[bytes]:
    return sse(*_tokens(pieces))


def _ollama_end() -> Body:
    return {"done": True, "prompt_eval_count": PROMPT_TOKENS, "eval_count": OUTPUT_TOKENS}


def ollama(pieces: Sequence[str] = PIECES) -> list[bytes]:
    middle = [{"message": {"role": "assistant", "content": piece}, "done": False} for piece in pieces]
    return lines(*middle, {"message": {"role": "assistant", "content": ""}, **_ollama_end()})


def ollama_generate(pieces: Sequence[str] = PIECES) -> list[bytes]:
    return lines(*({"response": piece, "done": False} for piece in pieces), {"response": "", **_ollama_end()})


def text(pieces: Sequence[str] = PIECES) -> list[bytes]:
    return [piece.encode() for piece in pieces]


def text_batch(pieces: Sequence[str] = PIECES) -> list[bytes]:
    return [json.dumps([{"id": "0", "data": "".join(pieces)}]).encode()]


def embeddings(pieces: Sequence[str] = PIECES) -> list[bytes]:
    rows = [{"index": index, "embedding": [0.5, 0.5]} for index, _ in enumerate(pieces)]
    return [json.dumps({"data": rows, "usage": {"prompt_tokens": PROMPT_TOKENS}}).encode()]


def rerank(pieces: Sequence[str] = PIECES) -> list[bytes]:
    rows = [{"index": index, "relevance_score": 0.5} for index, _ in enumerate(pieces)]
    return [json.dumps({"results": rows, "usage": {"total_tokens": PROMPT_TOKENS}}).encode()]


ANSWERS: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "chat": ("/v1/chat/completions", chat),
    "completions": ("/v1/completions", completions),
    "responses": ("/v1/responses", responses),
    "messages": ("/v1/messages", messages),
    "ovms": ("/v3/chat/completions", chat),
    "ovms-completions": ("/v3/completions", completions),
    "lmi": ("/invocations", lmi),
    "tgi": ("/generate_stream", tgi),
    "ollama": ("/api/chat", ollama),
    "ollama-generate": ("/api/generate", ollama_generate),
    "text": ("/api/generate-one", text),
    "embeddings": ("/v1/embeddings", embeddings),
    "rerank": ("/v1/rerank", rerank),
    "text-batch": ("/api/generate-batch", text_batch),
}
"""Path and answer by the name of the API."""


@dataclass
class Asked:
    """One request that came."""

    path: str
    headers: dict[str, str]
    body: Body


@dataclass
class FakeServer:
    """`answer`: what to answer a POST, None = 404. `lists`: what GETs are answered. `asked`: the POSTs in their order."""

    answer: Callable[[Asked], Answer | None]
    lists: dict[str, object] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


def speaking(*names: str) -> FakeServer:
    """One that speaks these APIs, and lists a model where they do."""
    made = {ANSWERS[name][0]: ANSWERS[name][1] for name in names}
    openai: object = {"object": "list", "data": [{"id": "fake"}]}
    lists = {"/v1/models": openai, "/v3/models": openai, "/api/tags": {"models": [{"name": "fake:latest"}]}}
    return FakeServer(lambda asked: Answer(made[asked.path]()) if asked.path in made else None, lists)


def saying(*answers: Answer, api: str = "completions") -> FakeServer:
    """One that answers the n-th request with the n-th answer, and all further ones with the last."""
    left = list(answers)
    lock = threading.Lock()

    def answer(asked: Asked) -> Answer | None:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return FakeServer(answer, {"/v1/models": {"data": [{"id": "fake"}]}})


@contextmanager
def listening(server: FakeServer, tls: ssl.SSLContext | None = None) -> Iterator[FakeServer]:
    """The server at `server.url`, until the end of the block."""
    http = _QuietServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    if tls is not None:
        # The handshake is left to the threads of the connections: the one that accepts must not wait, or fail with it.
        http.socket = tls.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
    server.url = f"http{'s' if tls else ''}://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join(timeout=10)


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that leave."""


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or heads and bodies wait for each other

        def do_GET(self) -> None:
            found = server.lists.get(self.path)
            self._send(Answer([json.dumps(found).encode()], 200 if found is not None else 404))

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()}, json.loads(content))
            server.asked.append(asked)
            with suppress(ConnectionError):  # the client did not want to wait
                self._send(server.answer(asked) or Answer([b'{"error": "no such path"}'], 404))

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for chunk in answer.chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if not answer.is_cut:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = answer.is_cut or answer.closes

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
