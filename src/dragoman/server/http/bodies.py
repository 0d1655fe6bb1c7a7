"""The memory that the bodies of requests take, of all calls together.

Does: count bytes from the first that arrives until their call has ended, refuse what exceeds the bound. Does not: read, or
know whose bodies they are. Made by the gate, used by the endpoints on the event loop.
"""

from __future__ import annotations

from types import TracebackType

from dragoman.errors import Overloaded

DEFAULT_BODY_MEMORY_BYTES = 256 * 1024 * 1024  # four of the largest that are allowed by default


class Bodies:
    """The bodies that are held now. `max_bytes`: of all together; one alone may have more."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0

    def hold(self) -> Body:
        """A body of which nothing is here yet."""
        return Body(self)


class Body:
    """One body. It counts inside of `with`, which may be entered again by who goes on with the call."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._num_bytes = 0
        self._num_holders = 0

    def __enter__(self) -> Body:
        if not self._num_holders:
            self._bodies.num_bytes += self._num_bytes
        self._num_holders += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._num_holders -= 1
        if not self._num_holders:
            self._bodies.num_bytes -= self._num_bytes

    def check(self, count: int) -> None:
        """Raises: Overloaded if there is no room for so many more bytes beside what others hold."""
        num_all, most = self._bodies.num_bytes, self._bodies.max_bytes
        if num_all > self._num_bytes and num_all + count > most:
            raise Overloaded(
                f"The bodies of requests in flight take {num_all} bytes, {most} allowed (--max-body-memory); "
                f"this one needs at least {count} more"
            )

    def add(self, count: int) -> None:
        """So many more bytes have come. Raises: Overloaded."""
        self.check(count)
        self._num_bytes += count
        self._bodies.num_bytes += count
