"""A position in a compiled grammar: which tokens may come next.

Does: masks, advancing, forking. Does not: compile (`compiler` does) or touch logits. Used by the engine as a `TokenMasker`:
on the engine thread and, while a forward runs, on the thread that computes masks; never on both at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class GrammarMasker:
    """A position in a compiled grammar: the TokenMasker the sampler uses.

    Once the text is complete only end-of-sequence is allowed, any number of times. The same holds when the grammar
    becomes too complex to follow, so that the sequence ends instead of leaving the grammar.
    """

    def __init__(self, matcher: Any, eos_ids: frozenset[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size

    def fork(self) -> GrammarMasker:
        """An independent copy of the position."""
        return GrammarMasker(self._matcher.deep_copy(), self._eos_ids, self._vocab_size)

    def fill_mask(self, bitmask_row: npt.NDArray[np.uint32]) -> None:
        """Write the allowed tokens into a row of 32-bit words; tokens beyond the vocabulary are not allowed.

        Shapes: [ceil(V / 32)], C-contiguous, for any number V of logits. Mutates: the row.
        """
        num_words = -(-self._vocab_size // 32)
        bitmask_row[num_words:] = 0
        if bitmask_row.size >= num_words:
            own = bitmask_row[:num_words]
            self._matcher.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        else:  # fewer logits than tokens: llguidance wants room for all of them
            whole = np.zeros(num_words, dtype=np.uint32)
            self._matcher.unsafe_compute_mask_ptr(whole.ctypes.data, whole.nbytes)
            bitmask_row[:] = whole[: bitmask_row.size]

    def advance(self, token_id: int) -> bool:
        """Consume a token; False, and no change, if the grammar does not allow it."""
        if token_id in self._eos_ids and self._matcher.is_stopped():
            return True  # the matcher itself takes one end only
        return bool(self._matcher.try_consume_tokens([token_id]) == 1)

    def validate(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the front, the grammar allows; the position does not change."""
        ended = self._matcher.is_stopped()
        num_allowed = 0 if ended else int(self._matcher.validate_tokens(list(token_ids)))
        if num_allowed:
            ended = token_ids[num_allowed - 1] in self._eos_ids
        while ended and num_allowed < len(token_ids) and token_ids[num_allowed] in self._eos_ids:
            num_allowed += 1
        return num_allowed

    @property
    def is_finished(self) -> bool:
        """True if nothing but end-of-sequence may follow."""
        return bool(self._matcher.is_stopped())
