"""Which replica a request goes to."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.affinity import MAX_OVERLOAD, most_requests, preferred, prefix_key
from dragoman.types import BLOCK_TOKENS, EngineRequest, Picture, PictureSpan, SamplingParams

NAMES = [f"replica-{number}" for number in range(8)]


def asking(*prompt_ids: int, **values: object) -> EngineRequest:
    return msgspec.structs.replace(EngineRequest("r", prompt_ids, SamplingParams(), 8, 1), **values)


def key(number: int) -> bytes:
    return prefix_key(asking(*[number] * BLOCK_TOKENS))


IDLE = dict.fromkeys(NAMES, 0)


def test_prompts_with_the_same_beginning_have_the_same_key_and_others_do_not() -> None:
    start = range(64)
    assert prefix_key(asking(*start, 1, 2), 64) == prefix_key(asking(*start, *range(300)), 64)
    assert prefix_key(asking(*start), 64) != prefix_key(asking(99, *start), 64)


def test_what_engines_do_not_share_has_another_key() -> None:
    plain = asking(*range(40))
    picture = PictureSpan(Picture(1, 1, b"\0\0\0", "digest"), 3, 5)
    others = [
        msgspec.structs.replace(plain, cache_salt="x"),
        msgspec.structs.replace(plain, adapter="x"),
        msgspec.structs.replace(plain, cache_key="x"),
        msgspec.structs.replace(plain, pictures=(picture,)),
    ]
    assert len({prefix_key(one) for one in (plain, *others)}) == 5
    late = msgspec.structs.replace(plain, pictures=(msgspec.structs.replace(picture, begin=35),))
    assert prefix_key(late) == prefix_key(plain)


def test_a_prompt_shorter_than_a_block_goes_where_least_is_to_do() -> None:
    assert prefix_key(asking(*range(BLOCK_TOKENS - 1))) == b""
    assert preferred(b"", {"a": 3, "b": 0, "c": 1}) == ["b", "c", "a"]


def test_requests_of_one_key_go_together_however_short_their_prompts_are() -> None:
    first, second, other = (prefix_key(asking(1, 2, cache_key=one)) for one in ("a", "a", "b"))
    assert first == second != other
    assert b"" not in (first, other)


def test_the_order_of_a_key_does_not_depend_on_who_is_asked_in_which_order() -> None:
    assert preferred(key(1), IDLE) == preferred(key(1), dict(reversed(IDLE.items())))
    assert sorted(preferred(key(1), IDLE)) == NAMES


def test_keys_are_spread_over_all_replicas() -> None:
    firsts = Counter(preferred(key(number), IDLE)[0] for number in range(800))
    assert min(firsts[name] for name in NAMES) > 60


def test_a_replica_that_goes_moves_its_own_keys_only() -> None:
    fewer = dict.fromkeys(NAMES[1:], 0)
    for number in range(200):
        before = preferred(key(number), IDLE)
        assert preferred(key(number), fewer) == [name for name in before if name != NAMES[0]]


def test_a_replica_above_the_bound_is_passed_over_until_it_has_room() -> None:
    first, second, *_ = preferred(key(5), IDLE)
    busy = dict.fromkeys(NAMES, 4)
    assert preferred(key(5), busy)[0] == first
    assert preferred(key(5), {**busy, first: 9})[0] == second
    assert preferred(key(5), {**busy, first: 9})[-1] == first


def test_with_one_request_each_nobody_is_above_the_bound() -> None:
    first = preferred(key(5), IDLE)[0]
    assert preferred(key(5), {**IDLE, first: 1})[0] != first  # a second one goes elsewhere while others have nothing
    assert preferred(key(5), dict.fromkeys(NAMES, 1))[0] == first
    assert preferred(key(5), {"only": 30}) == ["only"]


@pytest.mark.parametrize("load", range(8))
def test_a_replica_at_the_mean_is_not_passed_over(load: int) -> None:
    first, second, third, *_ = preferred(key(5), IDLE)
    uneven = {**dict.fromkeys(NAMES, load), second: load + 1, third: max(load - 1, 0)}
    assert preferred(key(5), uneven)[0] == first


@pytest.mark.parametrize("mean", [1, 2, 3])
@pytest.mark.parametrize("num_replicas", [2, 8])
def test_most_requests_go_where_their_beginning_is_known_while_few_run(num_replicas: int, mean: int) -> None:
    dice, loads = random.Random(0), dict.fromkeys(NAMES[:num_replicas], 0)
    homes = {number: preferred(key(number), loads)[0] for number in range(50)}
    running: list[str] = []
    num_home = 0
    for _ in range(2000):
        if len(running) == mean * num_replicas:
            loads[running.pop(dice.randrange(len(running)))] -= 1
        number = dice.choice(list(homes))
        chosen = preferred(key(number), loads)[0]
        num_home += chosen == homes[number]
        loads[chosen] += 1
        running.append(chosen)
    assert num_home / 2000 > 0.6  # chance is one in num_replicas


@pytest.mark.parametrize("num_requests", [1, 10, 500])
def test_one_popular_beginning_keeps_no_replica_busier_than_the_bound(num_requests: int) -> None:
    loads = dict(IDLE)
    for _ in range(num_requests):
        loads[preferred(key(7), loads)[0]] += 1
    assert max(loads.values()) <= max(1, 1.25 * (num_requests + 1) / len(NAMES) + 1)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 2**32))
def test_a_load_stays_within_its_bound(loads: list[int], number: int) -> None:
    named = {f"http://10.0.0.{place}": load for place, load in enumerate(loads)}
    chosen = preferred(key(number), named)[0]
    assert named[chosen] < most_requests(loads) < MAX_OVERLOAD * (sum(loads) + 1) / len(loads) + 1


@pytest.mark.parametrize("num_requests", [1, 10, 100])
def test_a_prefix_that_everybody_wants_spills_over_in_the_order_of_its_ranking(num_requests: int) -> None:
    loads = dict.fromkeys(NAMES, 0)
    for _ in range(num_requests):
        loads[preferred(key(5), loads)[0]] += 1
    order = preferred(key(5), IDLE)
    assert [loads[name] for name in order] == sorted(loads.values(), reverse=True)
