"""Fetches the bytes of a picture from a host that the operator allows. Uses no proxies, cookies or credentials.

Resolves a name once, refuses it unless every address is public, and connects to one of those very addresses; redirects
get the same checks. All failures give clients the same sentence, so that they cannot map a network; the log has the
reason.
"""

from __future__ import annotations

import io
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import ip_address
from typing import Any, Protocol, cast
from urllib.parse import urljoin

from dragoman.pictures.addresses import Address, is_public
from dragoman.pictures.limits import DATA_URL, PictureFault, PictureLimits, excerpt, too_large
from dragoman.pictures.places import DEFAULT_PORTS, BadPlace, HostRule, Place, read_place

logger = logging.getLogger("dragoman.pictures")

PIECE = 65_536  # bytes read at a time
HEAD_BYTES = 131_072  # of an answer besides twice its picture, with room for the heads of chunks
MAX_ADDRESSES = 4  # tried of one name
OK = 200
REDIRECTS = (301, 302, 303, 307, 308)

_HEADERS = {  # `Accept-Encoding: identity` and `Host` come from http.client
    "User-Agent": "dragoman",
    "Accept": "image/png,image/jpeg,image/webp,image/gif,image/bmp",
    "Connection": "close",
}


class Unfetched(Exception):
    """A failed fetch; the text is for the log."""


class Oversized(Unfetched):
    """A host sends more than a picture may have."""


class Deadline:
    """The end of one fetch, with its redirects. Used on any thread."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock() + seconds

    def remaining(self) -> float:
        seconds = self._at - self._clock()
        if seconds <= 0:
            raise Unfetched("the time limit was reached")
        return seconds

    def end(self) -> None:
        self._at = float("-inf")


class Network(Protocol):
    """The network functions that a fetch needs. Raises: OSError."""

    def resolve(self, host: str, port: int) -> list[Address]: ...

    def connect(self, address: Address, port: int, timeout_s: float) -> socket.socket: ...


class SystemNetwork:
    def resolve(self, host: str, port: int) -> list[Address]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))

    def connect(self, address: Address, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection((str(address), port), timeout_s)


class Fetcher:
    """Fetches within the operator's limits. Immutable; used on several threads."""

    def __init__(
        self,
        limits: PictureLimits,
        network: Network | None = None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._network = network or SystemNetwork()
        self._make_tls = tls
        self._rules = tuple(HostRule.read(word) for word in limits.allowed_hosts)

    def begin(self, url: str, path: str) -> Fetch:
        """The fetch of `url`, whose time starts now; nothing is resolved yet. `path`: parameter. Raises: PictureFault."""
        try:
            place = read_place(url)
        except BadPlace as error:
            raise PictureFault(path, "address", f"{error}, or {DATA_URL}; got {excerpt(url)}") from None
        if not self._is_allowed(place):
            message = f"must be at a host that the operator allows (--allow-image-hosts), got {excerpt(place.origin)}"
            raise PictureFault(path, "address", message)
        return Fetch(self, place, path, self._limits, Deadline(self._limits.timeout_s, self._clock))

    def fetch(self, place: Place, deadline: Deadline) -> bytes:
        """The bytes there, of any kind. Raises: Unfetched."""
        for _ in range(self._limits.max_redirects + 1):
            answer = self._ask(place, deadline)
            if isinstance(answer, bytes):
                return answer
            place = answer
        raise Unfetched(f"more than {self._limits.max_redirects} redirects")

    def _is_allowed(self, place: Place) -> bool:
        return any(rule.allows(place) for rule in self._rules)

    def _ask(self, place: Place, deadline: Deadline) -> bytes | Place:
        """One request: the bytes, or the target of a redirect. Raises: Unfetched."""
        try:
            with self._connected(place, deadline) as connected:
                line = _Line(connected, deadline, 2 * self._limits.max_bytes + HEAD_BYTES)
                connection = HTTPConnection(place.host, place.port)
                connection.default_port = DEFAULT_PORTS[place.scheme]
                connection.sock = cast(Any, line)  # it never connects by itself
                connection.request("GET", place.target, headers=_HEADERS)
                answer = connection.getresponse()
                if answer.status in REDIRECTS:
                    return self._redirected(place, answer)
                return self._body(answer)
        except (OSError, HTTPException, ValueError) as error:
            raise Unfetched(f"{place.origin}: {type(error).__name__}: {excerpt(str(error))}") from error

    def _connected(self, place: Place, deadline: Deadline) -> socket.socket:
        """A connection to a public address of the host, with TLS for https. Raises: Unfetched, OSError."""
        addresses = self._addresses(place)
        for position, address in enumerate(addresses):
            rest = len(addresses) - position  # a silent address must not use up the others' time
            try:
                connected = self._network.connect(address, place.port, deadline.remaining() / rest)
                break
            except OSError as error:
                logger.debug("%s: no connection to %s: %s", place.origin, address, error)
        else:
            raise Unfetched(f"{place.origin}: no address answers")
        if place.scheme == "http":
            return connected
        try:
            connected.settimeout(deadline.remaining())
            return self._tls.wrap_socket(connected, server_hostname=place.host)
        except BaseException:
            connected.close()
            raise

    def _addresses(self, place: Place) -> list[Address]:
        """The host's addresses, resolved once. A private one refuses all: the connection might not use the checked one."""
        literal = place.address
        found = [literal] if literal else self._network.resolve(place.host, place.port)
        for address in found:
            if not is_public(address):
                raise Unfetched(f"{place.origin} is at {address}, which is not public")
        if not found:
            raise Unfetched(f"{place.origin} has no address")
        return found[:MAX_ADDRESSES]

    def _redirected(self, place: Place, answer: HTTPResponse) -> Place:
        location = answer.headers.get("Location", "")
        if not location.isascii() or "\\" in location:
            raise Unfetched(f"{place.origin} redirects to {excerpt(location)}")
        try:
            there = read_place(urljoin(place.url, location))
        except ValueError as error:
            raise Unfetched(f"{place.origin} redirects to {excerpt(location)}: {error}") from None
        if place.scheme == "https" and there.scheme == "http":
            raise Unfetched(f"{place.origin} redirects from https to http")
        if not self._is_allowed(there):
            raise Unfetched(f"{place.origin} redirects to {there.origin}, which the operator does not allow")
        return there

    def _body(self, answer: HTTPResponse) -> bytes:
        """The content, up to the limit, whatever its declared length. Raises: Unfetched, OSError, HTTPException."""
        if answer.status != OK:
            raise Unfetched(f"status {answer.status}")
        coding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        if coding not in ("", "identity"):  # a few bytes could stand for gigabytes
            raise Unfetched(f"Content-Encoding {excerpt(coding)}")
        limit = self._limits.max_bytes
        if answer.length is not None and answer.length > limit:
            raise Oversized(f"Content-Length {answer.length}")
        pieces, size = [], 0
        while piece := answer.read(PIECE):
            size += len(piece)
            if size > limit:
                raise Oversized(f"more than {limit} bytes")
            pieces.append(piece)
        if answer.length:
            raise Unfetched(f"{answer.length} bytes fewer than its Content-Length")
        return b"".join(pieces)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._make_tls()


class Fetch:
    """One fetch. `run` on a worker thread; the rest on any."""

    def __init__(self, fetcher: Fetcher, place: Place, path: str, limits: PictureLimits, deadline: Deadline) -> None:
        self.has_begun = False
        self._fetcher = fetcher
        self._place = place
        self._path = path
        self._limits = limits
        self._deadline = deadline

    def run(self) -> bytes:
        self.has_begun = True
        try:
            return self._fetcher.fetch(self._place, self._deadline)
        except Oversized as error:
            self._log(str(error))
            raise too_large(self._path, self._limits) from None
        except Unfetched as error:
            raise self.fault(str(error)) from None

    def end(self) -> None:
        """Stop the fetch at its next piece; no caller waits for it."""
        self._deadline.end()

    def fault(self, reason: str) -> PictureFault:
        """The error for the client; the reason goes to the log."""
        self._log(reason)
        seconds = f"{self._limits.timeout_s:g} seconds"
        message = f"must be an image at a public address, sent within {seconds}; it could not be fetched"
        return PictureFault(self._path, "fetch", message)

    def _log(self, reason: str) -> None:
        logger.info("%s: no image from %s: %s", self._path, self._place.origin, reason)


class _Line:
    """A connection for `HTTPConnection` that ends every wait at the deadline and takes at most `max_bytes` bytes.

    A timeout of the socket alone would start again with each byte from a slow host.
    """

    def __init__(self, connected: socket.socket, deadline: Deadline, max_bytes: int) -> None:
        self._connected = connected
        self._deadline = deadline
        self._left = max_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Stream(self))

    def sendall(self, data: bytes) -> None:
        self._connected.settimeout(self._deadline.remaining())
        self._connected.sendall(data)

    def receive_into(self, buffer: Any) -> int:
        self._connected.settimeout(self._deadline.remaining())
        count = self._connected.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise Oversized("an endless answer")
        return count

    def close(self) -> None:
        """Nothing: `HTTPConnection` closes before it reads an answer that ends with the connection; `_ask` closes."""


class _Stream(io.RawIOBase):
    def __init__(self, line: _Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._line.receive_into(buffer)
