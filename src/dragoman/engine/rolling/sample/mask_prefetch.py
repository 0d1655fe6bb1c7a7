"""Computes grammar masks during the forward pass, on one worker thread. The rest runs on the engine thread.

Between `start` and `take` only the worker uses a state's grammar: no tokens are appended during a forward. The states
after a sequence's guesses share one grammar state: copying it for each takes longer with the answer's length.
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
    """The tokens a grammar allows next, and after each of these tokens, as bits [1 + len(ids), ceil(V / 32)]."""
    words = np.zeros((1 + len(ids_ahead), -(-vocab_size // 32)), dtype="<u4")
    if ids_ahead:
        masker.fill_masks(words, ids_ahead)
    else:
        masker.fill_mask(words[0])
    return words


class MaskPrefetcher:
    """The masks for the next sampling. `wait_s`: seconds that sampling waited for each mask."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._worker: ThreadPoolExecutor | None = None
        self._pending: dict[int, Future[MaskWords]] = {}  # by the state's identity
        self.wait_s = Histogram(SECONDS)

    def start(self, states: Sequence[SamplerState]) -> None:
        """Start computing the masks; drops those of a failed step. States ahead of another one follow it, in order."""
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
        """The state's mask [ceil(V / 32)]: the prefetched one, or computed now. Raises: its grammar's errors."""
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
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
            self._worker = None

    def _submit(self, run: Sequence[SamplerState]) -> None:
        self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="dragoman-masks")
        last = run[-1]
        assert last.masker is not None
        masks = self._worker.submit(compute_masks, last.masker, last.ids_ahead, self._vocab_size)
        self._pending.update(dict.fromkeys(map(id, run), masks))
