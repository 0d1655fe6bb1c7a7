"""The route table: which path and method is answered by what.

Does: match paths, name the nearest one, tell which methods a path answers to. Does not: know what handlers do.
Called by the app, on the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

from dragoman.errors import UnknownPath
from dragoman.server.http.exchange import Exchange

PathParams = Mapping[str, str]
Handler = Callable[[Exchange, PathParams], Awaitable[None]]
"""Answers a call. Raises: ServerError before anything was sent; the app tells it in the words of the path's owner."""

MAX_SHOWN_LENGTH = 100
MAX_COMPARED_LENGTH = 200  # comparing takes time with the product of the lengths; no path of this server is longer


@dataclass(frozen=True, slots=True)
class Route:
    """One path and its handlers by method. In `path`, each `{name}` stands for any text, slashes included.

    `absences`: by method, why this server does not serve it as it was started; they do not count as allowed.
    """

    path: str
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    absences: Mapping[str, str] = field(default_factory=dict)

    @property
    def allow(self) -> str:
        """The `Allow` header: what this path answers to."""
        methods = set(self.handlers) | {"OPTIONS"} | ({"HEAD"} if "GET" in self.handlers else set())
        return ", ".join(sorted(methods))

    def handler(self, method: str) -> Handler | None:
        """The handler of that method; HEAD is GET whose body the protocol leaves out."""
        return self.handlers.get("GET" if method == "HEAD" else method)


_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Match(NamedTuple):
    """A route that fits a path, with what stood in the place of `{name}`."""

    route: Route
    path_params: PathParams


class _Pattern(NamedTuple):
    """`num_said`: the characters that stand in the path as they are."""

    regex: re.Pattern[str]
    num_said: int
    route: Route


class RouteTable:
    """Routes by path: a dictionary for fixed paths, a short list for those with a name in them."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.paths = tuple(route.path for route in routes)
        self._fixed: dict[str, Route] = {}
        self._patterns: list[_Pattern] = []
        for route in routes:
            texts, names = _PLACEHOLDER.split(route.path)[::2], _PLACEHOLDER.findall(route.path)
            if names:
                named = "".join(f"{re.escape(text)}(?P<{name}>.+)" for text, name in zip(texts, names, strict=False))
                regex = re.compile(named + re.escape(texts[-1]), re.DOTALL)
                self._patterns.append(_Pattern(regex, sum(map(len, texts)), route))
            else:
                self._fixed[route.path] = route
        self._patterns.sort(key=lambda pattern: -pattern.num_said)

    def match(self, path: str) -> Match | None:
        """The route of `path`: fixed paths first, then patterns, those that say most first; None if there is none."""
        route = self._fixed.get(path)
        if route is not None:
            return Match(route, {})
        for pattern in self._patterns:
            if (found := pattern.regex.fullmatch(path)) is not None:
                return Match(pattern.route, found.groupdict())
        return None

    def unknown(self, path: str) -> UnknownPath:
        """The error for a path that no route fits."""
        return UnknownPath(
            f"Unknown path {shown(path)}: the nearest one is {self.nearest(path)}, GET /docs describes all"
        )

    def nearest(self, path: str) -> str:
        """The path of the table that `path` resembles most, the first of several; of the same API where it has any.

        An API is known by what stands before the second slash: a call to `/api/...` is not meant for `/info`. A path
        that goes on where this one ends comes first, as `/v1/chat` is meant for `/v1/chat/completions`; then those of the
        API that end in the same word, as `/v2/ready` is not meant for `/v2/rerank`; then all of the API.
        """
        seen = path[:MAX_COMPARED_LENGTH]
        whole, word = seen.rstrip("/"), seen.rpartition("/")[2]
        is_part = whole and whole not in self._fixed
        longer = [known for known in self.paths if is_part and known.startswith(f"{whole}/")]
        related = [known for known in self.paths if known.split("/")[1:2] == seen.split("/")[1:2]] or self.paths
        of_that_name = [known for known in related if word and known.rpartition("/")[2] == word]
        return max(longer or of_that_name or related, key=lambda known: SequenceMatcher(None, seen, known).ratio())


def shown(path: str) -> str:
    """A path as an error repeats it."""
    return path if len(path) <= MAX_SHOWN_LENGTH else f"{path[:MAX_SHOWN_LENGTH]}..."


def joined_routes(routes: Sequence[Route]) -> list[Route]:
    """One route per path, in the order of their first mention. Raises: ValueError if two answer to the same method."""
    by_path: dict[str, Route] = {}
    for route in routes:
        known = by_path.get(route.path, Route(route.path))
        if twice := set(known.handlers) & set(route.handlers):
            raise ValueError(f"route {', '.join(sorted(twice))} {route.path} is declared twice")
        by_path[route.path] = Route(
            route.path,
            {**known.handlers, **route.handlers},
            {**known.absences, **route.absences},
        )
    return list(by_path.values())
