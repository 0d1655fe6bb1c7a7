"""The target of requests: the parts of a server's URL, and the path of an API below it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_VERSION = re.compile(r"/v[0-9]+")  # the first segment of an OpenAI API's path: /v1 on most servers, /v3 on OpenVINO's
ALLOWED = "http://HOST:PORT or https://HOST, perhaps with a path, without a user and a query"


@dataclass(frozen=True, slots=True)
class Target:
    """A server. `path`: of the URL without a final slash, "" = none."""

    host: str
    port: int
    is_secure: bool
    path: str = ""

    @property
    def origin(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """Host and port in the form of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def endpoint(self, path: str) -> str:
        """The path of an operation on this server. A version in the URL replaces its own: /v3 and /v1/chat make
        /v3/chat.
        """
        if self.path.endswith(path):
            return self.path
        version = _VERSION.match(path)
        if version is not None and _VERSION.fullmatch("/" + self.path.rpartition("/")[2]):
            return self.path + path[version.end() :]
        return self.path + path

    def models_path(self, path: str) -> str | None:
        """The path of the model list of a server with OpenAI's API at `path`; None if `path` has no version in it."""
        found = list(_VERSION.finditer(path))
        return f"{path[: found[-1].end()]}/models" if found else None


def read_target(url: str) -> Target:
    """The target at `url`. Raises: ValueError with what is allowed."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"must be {ALLOWED}") from None
    is_plain = not (parts.query or parts.fragment or parts.username is not None)
    if parts.scheme not in _PORTS or not parts.hostname or not is_plain or port == 0:
        raise ValueError(f"must be {ALLOWED}")
    return Target(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", parts.path.rstrip("/"))
