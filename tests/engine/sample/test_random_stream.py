"""The counter-based generator: known answers, uniformity, independence of what else is computed."""

from __future__ import annotations

import numpy as np
import pytest

from dragoman.engine.rolling.sample.sampler import philox4x32, uniforms
from tests.support.sampling import chi_square, chi_square_limit

# Known answers of philox4x32-10, published with Random123 (kat_vectors): counter, key, expected words.
KNOWN_ANSWERS = [
    pytest.param((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8), id="zeros"),
    pytest.param((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD), id="ones"),
    pytest.param(
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        id="pi",
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    words = philox4x32(np.array(counter, dtype=np.uint64)[:, None], np.array(key, dtype=np.uint64)[:, None])
    assert tuple(words[:, 0].tolist()) == expected


def test_a_number_does_not_depend_on_the_numbers_computed_with_it() -> None:
    seeds, indices, positions = [5, 6, 7, 2**64 - 1], [0, 1, 0, 3], [9, 9, 10, 400]
    together = uniforms(seeds, indices, positions)
    alone = [uniforms([s], [i], [p])[0] for s, i, p in zip(seeds, indices, positions, strict=True)]
    assert together.tolist() == alone


@pytest.mark.parametrize("varied", ["seed", "sequence index", "position"])
def test_every_part_of_the_key_changes_the_number(varied: str) -> None:
    names = ["seed", "sequence index", "position"]
    seeds, indices, positions = (list(range(1000)) if name == varied else [3] * 1000 for name in names)
    numbers = {*uniforms(seeds, indices, positions).tolist(), *uniforms(seeds, indices, positions, purpose=1).tolist()}
    assert len(numbers) == 2000


def test_seeds_beyond_64_bits_and_negative_seeds_are_seeds_too() -> None:
    numbers = uniforms([-1, 2**64 - 1, 2**64 + 5, 5], [0] * 4, [0] * 4)
    assert numbers[0] == numbers[1]
    assert numbers[2] == numbers[3]


def test_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = uniforms([11] * 20_000, [0] * 20_000, range(20_000))
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.bincount((numbers * 100).astype(np.int64), minlength=100)
    assert chi_square(counts, np.full(100, 0.01)) < chi_square_limit(100)


def test_successive_numbers_of_a_stream_are_uncorrelated() -> None:
    numbers = uniforms([11] * 20_000, [0] * 20_000, range(20_000))
    pairs = (numbers[:-1] * 10).astype(np.int64) * 10 + (numbers[1:] * 10).astype(np.int64)
    counts = np.bincount(pairs, minlength=100)
    assert chi_square(counts, np.full(100, 0.01)) < chi_square_limit(100)
