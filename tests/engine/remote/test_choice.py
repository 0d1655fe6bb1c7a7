"""Which upstream a prompt goes to: the same for the same beginning, and never one that has far more than its share."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.remote.choice import BLOCK, LEADING_BLOCKS, SLACK, choose, prefix_digest, ranked

NAMES = st.lists(st.text("abcdef0123456789.:/", min_size=1, max_size=20), min_size=1, max_size=12, unique=True)
DIGESTS = st.integers(0, 2**64 - 1)
TOKENS = st.integers(0, 2**32)


@settings(deadline=None)
@given(st.binary(min_size=BLOCK * LEADING_BLOCKS, max_size=400), st.lists(TOKENS, max_size=50))
def test_a_digest_is_that_of_the_beginning(tokens: bytes, more: list[int]) -> None:
    prompt = list(tokens)
    begin = prompt[: BLOCK * LEADING_BLOCKS]
    assert prefix_digest(prompt) == prefix_digest(begin + more) == prefix_digest(begin) is not None


@settings(deadline=None)
@given(st.binary(min_size=BLOCK, max_size=BLOCK * LEADING_BLOCKS), st.data())
def test_another_token_in_a_leading_block_or_another_salt_gives_another_digest(
    tokens: bytes, data: st.DataObject
) -> None:
    prompt = list(tokens)
    whole = len(prompt) // BLOCK * BLOCK
    position = data.draw(st.integers(0, whole - 1))
    changed = [*prompt[:position], prompt[position] + 1, *prompt[position + 1 :]]
    assert prefix_digest(changed) != prefix_digest(prompt)
    assert prefix_digest(prompt, "salt") != prefix_digest(prompt)


def test_a_prompt_shorter_than_a_block_has_no_digest() -> None:
    assert prefix_digest(range(BLOCK - 1)) is None
    assert prefix_digest(range(BLOCK)) == prefix_digest(range(2 * BLOCK - 1))


@settings(deadline=None)
@given(NAMES, DIGESTS, st.data())
def test_without_an_upstream_only_its_own_prompts_move(names: list[str], digest: int, data: st.DataObject) -> None:
    order = ranked(names, digest)
    assert sorted(order) == sorted(names)
    gone = data.draw(st.sampled_from(names))
    assert ranked([name for name in names if name != gone], digest) == [name for name in order if name != gone]


def test_prompts_are_spread_evenly() -> None:
    names = [f"http://10.0.0.{number}:8000/v1" for number in range(8)]
    counts = Counter(ranked(names, prefix_digest([number] * BLOCK) or 0)[0] for number in range(4000))
    assert all(400 < counts[name] < 600 for name in names)


@settings(deadline=None)
@given(NAMES, DIGESTS, st.data())
def test_a_load_stays_within_its_bound(names: list[str], digest: int, data: st.DataObject) -> None:
    loads = {name: data.draw(st.integers(0, 50)) for name in names}
    chosen = choose(loads, digest)
    assert loads[chosen] + 1 <= math.ceil((1 + SLACK) * (sum(loads.values()) + 1) / len(loads)) or len(loads) == 1
    idle = dict.fromkeys(names, 0)
    assert choose(idle, digest) == ranked(names, digest)[0]


@settings(deadline=None)
@given(NAMES, st.data())
def test_without_a_digest_the_least_busy_is_chosen(names: list[str], data: st.DataObject) -> None:
    loads = {name: data.draw(st.integers(0, 50)) for name in names}
    assert loads[choose(loads, None)] == min(loads.values())


@pytest.mark.parametrize("num_requests", [1, 10, 100])
def test_a_hot_prefix_spills_over_in_the_order_of_its_ranking(num_requests: int) -> None:
    names = list("abcdefgh")
    loads = dict.fromkeys(names, 0)
    for _ in range(num_requests):
        loads[choose(loads, 12345)] += 1
    order = ranked(names, 12345)
    assert [loads[name] for name in order] == sorted(loads.values(), reverse=True)
    assert max(loads.values()) <= math.ceil((1 + SLACK) * num_requests / len(names))
