"""Batch building: the arrays of a mixed step, by hand."""

from __future__ import annotations

from array import array
from typing import Any

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.forward.batch import BatchBuffers, ScheduledBatch, ScheduledSequence, build_forward_batch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest, Sequence, SequenceGroup
from tests.engine.naive import make_request


def start(blocks: BlockPools, key: int, prompt_ids: list[int], num_computed: int, **sampling: Any) -> Sequence:
    group = SequenceGroup(AddRequest(key, make_request(prompt_ids, **sampling)), key, Sampler(16))
    sequence = group.sequences[0]
    num_tokens = len(prompt_ids) + 4
    blocks.allocate(sequence.sequence_id, num_tokens, blocks.no_prefix, num_tokens)
    sequence.num_computed_tokens = num_computed
    return sequence


def scheduled(*entries: ScheduledSequence) -> ScheduledBatch:
    batch = ScheduledBatch()
    for entry in entries:
        batch.add(entry)
    return batch


def test_a_mixed_step_lists_each_row_once_and_sampled_rows_before_prompt_rows() -> None:
    blocks = BlockPools([CachePool(16)], block_size=4)
    scored = start(blocks, 0, [1, 2, 3, 4, 5, 6], 2, prompt_logprobs=0)
    scored.group.prompt_logprobs = [None, None, None]  # rows 0 and 1 are done, row 2 is next
    decoding = start(blocks, 1, [7, 8, 9, 10, 11], 4)
    forking = start(blocks, 2, [12, 13], 0, n=3)
    forward = build_forward_batch(
        scheduled(
            ScheduledSequence(scored, 3, 0, num_prompt_rows=3),
            ScheduledSequence(decoding, 1, 1),
            ScheduledSequence(forking, 2, 3),
        ),
        blocks,
        BatchBuffers(32, 64),
    )
    assert forward.input_ids.tolist() == [3, 4, 5, 11, 12, 13]
    assert forward.position_ids.tolist() == [2, 3, 4, 4, 0, 1]
    assert forward.past_lens.tolist() == [2, 4, 0]
    assert forward.subsequence_begins.tolist() == [0, 3, 4, 6]
    assert forward.block_indices_begins.tolist() == [0, 2, 4, 5]
    tables = [
        blocks.table(sequence.sequence_id)[:count] for sequence, count in ((scored, 2), (decoding, 2), (forking, 1))
    ]
    assert forward.block_indices.tolist() == [block for table in tables for block in table]
    assert forward.logit_indices.tolist() == [3, 5, 5, 5, 0, 1, 2]
    assert forward.max_context_len == 5


def test_a_row_with_drafts_gets_logits_after_each_of_them() -> None:
    blocks = BlockPools([CachePool(16)], block_size=4)
    sequence = start(blocks, 0, [1, 2, 3], 2)
    sequence.set_drafts(array("q", [4, 5]))
    forward = build_forward_batch(scheduled(ScheduledSequence(sequence, 3, 3)), blocks, BatchBuffers(32, 64))
    assert forward.input_ids.tolist() == [3, 4, 5]
    assert forward.logit_indices.tolist() == [0, 1, 2]


def test_buffers_grow_when_a_step_lists_more_blocks_or_rows_than_ever_before() -> None:
    blocks = BlockPools([CachePool(700)], block_size=1)
    prompt = list(range(600))
    first = start(blocks, 0, prompt, 599)
    batch = ScheduledBatch()
    for key in range(300):
        sequence = SequenceGroup(AddRequest(key + 1, make_request(prompt)), key + 1, Sampler(16)).sequences[0]
        blocks.fork(first.sequence_id, sequence.sequence_id)
        sequence.num_computed_tokens = 599
        batch.add(ScheduledSequence(sequence, 1, 1))
    forward = build_forward_batch(batch, blocks, BatchBuffers(400, 700))
    expected = list(blocks.table(first.sequence_id)[:600])
    assert forward.block_indices.tolist() == expected * 300
    assert forward.logit_indices.tolist() == list(range(300))


def test_tables_of_a_window_begin_with_what_the_first_new_token_sees() -> None:
    blocks = BlockPools([CachePool(16), CachePool(16, 6)], block_size=4)
    whole = start(blocks, 0, [1, 2, 3], 2)
    passed = start(blocks, 1, list(range(16)), 14)  # the token at 14 sees 9 to 14
    blocks.pass_blocks(passed.sequence_id, 14)
    forward = build_forward_batch(
        scheduled(ScheduledSequence(whole, 1, 1), ScheduledSequence(passed, 2, 1)), blocks, BatchBuffers(32, 64, 2)
    )
    assert forward.position_ids.tolist() == [2, 14, 15]
    assert forward.max_context_len == 16
    (second,) = forward.more_tables
    assert forward.past_lens.tolist() == [2, 14]
    assert forward.block_indices_begins.tolist() == [0, 1, 5]
    assert second.past_lens.tolist() == [2, 6]
    assert second.block_indices_begins.tolist() == [0, 1, 3]
    assert second.block_indices.tolist() == [blocks.table(0, 1)[0], *blocks.table(passed.sequence_id, 1)[:2]]


def test_a_step_of_inner_chunks_wants_no_logits() -> None:
    blocks = BlockPools([CachePool(16)], block_size=4)
    sequence = start(blocks, 0, [1, 2, 3, 4, 5, 6], 0)
    forward = build_forward_batch(scheduled(ScheduledSequence(sequence, 4, 0)), blocks, BatchBuffers(32, 64))
    assert forward.logit_indices.tolist() == []
