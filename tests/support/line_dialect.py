"""A dialect that is easy to read in assertions: JSON in, one line per event out, its name in every error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.errors import InvalidPayload, ServerError
from dragoman.server.api import Call, Dialect, Encoder, Head, HttpCall, IndexedEvent, ModelProfile, PureDialect, Reply
from dragoman.server.apis import set_up_all
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult, TextPrompt

STATUS = {
    "not_found": 404,
    "unauthorized": 401,
    "forbidden": 403,
    "rate_limited": 429,
    "too_large": 413,
    "overloaded": 503,
    "timeout": 504,
    "engine_dead": 500,
    "unknown_path": 404,
    "wrong_method": 405,
    "unavailable": 503,
}


class LineEncoder(Encoder):
    """One line per event: the request's index and the text. `is_cutting`: errors after the head cut the connection."""

    def __init__(self, *, is_cutting: bool = False, fails_at: str = "", padding: int = 0) -> None:
        self._is_cutting = is_cutting
        self._padding = " " * padding
        self._fails_at = fails_at

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        if self._fails_at == "full":
            raise RuntimeError("defect in full")
        lines = [f"{index}:{result.sequences[0].text}\n" for index, result in enumerate(results)]
        return Reply(200, "".join(lines).encode(), "text/plain")

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        if self._fails_at == "head":
            raise RuntimeError("defect in head")
        return Head("text/plain", 200, {"x-events-at-head": str(len(events)), "trailer": "X-Count"})

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        if self._fails_at == "event":
            raise RuntimeError("defect in event")
        return f"{request_index}:{event.text}{self._padding}\n".encode()

    def end(self) -> bytes:
        return b"the end\n"

    def stream_error(self, error: ServerError) -> bytes | None:
        if self._fails_at == "stream_error":
            raise RuntimeError("defect in stream_error")
        return None if self._is_cutting else f"error {error.kind}\n".encode()

    def trailers(self) -> Sequence[tuple[str, str]]:
        return (("X-Count", "1"),)


@dataclass(frozen=True)
class LineDialect(PureDialect):
    """Body: `{"prompts", "max_tokens", "stream", "hold_s", "ignored", "cut", "fails_at", "padding"}`, all optional."""

    name: str

    def parse(self, http: HttpCall) -> Call:
        try:
            body: dict[str, Any] = msgspec.json.decode(http.body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise InvalidPayload(f"{self.name} cannot read the body") from error
        if body.get("fails_at") == "parse":
            raise RuntimeError("defect in parse")
        prompts = body.get("prompts", ["hello"])
        requests = tuple(
            GenerationRequest(
                http.request_id if len(prompts) == 1 else f"{http.request_id}-{index}",
                TextPrompt(prompt),
                max_tokens=body.get("max_tokens"),
            )
            for index, prompt in enumerate(prompts)
        )
        return Call(
            requests,
            LineEncoder(
                is_cutting=body.get("cut", False), fails_at=body.get("fails_at", ""), padding=body.get("padding", 0)
            ),
            stream=body.get("stream", False),
            idle=dict.fromkeys(body.get("ignored", ()), ""),
            hold_s=body.get("hold_s", 0.0),
        )

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        body = {"dialect": self.name, "kind": error.kind, "message": error.message}
        return Reply(STATUS.get(error.kind, 400), msgspec.json.encode(body), "application/json")


def line_dialects(**replacements: Dialect) -> dict[str, Dialect]:
    """A line dialect in the place of every real one, each with its name; `replacements` by name."""
    return {name: replacements.get(name, LineDialect(name)) for name in set_up_all(ModelProfile())}
