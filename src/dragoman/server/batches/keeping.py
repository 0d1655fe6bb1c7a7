"""Helpers for operations on files and batches in all APIs: the server's desk, and pages of lists. On the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from dragoman.errors import InvalidParameter, UnsupportedFeature
from dragoman.server.batches.desk import Desk

MAX_SHOWN = 80


T = TypeVar("T")


class PageNames(NamedTuple):
    """An API's names of page parameters, and lengths of pages. `before` "" = it has none."""

    after: str
    before: str
    usual: int
    most: int


class HasDesk(Protocol):
    @property
    def desk(self) -> Desk | None: ...


def desk_of(server: HasDesk) -> Desk:
    """The desk for files and batches. Raises: UnsupportedFeature without a directory for them."""
    if server.desk is None:
        raise UnsupportedFeature("files and batches need a directory: start the server with --store-dir DIRECTORY")
    return server.desk


def in_order(found: list[T], query: Mapping[str, str]) -> list[T]:
    """The list, oldest first, in the order that the query asks for. Raises: InvalidParameter."""
    order = query.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidParameter(f"order must be asc or desc, got {order[:MAX_SHOWN]!r}", param="order")
    return found[::-1] if order == "desc" else found


def page_of(
    found: Sequence[T], query: Mapping[str, str], names: PageNames, id_of: Callable[[T], str] = attrgetter("id")
) -> tuple[list[T], bool]:
    """The part of the list that the query asks for, and whether there is more. Raises: InvalidParameter."""
    ids = list(map(id_of, found))
    begin, end = 0, len(ids)
    limit = _limit(query, names)
    if after := query.get(names.after):
        begin = _position(ids, after, names.after) + 1
    before = query.get(names.before) if names.before else None
    if before:
        end = _position(ids, before, names.before)
        if not after:
            begin = max(begin, end - limit)
            return list(found[begin:end]), begin > 0
    return list(found[begin : min(end, begin + limit)]), begin + limit < end


def _position(ids: Sequence[str], wanted: str, name: str) -> int:
    try:
        return ids.index(wanted)
    except ValueError:
        raise InvalidParameter(f"{name} must be an id of this list, got {wanted[:MAX_SHOWN]!r}", param=name) from None


def _limit(query: Mapping[str, str], names: PageNames) -> int:
    text = query.get("limit") or str(names.usual)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= names.most):
        told = f"limit must be an integer from 1 to {names.most}, got {text[:MAX_SHOWN]!r}"
        raise InvalidParameter(told, param="limit")
    return int(text)
