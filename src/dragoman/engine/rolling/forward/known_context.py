"""Tells the kernels of contexts that grow, so that they are rarely generated again.

Does: choose what a step says its longest context is. Does not: run steps. Used by the runner, on the engine thread.

The attention's kernels are generated for the longest context so far, and again for a longer one, by whole blocks. With 24
layers and steps of 20 ms, that took 12 ms more in every 32nd step of the longest sequence so far. It also took them in
every piece of the longest prompt. So a step that is longer than all before says that it is longer still, and those that
follow grow into that. All other steps pass their true length: kernels for fewer sequences than threads divide the work by
it.
"""

from __future__ import annotations

_LEAST_STEP = 256  # tokens; a longer one would take memory for rows of scores that short contexts do not need
_PARTS = 8  # of the next power of two


class KnownContext:
    """The longest context that kernels were made for, at most `max_model_len` unless a step is longer."""

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self._longest = 0

    def tell(self, longest: int) -> int:
        """The context length to pass for a step with that longest context: longer if kernels are generated again."""
        if longest <= self._longest:
            return longest
        step = max(_LEAST_STEP, (1 << (longest - 1).bit_length()) // _PARTS)
        rounded = -(-longest // step) * step
        self._longest = max(longest, min(rounded, self._max_model_len))
        return self._longest
