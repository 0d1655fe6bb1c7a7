"""A second position in a grammar, which runs ahead of the first and comes back.

Does: keep a copy of a matcher level with it. Does not: know tokens' texts or masks. Used by `masker` alone.

Looking ahead with the matcher itself and rolling it back would be quicker still. But the matcher keeps what happened on a
way that its sequence does not go. That may be an error of a grammar that becomes too complex, or forced bytes, which hide
control tokens from the next mask. A new copy each time takes long: it copies what was parsed so far, 20 µs at 1,000 tokens.
"""

from __future__ import annotations

from typing import Any


class Scout:
    """A copy of `leader`, made when it is first needed."""

    def __init__(self, leader: Any) -> None:
        self._leader = leader
        self._matcher: Any = None
        self._behind: list[int] = []  # tokens that the leader has consumed and the copy has not

    def follow(self, token_id: int) -> None:
        """The leader has consumed a token."""
        if self._matcher is not None:
            self._behind.append(token_id)

    def ahead(self) -> Any:
        """The copy, where the leader is; `back` must follow."""
        behind = self._behind
        if behind and self._matcher is not None and self._matcher.try_consume_tokens(behind) != len(behind):
            self._matcher = None
        if self._matcher is None:
            self._matcher = self._leader.deep_copy()
        behind.clear()
        return self._matcher

    def back(self, num_tokens: int) -> None:
        """Roll the copy back by the tokens that it consumed since `ahead`; if it cannot, drop it."""
        matcher = self._matcher
        if matcher.is_error() or (num_tokens and not matcher.rollback(num_tokens)):
            self._matcher = None

    def drop(self) -> None:
        """Drop the copy; the next look makes a new one."""
        self._matcher = None
        self._behind.clear()
