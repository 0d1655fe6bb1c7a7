"""Makes the inputs of layers with states: where a step's sequences read their states and write new ones.

Used on the engine thread. A block holds one state, after its last computed token. A step overwrites the state that it
changes, so it cannot be repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch

Array = np.ndarray[Any, Any]


def state_inputs(batch: ForwardBatch, tables: BlockTables, block_size: int, zero_block: int) -> dict[str, Array]:
    """The graph's inputs for a step. `tables`: of the kind with states. `zero_block`: a block with the initial state."""
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
