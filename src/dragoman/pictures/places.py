"""Reads a picture's address strictly, and the operator's list of hosts; refuses notations that two programs read
differently.

Source: RFC 3986; for hosts that are numbers: WHATWG URL, "ends in a number".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal
from urllib.parse import quote

from dragoman.pictures.addresses import Address

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL = 8192  # characters
MAX_NAME = 253  # characters. Source: RFC 1035, 2.3.4

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]/?#]*\]|[^:/?#]*)(?::(?P<port>\d{1,5}))?(?P<rest>[/?].*)?", re.I | re.A
)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII)
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_RULE = re.compile(r"(?:\*|(?P<below>\*\.)?(?P<host>\[[^\]]*\]|[^:*/]+))(?::(?P<port>\d{1,5}))?", re.A)
_KEPT = "!$&'()*+,;=:@/?%-._~[]"  # unchanged in path and query


class BadPlace(ValueError):
    """An address that cannot be fetched from; the text has the reason, for the client."""


@dataclass(frozen=True, slots=True)
class Place:
    """One address. `host`: a name in lower case, or an address without brackets; `target`: path and query, as sent."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        """The address without path and query, which may hold secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.target

    @property
    def address(self) -> Address | None:
        try:
            return ip_address(self.host)
        except ValueError:
            return None


def read_place(url: str) -> Place:
    """The parts of an http(s) URL. Raises: BadPlace for every other scheme, user names, and odd notations of hosts."""
    if len(url) > MAX_URL:
        raise BadPlace(f"must be an address of at most {MAX_URL} characters")
    if _NOT_IN_URLS.search(url):
        raise BadPlace("must be an address without blanks, control characters or backslashes")
    found = _URL.fullmatch(url.partition("#")[0])
    if found is None:
        raise BadPlace("must be http://HOST[:PORT]/... or https://HOST[:PORT]/..., without a user name")
    scheme: Literal["http", "https"] = "https" if found["scheme"].lower() == "https" else "http"
    port = int(found["port"] or DEFAULT_PORTS[scheme])
    if not 0 < port < 65536:
        raise BadPlace("must have a port from 1 to 65535")
    rest = found["rest"] or "/"
    try:
        target = quote(rest if rest.startswith("/") else f"/{rest}", safe=_KEPT)
    except UnicodeEncodeError:
        raise BadPlace("must be an address without broken characters") from None
    return Place(scheme, _host(found["host"].lower()), port, target)


def _host(text: str) -> str:
    try:
        if text.startswith("["):
            if "%" in text:  # the zone of a link-local address
                raise ValueError(text)
            return str(IPv6Address(text[1:-1]))
        name = text.removesuffix(".")
        labels = name.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return str(IPv4Address(name))  # ValueError unless four decimal numbers without leading zeros
    except ValueError:
        raise BadPlace("must have a host that is a name, an IPv4 address as in 192.0.2.1 or [IPv6]") from None
    if len(name) > MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadPlace("must have a host of letters, digits, hyphens and dots; others are written xn--...")
    return name


@dataclass(frozen=True, slots=True)
class HostRule:
    """An operator's entry: `*`, a host, or `*.domain` for all below it. Without `:PORT` only the usual ones: no probing."""

    host: str
    port: int | None

    @staticmethod
    def read(text: str) -> HostRule:
        found = _RULE.fullmatch(text.lower())
        if found is None:
            raise ValueError(text)
        host = "*" if found["host"] is None else (found["below"] or "") + _host(found["host"])
        return HostRule(host, int(found["port"]) if found["port"] else None)

    def allows(self, place: Place) -> bool:
        port = self.port or DEFAULT_PORTS[place.scheme]
        if place.port != port:
            return False
        if self.host.startswith("*."):
            return place.address is None and place.host.endswith(self.host[1:])
        return self.host in ("*", place.host)
