"""Computes grammar masks beside the forward pass: they depend on the tokens so far, not on the logits.

Does: one worker thread, one mask per state that has a grammar, for the step at hand. Does not: apply masks
(`logits_processors.GrammarMask` does). `start`, `take` and `close` run on the engine thread. A state's grammar is touched by
the worker between `start` and `take` only, and by nobody else meanwhile: nothing is appended while a forward runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import perf_counter

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.histogram import SECONDS, Histogram
from dragoman.types import TokenMasker

MaskWords = npt.NDArray[np.uint32]


def compute_mask(masker: TokenMasker, vocab_size: int) -> MaskWords:
    """The tokens a grammar allows next, as bits. Shapes: [ceil(V / 32)]."""
    words = np.zeros(-(-vocab_size // 32), dtype="<u4")
    masker.fill_mask(words)
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
        """Begin with the masks of all states that have a grammar; forgets what a failed step left behind."""
        if self._pending:
            wait(self._pending.values())
            self._pending.clear()
        for state in states:
            if state.masker is not None:
                self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="dragoman-masks")
                self._pending[id(state)] = self._worker.submit(compute_mask, state.masker, self._vocab_size)

    def take(self, state: SamplerState) -> MaskWords:
        """The state's mask: the prepared one, or computed now. Raises: what its grammar raises."""
        begin_s = perf_counter()
        prepared = self._pending.pop(id(state), None)
        if prepared is not None:
            mask = prepared.result()
        else:
            assert state.masker is not None
            mask = compute_mask(state.masker, self._vocab_size)
        self.wait_s.add(perf_counter() - begin_s)
        return mask

    def close(self) -> None:
        """Stop the worker."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
            self._worker = None
