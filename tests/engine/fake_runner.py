"""A ModelRunner without a model: logits are a pure function of the token ids, computed through the block tables.

Every slot stores a hash of its token, its position and the slot before it, as the table says; a row's logits are a hash of
all slots of its context. A wrong block, a lost copy, a stale slot or a block shared by different prefixes therefore
changes tokens. Writing a slot that another sequence of the step can see raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.forward.runner import ForwardBatch

Int64Array = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

MAX_VOCAB = 32  # a digest of 64 bytes gives two bytes per token


def slot_value(previous: int, token_id: int, position: int) -> int:
    """What the cache holds for a token whose predecessor's slot holds `previous`."""
    content = np.array([previous, token_id, position], dtype=np.int64).tobytes()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)


def logits_of(slots: Int64Array, vocab_size: int) -> Logits:
    """Logits in [0, 6) after a context whose slots hold these values. Shapes: [n] -> [vocab_size]."""
    digest = blake2b(slots.astype(np.int64).tobytes(), digest_size=64).digest()
    return np.frombuffer(digest, dtype=np.uint16)[:vocab_size].astype(np.float32) * np.float32(6 / 65536)


def reference_logits(token_ids: Sequence[int], vocab_size: int) -> Logits:
    """Logits after every token, without any cache. Shapes: [len(token_ids), vocab_size]."""
    slots = np.zeros(len(token_ids), dtype=np.int64)
    previous = 0
    for position, token_id in enumerate(token_ids):
        slots[position] = previous = slot_value(previous, token_id, position)
    return np.stack([logits_of(slots[: position + 1], vocab_size) for position in range(len(token_ids))])


class FakeRunner:
    """See the module. `before_forward` is called first in every forward: to fail there, or to wait."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        vocab_size: int = MAX_VOCAB,
        max_model_len: int = 512,
        before_forward: Callable[[ForwardBatch], None] | None = None,
    ) -> None:
        assert vocab_size <= MAX_VOCAB
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.before_forward = before_forward
        self.num_forwards = 0
        self.num_copies = 0
        self.is_closed = False
        self._slots = np.random.default_rng(7).integers(-(2**62), 2**62, size=(num_blocks, block_size), dtype=np.int64)

    def forward(self, batch: ForwardBatch) -> Logits:
        """Logits of the wanted rows."""
        self.num_forwards += 1
        if self.before_forward is not None:
            self.before_forward(batch)
        self._check(batch)
        contexts = [self._write_sequence(batch, row) for row in range(len(batch.past_lens))]
        rows = np.searchsorted(batch.subsequence_begins, batch.logit_indices, side="right") - 1
        logits = np.zeros((len(batch.logit_indices), self.vocab_size), dtype=np.float32)
        for index, (flat, row) in enumerate(zip(batch.logit_indices, rows, strict=True)):
            end = batch.past_lens[row] + flat - batch.subsequence_begins[row] + 1
            logits[index] = logits_of(contexts[row][:end], self.vocab_size)
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy in order."""
        for source, destination in pairs:
            self._slots[destination] = self._slots[source]
        self.num_copies += len(pairs)

    def close(self) -> None:
        """Remember that it was called."""
        self.is_closed = True

    def _write_sequence(self, batch: ForwardBatch, row: int) -> Int64Array:
        """Write the row's new slots; returns its whole context as the table shows it."""
        first, last = batch.subsequence_begins[row : row + 2]
        past = int(batch.past_lens[row])
        table = self._table(batch, row)
        for offset, token_id in enumerate(batch.input_ids[first:last]):
            position = past + offset
            before = divmod(position - 1, self.block_size)
            previous = int(self._slots[table[before[0]], before[1]]) if position else 0
            block, slot = divmod(position, self.block_size)
            self._slots[table[block], slot] = slot_value(previous, int(token_id), position)
        return self._slots[table].reshape(-1)[: past + last - first]

    def _table(self, batch: ForwardBatch, row: int) -> npt.NDArray[np.int32]:
        return batch.block_indices[slice(*batch.block_indices_begins[row : row + 2])]

    def _check(self, batch: ForwardBatch) -> None:
        """Shapes, dtypes and positions fit together, and no sequence writes where another one reads."""
        lens = np.diff(batch.subsequence_begins)
        assert batch.subsequence_begins[0] == 0 == batch.block_indices_begins[0]
        assert batch.subsequence_begins[-1] == len(batch.input_ids) == len(batch.position_ids)
        assert batch.block_indices_begins[-1] == len(batch.block_indices)
        assert len(batch.past_lens) + 1 == len(batch.subsequence_begins) == len(batch.block_indices_begins)
        assert batch.input_ids.dtype == batch.position_ids.dtype == batch.logit_indices.dtype == np.int64
        assert batch.past_lens.dtype == batch.block_indices.dtype == np.int32
        assert batch.max_context_len == int((batch.past_lens + lens).max())
        readers = np.bincount(batch.block_indices, minlength=self.num_blocks)
        for row, past in enumerate(batch.past_lens):
            assert lens[row] >= 1
            first, last = batch.subsequence_begins[row : row + 2]
            assert (batch.position_ids[first:last] == np.arange(past, past + lens[row])).all()
            written = self._table(batch, row)[past // self.block_size :]
            assert (readers[written] == 1).all(), "a block is written by one sequence and used by another"
