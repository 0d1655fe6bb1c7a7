"""Connections that follow from dice: several requests at once, framed as is allowed, and as is not.

Does: say what is sent, in which pieces, and what may be answered. Does not: send it, or judge answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.fuzz.cases import Case, Maker

HIDDEN = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-request-id: smuggled\r\n\r\n"
"""What no server may take for a request: it stands in bodies, chunks and trailers, and behind what cannot be read."""

_PING = b"GET /ping HTTP/1.1\r\n"
_POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
_CHUNKED = _POST + b"transfer-encoding: chunked\r\n\r\n"
ODD_HEADS = (
    _PING + b"\r\n",
    _PING + b"host: x\r\nhost: x\r\n\r\n",
    _PING + b"host: a b\r\n\r\n",
    _PING + b"host: x\r\nx y: 1\r\n\r\n",
    _PING + b"host: x\r\nx: 1\r\n folded: 2\r\n\r\n",
    _PING + b"host: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    b"GET /ping HTTP/2.0\r\nhost: x\r\n\r\n",
    b"GET /ping HTTP/0.9\r\nhost: x\r\n\r\n",
    b"BREW /ping HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /p\x00ing HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\r\n\r\n",
    _POST + b"content-length: 2, 2\r\n\r\n{}",
    _POST + b"content-length: -1\r\n\r\n{}",
    _POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    _POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    _POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    _POST + b"transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    _POST + b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    _CHUNKED + b"-1\r\n",
    _CHUNKED + b"2\r\n{}xx\r\n",
    _CHUNKED + b"0\r\na b: 1\r\n\r\n",
    _CHUNKED + b"0\r\n" + b"a: b\r\n" * 60_000,
    _CHUNKED + b"1;" + b"a=b;" * 90_000,
)
"""Each is refused as soon as it is here."""
UPGRADES = (
    ("connection", "Upgrade, HTTP2-Settings"),
    ("upgrade", "h2c"),
    ("http2-settings", "AAEAAEAA"),
)
TRAILERS = (
    b"x-request-id: trailer\r\n",
    b"x-evil: 1\r\n",
    b"authorization: Bearer x\r\n",
    b"host: evil\r\n",
    b"a:\r\n" * 50,
    b"content-type: text/plain\r\n",
    b"x-dragoman-strict: nonsense\r\n",
    b"expect: 100-continue\r\n",
    b"connection: close\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
)


@dataclass(frozen=True)
class Talk:
    """What is sent on one connection. `requests`: those that may be answered, in this order.

    `is_odd`: what follows them is refused, and nothing behind it read. `is_left`: the client closes without reading.
    """

    requests: tuple[Case, ...]
    pieces: tuple[bytes, ...]
    is_odd: bool = False
    is_left: bool = False


def make_talk(maker: Maker) -> Talk:
    """The next one."""
    dice = maker.dice
    requests: list[Case] = []
    while len(requests) < dice.choice((1, 2, 2, 3, 5)):
        case = maker.case()
        if case.operation is not None and not any(name == "expect" for name, _ in case.headers):
            requests.append(case)
    is_odd = dice.random() < 0.4
    framed = [_framed(dice, case, is_last=case is requests[-1] and not is_odd) for case in requests]
    sent = b"".join(framed) + (dice.choice(ODD_HEADS) + HIDDEN * 2 if is_odd else b"")
    if dice.random() < 0.25:
        return Talk(tuple(requests), _pieces(dice, sent[: dice.randrange(1, len(sent) + 1)]), is_left=True)
    return Talk(tuple(requests), _pieces(dice, sent), is_odd)


def _framed(dice: random.Random, case: Case, *, is_last: bool) -> bytes:
    """A request with a body of known length or in chunks, and perhaps an offer to speak something else."""
    fields = [("host", dice.choice(("test", "127.0.0.1:80", "[::1]", ""))), *case.headers]
    body = case.body
    if body and dice.random() < 0.5:
        fields.append(("Transfer-Encoding", dice.choice(("chunked", "Chunked"))))
        body = _chunks(dice, body)
    elif body or case.method != "GET":
        fields.append(("Content-Length", str(len(body))))
    if is_last:
        fields.append(("connection", "close"))
    elif dice.random() < 0.2 and not any(name == "upgrade" for name, _ in fields):
        fields += UPGRADES
    lines = [f"{case.method} {case.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    return dice.choice((b"", b"", b"\r\n")) + head + body


def _chunks(dice: random.Random, body: bytes) -> bytes:
    """The body in chunks, with extensions and trailers that mean nothing."""
    made, place = [], 0
    while place < len(body):
        piece = body[place : place + dice.choice((1, 7, 100, 5000))]
        extension = dice.choice((b"", b"", b";a=b", b';q="\\r\\n"'))
        made.append(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece))
        place += len(piece)
    trailers = b"".join(dice.sample(TRAILERS, dice.choice((0, 0, 1, 3))))
    return b"".join(made) + b"0\r\n" + trailers + b"\r\n"


def _pieces(dice: random.Random, sent: bytes) -> tuple[bytes, ...]:
    """What goes into each write."""
    places = sorted(dice.randrange(len(sent) + 1) for _ in range(dice.choice((0, 0, 1, 3, 10))))
    return tuple(sent[begin:end] for begin, end in zip([0, *places], [*places, len(sent)], strict=True) if begin < end)
