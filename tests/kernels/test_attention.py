"""Attention over block tables by the library of kernels: what is read, and that company changes no bit of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.kernels.graph import BLOCK_SLOTS, AttentionLayout
from dragoman.kernels.native import Library
from tests.kernels.attended import Attending, Kind, Row, Texts, expected

pytestmark = pytest.mark.varies("each instruction set has kernels of its own")

KINDS = (
    Kind(AttentionLayout(4, 2, 16, 16, "f32", 0.25)),
    Kind(AttentionLayout(7, 1, 64, 64, "f16", 0.125)),
    Kind(AttentionLayout(2, 2, 24, 13, "bf16", 0.2)),
    Kind(AttentionLayout(6, 2, 32, 48, "u8", 0.2)),
    Kind(AttentionLayout(3, 3, 40, 40, "f32", 0.2, window=50)),
    Kind(AttentionLayout(4, 1, 16, 80, "f16", 0.3, window=300, cap=5.0)),
    Kind(AttentionLayout(4, 2, 16, 16, "f32", 0.5, cap=2.0)),
    Kind(AttentionLayout(4, 4, 8, 8, "bf16", 0.5), has_slopes=True),
    Kind(AttentionLayout(4, 2, 16, 16, "f32", 0.5, window=70), has_sinks=True),
    Kind(AttentionLayout(8, 2, 16, 16, "u8", 0.5), has_sinks=True),
    Kind(AttentionLayout(4, 2, 40, 24, "u8", 0.2, window=70)),
    Kind(AttentionLayout(4, 2, 16, 16, "f32", 0.5), has_types=True),
    Kind(AttentionLayout(4, 2, 16, 16, "f16", 0.5, window=64), has_types=True),
    Kind(AttentionLayout(1, 1, 5, 1, "f32", 1.0)),
)
TOLERANCE = {"f32": 1e-5, "f16": 1e-5, "bf16": 8e-3, "u8": 2e-3}
# Of a context that is computed before a step, and of a row in it: at the borders of blocks, tiles and parts.
LENGTHS = st.sampled_from([1, 2, 31, 32, 33, 64, 100, 255, 256, 257, 300, 515])
NEW = st.sampled_from([1, 1, 1, 2, 3, 17, 32, 40])


def texts_of(kind: Kind, shapes: list[tuple[int, int, int]], seed: int) -> Texts:
    """Sequences of so many tokens, the first blocks of which may be the first sequence's: (past, new, shared blocks)."""
    generator = np.random.default_rng(seed)
    layout = kind.layout
    texts = Texts([], [], [], [])
    numbers = iter(generator.permutation(4000).tolist())
    for past, new, num_shared in shapes:
        length = past + new
        shared = min(num_shared, shapes[0][0] // BLOCK_SLOTS, past // BLOCK_SLOTS) if texts.q else 0
        for heads, size, kept in (
            (layout.num_heads, layout.head_size, texts.q),
            (layout.num_kv_heads, layout.head_size, texts.k),
            (layout.num_kv_heads, layout.value_size, texts.v),
        ):
            fresh = generator.normal(size=(length, heads, size)).astype(np.float32)
            if shared:
                fresh[: shared * BLOCK_SLOTS] = kept[0][: shared * BLOCK_SLOTS]
            kept.append(fresh)
        blocks = [next(numbers) for _ in range(-(-length // BLOCK_SLOTS) - shared)]
        texts.blocks.append([*(texts.blocks[0][:shared] if shared else []), *blocks])
        texts.types.append((generator.random(length) < 0.5).astype(np.int32))
    return texts


def passed_blocks(kind: Kind, begin: int) -> int:
    """Whole blocks before all that a token at that position sees."""
    return max(begin - kind.layout.window + 1, 0) // BLOCK_SLOTS if kind.layout.window else 0


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    shapes=st.lists(st.tuples(LENGTHS, NEW, st.integers(0, 9)), min_size=1, max_size=6),
    forms=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
def test_rows_read_their_context_with_the_same_bits_in_any_company(
    kernels: Library, kind: Kind, shapes: list[tuple[int, int, int]], forms: list[tuple[bool, bool]], seed: int
) -> None:
    texts = texts_of(kind, shapes, seed)
    together = Attending(kind, 4000)
    together.step(texts, [Row(number, 0, past) for number, (past, _, _) in enumerate(shapes)])
    rows = []
    for number, ((past, new, _), (is_single, leaves_out)) in enumerate(zip(shapes, forms, strict=False)):
        passed = passed_blocks(kind, past) if leaves_out else 0
        # A sequence's tokens in one row, or in a row each; those that see later ones are in one.
        pieces = [1] * new if is_single and not kind.has_types else [new]
        begin = past
        for piece in pieces:
            rows.append(Row(number, begin, begin + piece, passed))
            begin += piece
    found = together.step(texts, rows)
    for row, results in zip(rows, found, strict=True):
        np.testing.assert_allclose(
            results, expected(kind, texts, row), rtol=1e-4, atol=TOLERANCE[kind.layout.cache_type] * 4
        )
    alone = Attending(kind, 4000)
    for number, (past, new, _) in enumerate(shapes):
        own = np.concatenate([results for row, results in zip(rows, found, strict=True) if row.sequence == number])
        if kind.has_types:
            alone.step(texts, [Row(number, 0, past)])
            again = alone.step(texts, [Row(number, past, past + new)])
        else:  # cut elsewhere, and the step's tokens one after the other
            cut = past // 3
            for begin, end in ((0, cut), (cut, past)):
                if end > begin:
                    alone.step(texts, [Row(number, begin, end)])
            again = [alone.step(texts, [Row(number, at, at + 1)])[0] for at in range(past, past + new)]
        np.testing.assert_array_equal(own, np.concatenate(again))


def test_keys_in_u8_are_near_where_all_of_them_have_a_few_large_numbers(kernels: Library) -> None:
    """As Qwen 2.5's keys have, whose biases are a hundred times what they say of a token."""
    kind = Kind(AttentionLayout(4, 2, 64, 16, "u8", 0.125))
    texts = texts_of(kind, [(100, 1, 0)], 0)
    texts.k[0][..., [3, 40]] += 300
    reading, row = Attending(kind, 4000), Row(0, 100, 101)
    reading.step(texts, [Row(0, 0, 100)])
    exact = expected(Kind(replace(kind.layout, cache_type="f32")), texts, row)
    np.testing.assert_allclose(reading.step(texts, [row])[0], exact, atol=0.02)


def test_small_weights_in_u8_count_beside_a_large_one_whose_values_are_small(kernels: Library) -> None:
    """As the first token has in most models: weights are rounded, and what many of them lose must not add up."""
    kind = Kind(AttentionLayout(1, 1, 64, 64, "u8", 0.125))
    texts = texts_of(kind, [(255, 1, 0)], 0)
    texts.q[0] /= 4
    query = texts.q[0][255]
    texts.k[0][0] = query * np.float32(72 / np.square(query).sum())  # a score of 9
    texts.v[0][0] *= 1e-3
    texts.v[0][1:] += 2
    reading, row = Attending(kind, 4000), Row(0, 255, 256)
    reading.step(texts, [Row(0, 0, 255)])
    np.testing.assert_allclose(reading.step(texts, [row])[0], expected(kind, texts, row), rtol=3e-3)
