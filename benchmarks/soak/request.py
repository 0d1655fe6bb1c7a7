"""What one client does once: what it sends, how it reads, and which answers are right.

Does: hold it; read from an answer how many tokens it tells. Does not: send (`client` does) or choose (`kinds`, `faults`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ANSWERED = frozenset({200, 206})
REFUSED = frozenset({429, 503})
WRONG = frozenset({400, 422, 424})
"""What the APIs say of a request that cannot be served as it is."""
UNREAD = frozenset({408, 431})
"""What is said before any operation has the request: such an answer has no line in the log."""


class Tokens(NamedTuple):
    """What an answer tells of its tokens; None = it does not say."""

    prompt: int | None
    completion: int


TokenReader = Callable[[bytes], Tokens | None]


@dataclass(frozen=True, slots=True)
class Request:
    """One request and how its client behaves.

    `allowed`: the right statuses. `leave_after`: bytes of the answer after which the client closes the connection (0: at
    once, None: it reads to the end). `pause_s`: between the pieces that it reads. `sent_bytes`: of the body, before the
    client closes the connection (None: all of it), unless it is answered within `hold_s`. `trailers`: behind a body that is
    sent in chunks (None: it has a length). `raw`: sent as it is, instead of a request. `behind`: requests that are sent on
    the same connection without waiting. `num_beside`: other clients that send the same at the same moment. `cancel_after`:
    bytes of the answer after which it is cancelled on another connection. `may_be_cut`: its answer may break off, since
    something is done to it. `is_call`: the server has to log a line for it (None: if it is answered, but for `UNREAD`; it
    may, if the client leaves). `tokens` reads what a complete answer tells.
    """

    kind: str
    path: str
    content: bytes
    allowed: frozenset[int]
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    leave_after: int | None = None
    pause_s: float = 0.0
    sent_bytes: int | None = None
    hold_s: float = 0.0
    trailers: bytes | None = None
    raw: bytes | None = None
    behind: tuple[Request, ...] = ()
    num_beside: int = 0
    cancel_after: int | None = None
    may_be_cut: bool = False
    is_call: bool | None = True
    tokens: TokenReader | None = None


def usage_tokens(body: bytes) -> Tokens | None:
    """Of an answer in OpenAI's form."""
    usage = json.loads(body)["usage"]
    return Tokens(usage["prompt_tokens"], usage["completion_tokens"])


def last_usage_tokens(body: bytes) -> Tokens | None:
    """Of a stream in OpenAI's form whose last piece has the usage; None if it ended with an error."""
    pieces = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    usage = pieces[-1].get("usage") if pieces else None
    return None if usage is None else Tokens(usage["prompt_tokens"], usage["completion_tokens"])


def detail_tokens(body: bytes) -> Tokens | None:
    """Of an answer with LMI's `details`."""
    return Tokens(None, json.loads(body)["details"]["generated_tokens"])


def last_detail_tokens(body: bytes) -> Tokens | None:
    """Of TGI's stream; None if it ended with an error."""
    pieces = [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]
    details = pieces[-1].get("details") if pieces else None
    return None if details is None else Tokens(details["input_length"], details["generated_tokens"])
