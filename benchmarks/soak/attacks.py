"""Requests by which one client could harm the others, if the server let it.

Does: make requests that are framed oddly, that come in a row, that are held back, that are large in structure, whose
pictures, grammars and templates take much, that browsers send for pages of others, and that are meant for another host. Does
not: send them. Called by `mix`, and `__main__` for what the server has to be told.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.soak.client import KEY
from benchmarks.soak.faults import FAULTS, MAX_REQUEST_BYTES, RUN_AWAY, SWELL
from benchmarks.soak.kinds import KINDS, MODEL, invalid, valid
from benchmarks.soak.request import ANSWERED, REFUSED, WRONG, Request

SEEING = "seeing"
"""The name of the model that takes pictures."""
ROOM = ("--max-body-memory", "4000000", "--max-image-memory", str(128 << 20))
"""For the bodies of ten large requests, and the pictures of one."""

_FORBIDDEN = frozenset({403})
_UNAUTHORIZED = frozenset({401})
_WRONG_KEY = {"authorization": "Bearer wrong"}
_LARGE = MAX_REQUEST_BYTES - 2_000  # bytes of a body
_MOST_BESIDE = 3  # clients that send their pictures at the moment of another one
_MOST_UPLOADS = 14  # at one moment
_PICTURES = 4  # of one request
_SIDES = (1_200, 1_600, 1_900)  # pixels; few, as what a model made of a picture is remembered, up to 256 MiB of it

_TRAILERS = (
    b"",
    b"x-request-id: trailer\r\n",
    b"host: evil.example\r\nconnection: close\r\n",
    b"authorization: Bearer wrong\r\n" + b"a:\r\n" * 1_000,
)
_AMBIGUOUS = "start: s\ns: /[a-z ]/ | s s | s s s | s s s s"
_PAGES = ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}, {"origin": "null"})
_HOST_MISTAKES = (b"", b"host: a\r\nhost: a\r\n", b"host: a b\r\n", b"host: 127.0.0.1/x\r\n")


def _any(dice: random.Random) -> Request:
    return valid(dice.choice(tuple(KINDS)), dice)


def _large_prompt(dice: random.Random) -> bytes:
    """A body that would be right, but for the length of its prompt."""
    return json.dumps({"model": MODEL, "prompt": f"{dice.random()} " * (_LARGE // 22), "max_tokens": 1}).encode()


def _trailers(dice: random.Random) -> Request:
    return replace(_any(dice), kind="trailers", trailers=dice.choice(_TRAILERS))


def _key_in_a_trailer(dice: random.Random) -> Request:
    trailers = f"authorization: Bearer {KEY}\r\napi-key: {KEY}\r\n".encode()
    return replace(_without_key(dice), kind="key in a trailer", trailers=trailers)


def _endless_trailers(dice: random.Random) -> Request:
    trailers = b"a:\r\n" * dice.choice((20_000, 60_000))
    return replace(
        _any(dice), kind="endless trailers", trailers=trailers, allowed=REFUSED | {431}, is_call=None, tokens=None
    )


def _pipeline(dice: random.Random) -> Request:
    """Several requests without waiting; some clients leave meanwhile."""
    first, *behind = [
        replace((invalid if dice.random() < 0.2 else valid)(dice.choice(tuple(KINDS)), dice), kind="pipeline")
        for _ in range(dice.randint(2, 4))
    ]
    if dice.random() < 0.5:
        return replace(first, behind=tuple(behind))
    behind = [replace(one, is_call=None) for one in behind]  # read only if those before were answered by then
    return replace(first, behind=tuple(behind), leave_after=dice.choice((0, 1, 400, 4_000)))


def _upload(dice: random.Random) -> Request:
    """Most of a large body, of known length or in chunks, and then nothing for a while."""
    content = _large_prompt(dice)
    return Request(
        "upload",
        dice.choice(("/v1/completions", "/invocations")),
        content,
        REFUSED,
        sent_bytes=dice.randrange(len(content) // 2, len(content)),
        hold_s=dice.uniform(0.1, 1.5),
        num_beside=dice.randrange(_MOST_UPLOADS),
        trailers=dice.choice((None, b"")),
        may_be_cut=True,
        is_call=None,
    )


def _without_key(dice: random.Random) -> Request:
    return replace(_any(dice), headers=_WRONG_KEY, allowed=_UNAUTHORIZED, tokens=None)


def _large_without_key(dice: random.Random) -> Request:
    """Refused before its body is here; some clients send that nevertheless, others leave."""
    content = _large_prompt(dice) * dice.choice((1, 5))
    request = replace(_without_key(dice), kind="large without a key", content=content)
    request = replace(request, trailers=dice.choice((None, b"")))
    return replace(request, leave_after=0, is_call=None) if dice.random() < 0.3 else request


def _structure(dice: random.Random) -> Request:
    inside = dice.choice(
        (
            b"[]," * 100_001 + b"0",
            b"[" * 101 + b"]" * 101,
            b'{"a":' * 101 + b"0" + b"}" * 101,
            (b"[" * 97 + b"]" * 97 + b",") * 1_100 + b"0",
            b"9" * 20_000,
        )
    )
    content = b'{"model": "%s", "prompt": "x", "inputs": "x", "x": [%s]}' % (MODEL.encode(), inside)
    if dice.random() < 0.2:
        names = b",".join(b'"%d":1' % number for number in range(1_500))
        content = b'{"model": "%s", "prompt": "x", %s}' % (MODEL.encode(), names)
    path = KINDS[dice.choice(tuple(KINDS))].path
    return Request("structure", path, content, WRONG | REFUSED | {412})  # OVMS says 412


def _png(dice: random.Random) -> bytes:
    """A picture of two colours: some hundred bytes that become megabytes."""
    width, height = dice.choice(_SIDES), dice.choice(_SIDES)
    rows = (b"\0" + b"\xaa" * (-(-width // 8))) * height
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    made = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + made


def _pictures(dice: random.Random) -> Request:
    """Several large pictures each, of several clients at once; some are none, some clients leave."""
    if dice.random() < 0.2:
        urls, allowed = ["data:image/png," + "%41" * 100_000], WRONG | REFUSED
    else:
        encoded = [base64.b64encode(_png(dice)).decode() for _ in range(_PICTURES)]
        urls, allowed = [f"data:image/png;base64,{one}" for one in encoded], ANSWERED | REFUSED
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": "What is it?"}]
    body = {"model": SEEING, "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    body["stream"] = dice.random() < 0.5
    path = dice.choice(("/v1/chat/completions", "/v3/chat/completions"))
    request = Request("pictures", path, json.dumps(body).encode(), allowed, num_beside=dice.randint(0, _MOST_BESIDE))
    return replace(request, leave_after=0) if dice.random() < 0.3 else request


def _ambiguous(dice: random.Random) -> Request:
    """A grammar that compiles at once, and whose masks take ever longer."""
    body = {"model": MODEL, "prompt": "a a", "max_tokens": 200, "temperature": 2.0, "guided_grammar": _AMBIGUOUS}
    body |= {"ignore_eos": True, "stream": dice.random() < 0.5}
    return Request("ambiguous", "/v1/completions", json.dumps(body).encode(), ANSWERED | WRONG | REFUSED)


def _run_away(dice: random.Random) -> Request:
    """A conversation whose template would take hours, or gigabytes."""
    content = dice.choice((SWELL, SWELL, SWELL, RUN_AWAY))
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "stream": dice.random() < 0.5}
    path = dice.choice(("/v1/chat/completions", "/v3/chat/completions"))
    return Request("run away", path, json.dumps(body).encode(), WRONG | REFUSED)


def _cross_site(dice: random.Random) -> Request:
    return replace(_any(dice), kind="cross-site", headers=dice.choice(_PAGES), allowed=_FORBIDDEN, tokens=None)


def _other_host(dice: random.Random) -> Request:
    headers = {"host": dice.choice(("evil.example", "localhost.evil.example:80", "10.1.2.3"))}
    return replace(_any(dice), kind="other host", headers=headers, allowed=_FORBIDDEN, is_call=False, tokens=None)


def _host_mistake(dice: random.Random) -> Request:
    raw = b"POST /v1/completions HTTP/1.1\r\napi-key: %s\r\n%scontent-length: 2\r\n\r\n{}"
    raw %= (KEY.encode(), dice.choice(_HOST_MISTAKES))
    return Request("host mistake", "", b"", frozenset({400}), raw=raw, is_call=False)


_BOTH: Mapping[str, Callable[[random.Random], Request]] = {
    **FAULTS,
    "trailers": _trailers,
    "endless trailers": _endless_trailers,
    "pipeline": _pipeline,
    "upload": _upload,
    "structure": _structure,
    "pictures": _pictures,
    "ambiguous": _ambiguous,
    "run away": _run_away,
    "other host": _other_host,
    "host mistake": _host_mistake,
}
WITH_KEYS: Mapping[str, Callable[[random.Random], Request]] = {
    **_BOTH,
    "wrong key": lambda dice: replace(_without_key(dice), kind="wrong key"),
    "key in a trailer": _key_in_a_trailer,
    "large without a key": _large_without_key,
}
"""What goes wrong where keys are set -> a request at which it does. But for refusals, statuses of 500 and above are right
in answers of these alone."""
WITHOUT_KEYS: Mapping[str, Callable[[random.Random], Request]] = {**_BOTH, "cross-site": _cross_site}
"""The same where none are, on this machine."""
