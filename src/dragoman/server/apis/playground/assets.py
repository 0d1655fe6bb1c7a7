"""The files of `page`, plain or compressed. Reads them at the first request and keeps their bytes. On the event loop."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from dragoman.server.api import TEXT_MEDIA_TYPE, HttpCall, Reply
from dragoman.server.http.accepted import names

INDEX = "index.html"

MEDIA_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""By the end of a file's name; files of other kinds are not served."""

# Scripts and styles come from this server only, and no text is ever read as HTML; pictures that people drop are data.
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS: Mapping[str, str] = {
    "cache-control": "no-cache",  # kept, but checked again each time: an updated server has another page
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file. `tag`: of its bytes, without the quotes of an entity tag."""

    media_type: str
    body: bytes
    compressed: bytes
    tag: str

    def reply(self, http: HttpCall) -> Reply:
        is_compressed = names(http.headers.get("accept-encoding", "").lower(), "gzip", "x-gzip")
        tag = f'"{self.tag}-gzip"' if is_compressed else f'"{self.tag}"'
        headers = {**HEADERS, "etag": tag}
        if _matches(http.headers.get("if-none-match", ""), tag):
            return Reply(304, b"", "", headers)
        if is_compressed:
            return Reply(200, self.compressed, self.media_type, {**headers, "content-encoding": "gzip"})
        return Reply(200, self.body, self.media_type, headers)


@cache
def assets() -> Mapping[str, Asset]:
    found = {one.name: one.read_bytes() for one in files(__package__).joinpath("page").iterdir() if one.is_file()}
    return {name: _asset(name, body) for name, body in found.items() if _kind(name) in MEDIA_TYPES}


def reply_of(name: str, http: HttpCall) -> Reply:
    asset = assets().get(name)
    if asset is None:
        text = f"The playground has no file {name[:100]!r}\n"
        return Reply(404, text.encode(), TEXT_MEDIA_TYPE, {"x-content-type-options": "nosniff"})
    return asset.reply(http)


def _asset(name: str, body: bytes) -> Asset:
    # No time in the compressed bytes: the same file is the same in every process.
    return Asset(MEDIA_TYPES[_kind(name)], body, gzip.compress(body, mtime=0), sha256(body).hexdigest()[:32])


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _matches(if_none_match: str, tag: str) -> bool:
    """True if an If-None-Match header names the tag, or all tags (RFC 9110, 13.1.2: weak comparison)."""
    known = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in known or known == ["*"]
