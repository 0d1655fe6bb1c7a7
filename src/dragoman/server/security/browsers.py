"""Decides which requests of browsers are served without a key: those of allowed pages, to this server's own name.

A browser sends requests of any page to this machine, too. It hides the answers of other origins, but the requests take
effect. A page whose own name leads to 127.0.0.1 reads the answers as well (DNS rebinding). A key would stop both.
Does: compare the header fields that browsers send. Does not: check other programs, which send none of them.
Made by the app, used by it and by the gate, on the event loop.
Source: Fetch Metadata Request Headers (W3C), "Sec-Fetch-Site"; Fetch Standard, "Origin".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address

from dragoman.errors import Forbidden
from dragoman.server.security.cors import Cors

ANY = "*"
MAX_SHOWN = 80  # characters of a host or origin that an error repeats

_OTHERS = frozenset({"cross-site", "same-site"})  # of Sec-Fetch-Site: the page has another origin


class AllowedHosts:
    """The names that this server goes by, beside those of this machine itself. `*` = any."""

    def __init__(self, names: Sequence[str] = (ANY,)) -> None:
        """`names`: hosts, `*.DOMAIN` for all names below one; with a port where only that one is meant."""
        self._names = frozenset(names)
        self._allows = lru_cache(maxsize=256)(self._is_allowed)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises: Forbidden if the request is meant for another host."""
        host = headers.get("host")
        if host is None or ANY in self._names or self._allows(host):
            return
        raise Forbidden(
            f"Host {host[:MAX_SHOWN]} is not served here: only localhost and addresses of this machine are, and what "
            "--allowed-hosts names"
        )

    def names(self, host: str) -> bool:
        """True if the operator has listed this host by its name."""
        return host != "" and (host in self._names or _without_port(host) in self._names or self._is_below(host))

    def _is_allowed(self, host: str) -> bool:
        return _is_this_machine(_without_port(host.lower())) or self.names(host.lower())

    def _is_below(self, host: str) -> bool:
        whole, bare = host, _without_port(host)
        return any(
            name.startswith("*.") and (whole.endswith(name[1:]) or bare.endswith(name[1:])) for name in self._names
        )


class Visitors:
    """Checks that a request comes from an allowed page, if a browser sends it."""

    def __init__(self, cors: Cors | None = None, hosts: AllowedHosts | None = None) -> None:
        """`cors` None = pages of this server only. `hosts`: whose pages count as its own."""
        self._cors = cors
        self._hosts = hosts or AllowedHosts()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises: Forbidden for what a browser sends on behalf of a page of another origin, unless CORS lets that read."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if (origin is None and site is None) or not self._is_foreign(origin, site, headers):
            return
        if self._cors is not None and self._cors.allows(origin):
            return
        page = "a page of another site" if origin in (None, "null") else f"a page of {origin[:MAX_SHOWN]}"
        raise Forbidden(
            f"a browser asks on behalf of {page}, which is not served where no key is needed: --cors-allowed-origin names "
            "the origins that may"
        )

    def _is_foreign(self, origin: str | None, site: str | None, headers: Mapping[str, str]) -> bool:
        if site is not None:  # the browser has compared by itself, also where a proxy has changed the host
            return site.strip().lower() in _OTHERS
        host = (origin or "").partition("://")[2].lower()
        ours = (headers.get("host", "").lower(), headers.get("x-forwarded-host", "").lower())
        return host == "" or (host not in ours and not self._hosts.names(host))


def _is_this_machine(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    """The host as it stands before `:PORT`, without the dot at its end that names may have."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() and not name.endswith(":") else host).rstrip(".")
