"""A second position in a grammar, which runs ahead of the first and comes back.

Does: keep a copy of a matcher at its position. Does not: know tokens' texts or masks. Used only by `masker`.

Looking ahead with the matcher itself and rolling it back would be faster. But the matcher keeps effects of the way that its
sequence does not go: an error of a too complex grammar, or forced bytes, which hide control tokens from the next mask. A new
copy each time is slow, as it copies everything parsed so far: 20 µs at 1,000 tokens.
"""

from __future__ import annotations

from typing import Any


class Scout:
    """A copy of `leader`, made at its first use."""

    def __init__(self, leader: Any) -> None:
        self._leader = leader
        self._matcher: Any = None
        self._behind: list[int] = []  # tokens consumed by the leader, but not by the copy

    def follow(self, token_id: int) -> None:
        """Note a token that the leader has consumed."""
        if self._matcher is not None:
            self._behind.append(token_id)

    def ahead(self) -> Any:
        """The copy at the leader's position; `back` must follow."""
        behind = self._behind
        if behind and self._matcher is not None and self._matcher.try_consume_tokens(behind) != len(behind):
            self._matcher = None
        if self._matcher is None:
            self._matcher = self._leader.deep_copy()
        behind.clear()
        return self._matcher

    def back(self, num_tokens: int) -> None:
        """Roll the copy back to the position of `ahead`; drop it if that fails."""
        matcher = self._matcher
        if matcher.is_error() or (num_tokens and not matcher.rollback(num_tokens)):
            self._matcher = None

    def drop(self) -> None:
        """Drop the copy; the next use makes a new one."""
        self._matcher = None
        self._behind.clear()
