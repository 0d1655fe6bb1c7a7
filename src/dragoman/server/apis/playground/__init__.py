"""The playground, a page on which people try the models in a browser: its files, plain or compressed.

They need no key; what the page asks for may need one. Reads the files of `page` at the first request and keeps their
bytes. On the event loop.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files

from dragoman.server.api import TEXT_MEDIA_TYPE, HttpCall, Reply
from dragoman.server.descriptions import TEXT, Answer, Answers, header, parameter
from dragoman.server.http.fields import names
from dragoman.server.operations import AnswerOperation, Api, Server
from dragoman.server.security.callers import Scope

# --- files ------------------------------------------------------------------------------------------------------------

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
    found = {file.name: file.read_bytes() for file in files(__package__).joinpath("page").iterdir() if file.is_file()}
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
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return tag in known or known == ["*"]


# --- the API ----------------------------------------------------------------------------------------------------------

NAME = "playground"
PATH = "/playground"


async def page(http: HttpCall, server: Server) -> Reply:
    return reply_of(INDEX, http)


async def file(http: HttpCall, server: Server) -> Reply:
    return reply_of(http.path_params["file"], http)


_UNCHANGED: Answers = {304: Answer("what `If-None-Match` names is still right", headers=("ETag",))}
_get = partial(AnswerOperation, method="GET", tag="Playground", scope=Scope.OPEN)

API = Api(
    name=NAME,
    title=NAME,
    needs_engine=False,
    operations=(
        _get(
            path=PATH,
            summary="A page to try the models in a browser",
            description="Browsers that ask for `/` are sent here.",
            parameters=("If-None-Match",),
            answers={200: Answer("the page", {MEDIA_TYPES["html"]: TEXT}, ("ETag",)), **_UNCHANGED},
            answer=page,
        ),
        _get(
            path=f"{PATH}/{{file}}",
            summary="A file of that page",
            parameters=("file", "If-None-Match"),
            answers={
                200: Answer("the file", dict.fromkeys(MEDIA_TYPES.values(), TEXT), ("ETag",)),
                404: Answer("there is no such file", {TEXT_MEDIA_TYPE: TEXT}),
                **_UNCHANGED,
            },
            answer=file,
        ),
    ),
    parameters={
        "file": parameter("path", "file", "the file's name", TEXT),
        "If-None-Match": parameter("header", "If-None-Match", "what the client has: its `ETag`", TEXT),
    },
    headers={"ETag": header("tells this version of the file from others")},
)
