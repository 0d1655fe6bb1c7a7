"""A ModelRunner without a model: logits are a pure function of the token ids, computed through the block tables.

Every slot stores a hash of its token, its position and the slot before it, as the table says; a row's logits are a hash of
all slots that it sees, in every cache kind. A wrong block, a lost copy, a stale slot or a block shared by different prefixes
therefore changes tokens. Writing a slot that another sequence of the step can see raises, and so does a visible slot that a
table leaves out. If it `tells_rows`, a slot also says whether its token was a row of its own: other kernels compute those.

A picture's embedding f32 [id, first, last] stands for a token of that id, which no text has, and says which placeholders of
its row have to be in the same step (first to last).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, shake_128

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.config import PrefixCacheMode
from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch

Int64Array = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

USUAL_VOCAB = 32  # a digest of 64 bytes gives two bytes per token


@lru_cache(1 << 16)  # the oracle asks for a sequence's slots anew for each of its tokens
def slot_value(previous: int, token_id: int, position: int, regime: int = 0, *, is_alone: bool = False) -> int:
    """What the cache holds for a token whose predecessor's slot holds `previous`."""
    content = np.array([previous, token_id, position + (regime << 32) + (is_alone << 33)], dtype=np.int64).tobytes()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)


def logits_of(slots: Int64Array, vocab_size: int) -> Logits:
    """Logits in [0, 6) after a token that sees slots with these values. Shapes: [n] -> [vocab_size]."""
    content = slots.astype(np.int64).tobytes()
    is_usual = vocab_size <= USUAL_VOCAB
    digest = blake2b(content, digest_size=64).digest() if is_usual else shake_128(content).digest(2 * vocab_size)
    return np.frombuffer(digest, dtype=np.uint16)[:vocab_size].astype(np.float32) * np.float32(6 / 65536)


def first_visible(position: int, window: int) -> int:
    """The first position that a token sees; a window of 0 shows all."""
    return max(position - window + 1, 0) if window else 0


@dataclass(frozen=True)
class FakeModel:
    """What the logits depend on besides the tokens. See `FakeRunner`."""

    windows: tuple[int, ...] = (0,)
    long_context_from: int | None = None
    tells_rows: bool = False


PLAIN = FakeModel()


def reference_logits(
    token_ids: Sequence[int], vocab_size: int, model: FakeModel = PLAIN, num_prompt_tokens: int | None = None
) -> Logits:
    """Logits after every token of a sequence of so many, without any cache. Shapes: [len(token_ids), vocab_size].

    `num_prompt_tokens`: those behind were computed one by one; None = there are none.
    """
    slots = _reference_slots(token_ids, model, num_prompt_tokens)
    return np.stack([_logits_behind(slots, end, vocab_size, model) for end in range(len(token_ids))])


def last_logits(
    token_ids: Sequence[int], vocab_size: int, model: FakeModel = PLAIN, num_prompt_tokens: int | None = None
) -> Logits:
    """The last row of `reference_logits`. Shape: [1, vocab_size]."""
    slots = _reference_slots(token_ids, model, num_prompt_tokens)
    return _logits_behind(slots, len(token_ids) - 1, vocab_size, model)[None]


def _reference_slots(token_ids: Sequence[int], model: FakeModel, num_prompt_tokens: int | None) -> Int64Array:
    """What the slots of all tokens hold. Shape: [cache kinds, len(token_ids)]."""
    num_together = len(token_ids) if num_prompt_tokens is None else num_prompt_tokens
    if num_together == 1:
        num_together = 0
    regime = int(model.long_context_from is not None and len(token_ids) > model.long_context_from)
    slots = []
    for window in model.windows:
        previous, kept = 0, []
        for position, token_id in enumerate(token_ids):
            is_alone = model.tells_rows and position >= num_together
            previous = slot_value(0 if window == 1 else previous, token_id, position, regime, is_alone=is_alone)
            kept.append(previous)
        slots.append(kept)
    return np.array(slots, dtype=np.int64)


def _logits_behind(slots: Int64Array, end: int, vocab_size: int, model: FakeModel) -> Logits:
    """Logits after the token at position `end`. Shape: [vocab_size]."""
    seen = [slots[kind, first_visible(end, window) : end + 1] for kind, window in enumerate(model.windows)]
    return logits_of(np.concatenate(seen), vocab_size)


class FakeRunner:
    """See the module. `before_forward` is called first in every forward: to fail there, or to wait.

    `windows`: of each cache kind, 0 = none; `num_blocks`: of each, or of all alike. `long_context_from`: longer sequences
    are in another regime. `tells_rows`, set later by `tell_rows`: see the module. Its blocks can be read and written, as
    `stored_prefixes.store.BlockMemory` says.
    """

    def __init__(
        self,
        *,
        num_blocks: int | Sequence[int] = 64,
        block_size: int = 4,
        vocab_size: int = USUAL_VOCAB,
        max_model_len: int = 512,
        windows: Sequence[int] = (0,),
        long_context_from: int | None = None,
        before_forward: Callable[[ForwardBatch], None] | None = None,
    ) -> None:
        counts = [num_blocks] * len(windows) if isinstance(num_blocks, int) else num_blocks
        self.pools = tuple(CachePool(count, window) for count, window in zip(counts, windows, strict=True))
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.long_context_from = long_context_from
        self.tells_rows = False
        self.before_forward = before_forward
        self.num_forwards = 0
        self.num_copies = 0
        self.is_closed = False
        stream = np.random.default_rng(7)
        self._slots = [
            stream.integers(-(2**62), 2**62, size=(pool.num_blocks, block_size), dtype=np.int64) for pool in self.pools
        ]
        self.block_bytes = tuple(8 * block_size for _ in self.pools)
        self.has_states = tuple(False for _ in self.pools)

    def __repr__(self) -> str:
        return f"FakeRunner({self.pools}, block_size={self.block_size}, long_context_from={self.long_context_from})"

    @property
    def model(self) -> FakeModel:
        """What its logits depend on."""
        return FakeModel(tuple(pool.window for pool in self.pools), self.long_context_from, self.tells_rows)

    def tell_rows(self, prefix_cache: PrefixCacheMode) -> None:
        """Have `tells_rows`, unless a prompt may begin with a row: what was decoded, or a prompt of a single token,
        where that fills a block.
        """
        self.tells_rows = prefix_cache == "off" or (prefix_cache == "prompt" and self.block_size > 1)

    def forward(self, batch: ForwardBatch) -> Logits:
        """Logits of the wanted rows."""
        self.num_forwards += 1
        if self.before_forward is not None:
            self.before_forward(batch)
        self._check(batch)
        contexts = [
            [self._write_sequence(batch, kind, row) for kind in range(len(self.pools))]
            for row in range(len(batch.past_lens))
        ]
        rows = np.searchsorted(batch.subsequence_begins, batch.logit_indices, side="right") - 1
        logits = np.zeros((len(batch.logit_indices), self.vocab_size), dtype=np.float32)
        for index, (flat, row) in enumerate(zip(batch.logit_indices, rows, strict=True)):
            seen = [
                self._seen(context, int(batch.position_ids[flat]), kind) for kind, context in enumerate(contexts[row])
            ]
            logits[index] = logits_of(np.concatenate(seen), self.vocab_size)
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """Copy in order."""
        for source, destination in pairs:
            self._slots[kind][destination] = self._slots[kind][source]
        self.num_copies += len(pairs)

    def block_parts(self, block: int, kind: int = 0) -> list[npt.NDArray[np.uint8]]:
        """The bytes of a block, as of two layers."""
        row = self._slots[kind][block].view(np.uint8)
        return [row[:4], row[4:]]

    def close(self) -> None:
        """Remember that it was called."""
        self.is_closed = True

    def _seen(self, context: tuple[int, Int64Array], position: int, kind: int) -> Int64Array:
        """The slots that the token at a position sees. Raises: AssertionError if the table leaves one out."""
        num_left_out, shown = context
        first = first_visible(position, self.pools[kind].window)
        assert num_left_out <= first, "a slot that the token sees is left out"
        assert position < num_left_out + len(shown), "the token is not in its own context"
        return shown[first - num_left_out : position + 1 - num_left_out]

    def _write_sequence(self, batch: ForwardBatch, kind: int, row: int) -> tuple[int, Int64Array]:
        """Write the row's new slots; returns its context as the table shows it, behind how many that it leaves out."""
        first, last = batch.subsequence_begins[row : row + 2]
        tables, slots = _tables_of(batch, kind), self._slots[kind]
        table = _table(tables, row)
        num_left_out = self._num_left_out(batch, tables, row)
        is_chained = self.pools[kind].window != 1
        embedded = _embedded_ids(batch, row)
        for flat in range(first, last):
            position = int(batch.position_ids[flat])
            place = position - num_left_out
            previous = 0
            if position and is_chained:
                assert place, "the slot before the first new token is left out"
                previous = int(slots[table[(place - 1) // self.block_size], (place - 1) % self.block_size])
            regime = 0 if batch.regimes is None else int(batch.regimes[flat])
            token_id, is_alone = embedded.get(flat, int(batch.input_ids[flat])), self.tells_rows and last - first == 1
            value = slot_value(previous, token_id, position, regime, is_alone=is_alone)
            slots[table[place // self.block_size], place % self.block_size] = value
        return num_left_out, slots[table].reshape(-1)[: tables.past_lens[row] + last - first]

    def _num_left_out(self, batch: ForwardBatch, tables: BlockTables, row: int) -> int:
        """Tokens of the row whose blocks are not in the table."""
        return int(batch.position_ids[batch.subsequence_begins[row]] - tables.past_lens[row])

    def _check(self, batch: ForwardBatch) -> None:
        """Shapes, dtypes and positions fit together, and no sequence writes where another one reads.

        The rows of one sequence follow each other without a gap.
        """
        lens = np.diff(batch.subsequence_begins)
        assert batch.subsequence_begins[0] == 0
        assert batch.subsequence_begins[-1] == len(batch.input_ids) == len(batch.position_ids)
        assert batch.input_ids.dtype == batch.position_ids.dtype == batch.logit_indices.dtype == np.int64
        begins = batch.position_ids[batch.subsequence_begins[:-1]]
        assert batch.max_context_len == int((begins + lens).max())
        for row, begin in enumerate(begins):
            assert lens[row] >= 1
            first, last = batch.subsequence_begins[row : row + 2]
            assert (batch.position_ids[first:last] == np.arange(begin, begin + lens[row])).all()
            if batch.first_rows is not None and row not in batch.first_rows:
                assert begin == begins[row - 1] + lens[row - 1], "a sequence's rows leave a gap"
            if batch.regimes is not None:
                assert len(set(batch.regimes[first:last].tolist())) == 1, "a sequence is in two regimes"
        for kind, pool in enumerate(self.pools):
            self._check_tables(batch, _tables_of(batch, kind), pool)

    def _check_tables(self, batch: ForwardBatch, tables: BlockTables, pool: CachePool) -> None:
        assert tables.block_indices_begins[0] == 0
        assert tables.block_indices_begins[-1] == len(tables.block_indices)
        assert len(tables.past_lens) + 1 == len(batch.subsequence_begins) == len(tables.block_indices_begins)
        assert tables.past_lens.dtype == tables.block_indices.dtype == np.int32
        readers = self._num_readers(batch, tables, pool)
        for row, past in enumerate(tables.past_lens):
            num_left_out = self._num_left_out(batch, tables, row)
            assert num_left_out % self.block_size == 0, "a part of a block is left out"
            assert num_left_out == 0 or pool.window, "a block is left out though everything is visible"
            written = _table(tables, row)[past // self.block_size :]
            assert (readers[written] == 1).all(), "a block is written by one sequence and used by another"

    def _num_readers(self, batch: ForwardBatch, tables: BlockTables, pool: CachePool) -> npt.NDArray[np.int64]:
        """How many sequences use each block; a sequence's last row has the longest table, which the others begin."""
        num_rows = len(tables.past_lens)
        first = np.arange(num_rows) if batch.first_rows is None else batch.first_rows
        readers = np.zeros(pool.num_blocks, dtype=np.int64)
        for begin, end in zip(first, [*first[1:], num_rows], strict=True):
            lens = np.diff(batch.subsequence_begins[begin : end + 1])
            assert end - begin == 1 or (lens == 1).all(), "a sequence's rows would not see each other's tokens"
            whole = _table(tables, end - 1)
            for row in range(begin, end):
                table = _table(tables, row)
                assert (table == whole[: len(table)]).all(), "the rows of a sequence have different tables"
            readers[whole] += 1
        return readers


def _embedded_ids(batch: ForwardBatch, row: int) -> dict[int, int]:
    """The ids that embeddings stand for, by the places of their tokens. Checks that no picture of the row is cut."""
    if batch.pictures is None:
        return {}
    first, last = batch.subsequence_begins[row : row + 2]
    begin = int(batch.position_ids[first])
    assert batch.pictures.positions.shape == (3, len(batch.input_ids))
    found = {}
    for flat, (token_id, least, most) in zip(batch.pictures.rows.tolist(), batch.pictures.embeddings, strict=True):
        if first <= flat < last:
            assert begin <= least <= most < begin + last - first, "a picture was cut"
            found[flat] = int(token_id)
    return found


def _tables_of(batch: ForwardBatch, kind: int) -> BlockTables:
    return batch.more_tables[kind - 1] if kind and batch.more_tables else batch


def _table(tables: BlockTables, row: int) -> npt.NDArray[np.int32]:
    return tables.block_indices[slice(*tables.block_indices_begins[row : row + 2])]
