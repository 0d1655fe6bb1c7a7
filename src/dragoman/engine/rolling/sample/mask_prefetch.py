"""Computes grammar masks beside the forward pass: they depend on the tokens so far, not on the logits.

Does: one worker thread, the masks of all states that have a grammar, for the step at hand. Does not: apply masks
(`logits_processors.GrammarMask` does). `start`, `take` and `close` run on the engine thread. A state's grammar is touched by
the worker between `start` and `take` only, and by nobody else meanwhile: nothing is appended while a forward runs.

The states that a sequence's guesses would lead to share one grammar's state, and their masks are computed in one go: a copy
of a grammar's state for each guess takes the longer, the longer the answer is (20 to 40 µs behind 1,000 tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import perf_counter

import numpy as np

from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.grammar.bitmask import MaskWords
from dragoman.histogram import SECONDS, Histogram
from dragoman.types import TokenMasker


def compute_masks(masker: TokenMasker, ids_ahead: Sequence[int], vocab_size: int) -> MaskWords:
    """The tokens a grammar allows next, and after each of these tokens, as bits. Shapes: [1 + len(ids), ceil(V / 32)]."""
    words = np.zeros((1 + len(ids_ahead), -(-vocab_size // 32)), dtype="<u4")
    if ids_ahead:
        masker.fill_masks(words, ids_ahead)
    else:
        masker.fill_mask(words[0])
    return words


class MaskPrefetcher:
    """The masks that are being computed for the next sampling. The worker thread starts with the first grammar.

    `wait_s`: seconds that each mask was waited for.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._worker: ThreadPoolExecutor | None = None
        self._pending: dict[int, Future[MaskWords]] = {}  # by the state's identity
        self.wait_s = Histogram(SECONDS)

    def start(self, states: Sequence[SamplerState]) -> None:
        """Begin with the masks of all states that have a grammar; forgets what a failed step left behind.

        States that are ahead of another stand behind it, in order.
        """
        if self._pending:
            wait(set(self._pending.values()))
            self._pending.clear()
        run: list[SamplerState] = []
        for state in states:
            if run and not state.ids_ahead:
                self._submit(run)
                run = []
            if state.masker is not None:
                run.append(state)
        if run:
            self._submit(run)

    def take(self, state: SamplerState) -> MaskWords:
        """The state's mask: the prepared one, or computed now. Raises: what its grammar raises. Shapes: [ceil(V / 32)]."""
        begin_s = perf_counter()
        prepared = self._pending.pop(id(state), None)
        if prepared is not None:
            masks = prepared.result()
        else:
            assert state.masker is not None
            masks = compute_masks(state.masker, state.ids_ahead, self._vocab_size)
        self.wait_s.add(perf_counter() - begin_s)
        mask: MaskWords = masks[len(state.ids_ahead)]
        return mask

    def close(self) -> None:
        """Stop the worker."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
            self._worker = None

    def _submit(self, run: Sequence[SamplerState]) -> None:
        """Begin with the masks of states that share a grammar's state."""
        self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="dragoman-masks")
        last = run[-1]
        assert last.masker is not None
        masks = self._worker.submit(compute_masks, last.masker, last.ids_ahead, self._vocab_size)
        self._pending.update(dict.fromkeys(map(id, run), masks))
