"""Runs one step's batch through the compiled OpenVINO graph. On the engine thread only; `infer` releases the GIL.

Determinism: the library's attention computes a row alike in any batch. OpenVINO's does not if every row is a single
token and there are fewer rows than threads. So such a step gets dummy tokens in a scratch block: single ones up to as
many rows as threads, or one row of two tokens if that is less. Its products compute a single row with an adapter
in another order than several rows. So a step of one such token gets a dummy token, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import openvino as ov

from dragoman.engine.rolling.adapters import AdapterBank
from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch
from dragoman.engine.rolling.sequence import NO_SLOT
from dragoman.models.blocks.step import PICTURE_EMBEDDINGS, PICTURE_ROWS, ROTARY_POSITIONS, TOKEN_TYPES
from dragoman.models.loader import LoadedModel, cache_kind, cache_ports
from dragoman.models.memory import forget_pages, return_freed_memory

Array = np.ndarray[Any, Any]

_NO_ROWS = np.zeros(0, dtype=np.int64)

_LEAST_STEP = 256  # tokens; a larger step would need memory for rows of scores that short contexts do not need
_PARTS = 8  # of the next power of two

_LARGE_STEP = 128  # tokens; freeing the buffers of smaller steps is not worth the time


def _numbers(first: int, count: int) -> Array:
    return np.arange(first, first + count, dtype=np.int32)


class KnownContext:
    """The longest context that kernels were made for, at most `max_model_len` unless a step is longer.

    The attention's kernels are generated again for each longer context, by whole blocks, which takes as long as half a
    step. So a step longer than all before states an even longer context. Other steps state their true one, by which
    kernels divide the work.
    """

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self._longest = 0

    def tell(self, longest: int) -> int:
        """The context length to pass for a step with that longest context."""
        if longest <= self._longest:
            return longest
        step = max(_LEAST_STEP, (1 << (longest - 1).bit_length()) // _PARTS)
        rounded = -(-longest // step) * step
        self._longest = max(longest, min(rounded, self._max_model_len))
        return self._longest


class OpenVinoRunner:
    """A ModelRunner over a loaded model. `num_blocks`: KV blocks for the layers of each cache kind, or of every kind."""

    def __init__(self, loaded: LoadedModel, num_blocks: int | Sequence[int], bank: AdapterBank | None = None) -> None:
        """Allocates the KV cache. Raises: ValueError if a kind would have no block."""
        facts = loaded.facts
        counts = [num_blocks] * len(facts.cache_kinds) if isinstance(num_blocks, int) else list(num_blocks)
        if min(counts) < 1:
            raise ValueError(f"num_blocks is {num_blocks}, expected at least 1")
        self._facts = facts
        num_levels = 0 if facts.pictures is None else facts.pictures.num_levels
        self._no_embeddings = np.zeros((0, num_levels * facts.hidden_size), dtype=np.float32)
        self.block_size = loaded.profile.block_size
        self.pools = tuple(CachePool(count, kind.window) for count, kind in zip(counts, facts.cache_kinds, strict=True))
        self.vocab_size = facts.vocab_size
        self.max_model_len = facts.max_position
        self._attends = loaded.profile.attends
        inputs = {port.get_any_name() for port in loaded.compiled.inputs}
        self._known_context = KnownContext(facts.max_position) if "max_context_len" in inputs else None
        self._loaded: LoadedModel | None = loaded  # its weights are mapped from a file as long as it exists
        self._request = loaded.compiled.create_infer_request()
        self._caches: list[list[Any]] = [[] for _ in self.pools]
        # those of exported graphs, with their own kind of tables
        self._has_state_inputs = "state_blocks" in inputs
        for port in cache_ports(loaded.compiled):
            kind = cache_kind(port, facts)
            # more than the scheduler uses: a scratch block, and for such graphs one that stays zero
            has_zeros = self._has_state_inputs and facts.cache_kinds[kind].has_states
            tensor = self._allocate(port, counts[kind] + (2 if has_zeros else 1))
            if has_zeros:
                tensor.data[-1] = 0
            self._caches[kind].append(tensor)
        self._bank = bank
        self._largest_step = _LARGE_STEP
        self._num_threads = int(loaded.compiled.get_property("INFERENCE_NUM_THREADS"))
        self.has_states = tuple(kind.has_states for kind in facts.cache_kinds)
        self._bytes_of = [self._rows_of_bytes(kind) for kind in range(len(self.pools))]
        self.block_bytes = tuple(sum(len(rows[0]) for rows in kind) for kind in self._bytes_of)
        self.long_context_from = facts.long_context_from

    def _allocate(self, port: Any, num_blocks: int) -> Any:
        shape = [num_blocks, *(dimension.get_length() for dimension in list(port.get_partial_shape())[1:])]
        tensor = ov.Tensor(port.get_element_type(), ov.Shape(shape))  # pages take no memory until they are written
        self._request.set_tensor(port, tensor)
        return tensor

    def _rows_of_bytes(self, kind: int) -> list[Array]:
        """The memory of all blocks of a kind: in each array u8 [blocks, bytes]."""
        return [tensor.data.reshape(tensor.shape[0], -1).view(np.uint8) for tensor in self._caches[kind]]

    def forward(self, batch: ForwardBatch) -> Array:
        num_rows = len(batch.logit_indices)
        if dummies := self._dummies(batch):
            batch = self._with_dummies(batch, dummies)
        self._set("input_ids", batch.input_ids)
        self._set("position_ids", batch.position_ids)
        self._set("subsequence_begins", batch.subsequence_begins)
        all_tables = self._tables(batch)
        for kind, tables in enumerate(all_tables[:-1] if self._has_state_inputs else all_tables):
            suffix = f".{kind}" if kind else ""
            self._set(f"past_lens{suffix}", tables.past_lens)
            self._set(f"block_indices{suffix}", tables.block_indices)
            self._set(f"block_indices_begins{suffix}", tables.block_indices_begins)
        if self.long_context_from is not None:
            regimes = np.zeros_like(batch.position_ids) if batch.regimes is None else batch.regimes
            self._set("rotary_regime", regimes)
        for name, values in self._picture_inputs(batch).items():
            self._set(name, values)
        if self._bank is not None:
            self._bank.set_inputs(self._request, batch.adapter_slots, len(batch.input_ids))
        if self._known_context is not None:
            self._set("max_context_len", np.array(self._known_context.tell(batch.max_context_len), dtype=np.int32))
        self._set("sampled_tokens_indices", _logit_indices(batch))
        if self._has_state_inputs:
            zero_block = self.pools[-1].num_blocks + 1
            for name, values in _state_inputs(batch, all_tables[-1], self.block_size, zero_block).items():
                self._set(name, values)
        self._request.start_async()
        self._request.wait()
        if len(batch.input_ids) > self._largest_step:
            self._largest_step = len(batch.input_ids)
            return_freed_memory()
        logits: Array = self._request.get_output_tensor(0).data
        return logits[:num_rows]

    def output(self, name: str) -> Array:
        values: Array = self._request.get_tensor(name).data
        return values

    def _picture_inputs(self, batch: ForwardBatch) -> dict[str, Array]:
        """The picture inputs of a graph that has them, also for a step without pictures. Dummy tokens have no picture."""
        facts, pictures = self._facts.pictures, batch.pictures
        if facts is None:
            return {}
        num_tokens = len(batch.input_ids)
        inputs: dict[str, Array] = {PICTURE_ROWS: _NO_ROWS, PICTURE_EMBEDDINGS: self._no_embeddings}
        if pictures is not None and len(pictures.rows):
            inputs = {PICTURE_ROWS: pictures.rows, PICTURE_EMBEDDINGS: pictures.embeddings}
        if facts.is_bidirectional:
            inputs[TOKEN_TYPES] = np.zeros(num_tokens, dtype=np.int32)
            inputs[TOKEN_TYPES][inputs[PICTURE_ROWS]] = 1
        if self._facts.has_axes:
            positions = np.repeat(batch.position_ids[None], 3, axis=0)
            if pictures is not None:
                positions[:, : pictures.positions.shape[1]] = pictures.positions
            inputs[ROTARY_POSITIONS] = positions
        return inputs

    def _set(self, name: str, values: Array) -> None:
        self._request.set_tensor(name, ov.Tensor(values))

    def _tables(self, batch: ForwardBatch) -> Sequence[BlockTables]:
        return [batch, *(batch.more_tables or [batch] * (len(self.pools) - 1))]

    def _dummies(self, batch: ForwardBatch) -> list[int]:
        dummies = [1] * batch.num_padding + self._dummies_of_attention(batch)
        if not dummies and len(batch.input_ids) == 1 and _has_adapter(batch):
            return [1]
        return dummies

    def _dummies_of_attention(self, batch: ForwardBatch) -> list[int]:
        if self._attends:  # the library of kernels computes rows alike in any batch
            return []
        if len(batch.input_ids) > len(batch.past_lens):  # some row has several tokens
            return []
        num_missing = self._num_threads - len(batch.past_lens) - batch.num_padding
        if num_missing <= 0:
            return []
        return [1] * num_missing if num_missing <= 2 else [2]

    def _with_dummies(self, batch: ForwardBatch, dummies: list[int]) -> ForwardBatch:
        first, *others = [
            self._with_scratch_blocks(tables, kind, len(dummies)) for kind, tables in enumerate(self._tables(batch))
        ]
        own_rows = _numbers(len(batch.past_lens), len(dummies))
        ends = np.cumsum(dummies, dtype=np.int32) + np.int32(len(batch.input_ids))
        return ForwardBatch(
            input_ids=np.concatenate([batch.input_ids, np.zeros(sum(dummies), dtype=np.int64)]),
            position_ids=np.concatenate([batch.position_ids, *(np.arange(count) for count in dummies)]),
            past_lens=first.past_lens,
            subsequence_begins=np.concatenate([batch.subsequence_begins, ends]),
            block_indices=first.block_indices,
            block_indices_begins=first.block_indices_begins,
            logit_indices=batch.logit_indices,
            max_context_len=batch.max_context_len,
            more_tables=tuple(others),
            regimes=None if batch.regimes is None else np.pad(batch.regimes, (0, sum(dummies))),
            pictures=batch.pictures,
            adapter_slots=batch.adapter_slots,
            first_rows=None if batch.first_rows is None else np.append(batch.first_rows, own_rows),
        )

    def _with_scratch_blocks(self, tables: BlockTables, kind: int, count: int) -> BlockTables:
        scratch = np.full(count, self.pools[kind].num_blocks, dtype=np.int32)
        begins = _numbers(len(tables.block_indices) + 1, count)
        return BlockTables(
            past_lens=np.concatenate([tables.past_lens, np.zeros(count, dtype=np.int32)]),
            block_indices=np.concatenate([tables.block_indices, scratch]),
            block_indices_begins=np.concatenate([tables.block_indices_begins, begins]),
        )

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        for tensor in self._caches[kind]:
            # bf16 appears as f16 in numpy; a copy of equal types moves the bytes unchanged
            blocks = tensor.data
            for source, destination in pairs:
                blocks[destination] = blocks[source]

    def block_parts(self, block: int, kind: int = 0) -> list[Array]:
        return [rows[block] for rows in self._bytes_of[kind]]

    def close(self) -> None:
        """Release the model and the cache's memory; on any thread, but not during a forward.

        The weights are freed with the last reference to the loaded model.
        """
        caches, self._caches = self._caches, []
        self._bytes_of = []
        self._request = self._bank = None  # refers to the caches
        for tensor in chain.from_iterable(caches):
            forget_pages(tensor.data)
        self._loaded = None


def _has_adapter(batch: ForwardBatch) -> bool:
    return batch.adapter_slots is not None and bool((batch.adapter_slots != NO_SLOT).any())


def _logit_indices(batch: ForwardBatch) -> Array:
    """The batch's; a single one twice beside adapters, as the end of the graph computes these rows only."""
    is_single = len(batch.logit_indices) == 1 and _has_adapter(batch)
    return np.repeat(batch.logit_indices, 2) if is_single else batch.logit_indices


def _state_inputs(batch: ForwardBatch, tables: BlockTables, block_size: int, zero_block: int) -> dict[str, Array]:
    """The inputs of layers with states. `tables`: of their kind. `zero_block`: a block with the initial state.

    A block holds one state, after its last computed token. A step overwrites the state that it changes, so it cannot be
    repeated.
    """
    lists: list[Array] = []
    for row in range(len(tables.past_lens)):
        blocks = tables.block_indices[tables.block_indices_begins[row] : tables.block_indices_begins[row + 1]]
        past = tables.past_lens[row]
        # The block with the last computed token; a sequence's first token has none before it.
        before = blocks[(past - 1) // block_size] if batch.past_lens[row] else zero_block
        lists.append(np.append(np.int32(before), blocks[past // block_size :]))
    begins = np.cumsum([0, *map(len, lists)])
    return {
        "state_blocks": np.concatenate(lists).astype(np.int32),
        "state_blocks_begins": begins.astype(np.int32),
        "state_interval": np.full(len(lists), block_size, dtype=np.int32),
    }
