"""Simulates the prefix cache under pressure: the part of the prompts that is found in it, for several kinds of traffic.

Does: run the real block manager, and beside it what evicts the least recently used, and the best that is possible (which
knows the future), over the same requests, one at a time. Does not: run a model. From the repository's root:

    python -m benchmarks.prefix_cache
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.blocks.block_pools import BlockPools

Chain = list[bytes]  # the digests of a prompt's blocks
Traffic = Callable[[random.Random], Iterator[Chain]]

NUM_BLOCKS = 600
PREFIX_BLOCKS = 30  # of each shared prefix


def chain(name: object, num_blocks: int, begin: int = 0) -> Chain:
    """The blocks [begin, num_blocks) of a prompt called `name`."""
    return [blake2b(f"{name}:{index}".encode(), digest_size=16).digest() for index in range(begin, num_blocks)]


def circle(num_prefixes: int) -> Traffic:
    """Prefixes one after the other, again and again, each time with another question of two blocks."""

    def traffic(_: random.Random) -> Iterator[Chain]:
        for number in range(1600):
            yield chain(number % num_prefixes, PREFIX_BLOCKS) + chain(("question", number), 2)

    return traffic


def popular(num_prefixes: int, exponent: float) -> Traffic:
    """Prefixes at random, the n-th as often as 1 / n ** exponent, with questions of four blocks."""
    weights = [1 / (rank + 1) ** exponent for rank in range(num_prefixes)]

    def traffic(dice: random.Random) -> Iterator[Chain]:
        for number, prefix in enumerate(dice.choices(range(num_prefixes), weights, k=2000)):
            yield chain(prefix, PREFIX_BLOCKS) + chain(("question", number), 4)

    return traffic


def beside_single_prompts(num_prefixes: int, num_blocks: int) -> Traffic:
    """Every second prompt is a long one that never comes back; the others are shared prefixes at random."""

    def traffic(dice: random.Random) -> Iterator[Chain]:
        for number in range(1000):
            yield chain(("single", number), num_blocks)
            yield chain(dice.randrange(num_prefixes), PREFIX_BLOCKS) + chain(("question", number), 2)

    return traffic


def conversations(num_users: int) -> Traffic:
    """Every turn repeats the conversation and adds six blocks; after 1 to 12 turns the user begins another one."""

    def traffic(dice: random.Random) -> Iterator[Chain]:
        turns = [[0.0, user, 0, dice.randint(1, 12), user] for user in range(num_users)]
        for turn in turns:
            turn[0] = dice.expovariate(1)
        heapify(turns)
        names = iter(range(num_users, 1_000_000))
        for _ in range(3000):
            time, user, done, planned, name = heappop(turns)
            yield chain("instructions", 10) + chain(("conversation", name), 6 * (int(done) + 1))
            done, planned, name = (
                (done + 1, planned, name) if done + 1 < planned else (0, dice.randint(1, 12), next(names))
            )
            heappush(turns, [time + dice.lognormvariate(0, 0.7), user, done, planned, name])

    return traffic


CASES: dict[str, Traffic] = {
    "in turn, 0.9 of the cache": circle(17),
    "in turn, 1.25 times the cache": circle(25),
    "in turn, twice the cache": circle(40),
    "popular ones (1/n), 4 times the cache": popular(80, 1.0),
    "popular ones (1/n^0.7), 8 times the cache": popular(160, 0.7),
    "half the cache, beside single prompts": beside_single_prompts(10, 60),
    "0.8 of the cache, beside single prompts": beside_single_prompts(16, 60),
    "20 conversations": conversations(20),
    "40 conversations": conversations(40),
    "160 conversations": conversations(160),
}


def found(chains: Sequence[Chain]) -> float:
    """The part of all blocks that the block manager found."""
    pools = BlockPools([CachePool(NUM_BLOCKS)], 1)
    num_found = 0
    for number, digests in enumerate(chains):
        prefix = pools.match_prefix(digests, pools.no_prefix)
        num_found += prefix.length
        pools.allocate(number, len(digests), prefix, len(digests))
        pools.commit(number, digests)
        pools.free(number)
    return num_found / sum(map(len, chains))


def found_by_recency(chains: Sequence[Chain]) -> float:
    """The same if the least recently used block were evicted."""
    cached: OrderedDict[bytes, None] = OrderedDict()
    num_found = 0
    for digests in chains:
        num_found += _num_cached(digests, cached)
        for digest in reversed(digests):
            cached[digest] = None
            cached.move_to_end(digest)
        while len(cached) > NUM_BLOCKS:
            cached.popitem(last=False)
    return num_found / sum(map(len, chains))


def found_at_best(chains: Sequence[Chain]) -> float:
    """The same if the block were evicted whose next use is farthest in the future (Belady, 1966)."""
    uses: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for number, digests in enumerate(chains):
        for digest in digests:
            uses[digest].append(number)
    cached: dict[bytes, int] = {}
    farthest: list[tuple[int, bytes]] = []
    num_found = 0
    for digests in chains:
        num_found += _num_cached(digests, cached)
        for digest in digests:
            uses[digest].popleft()
            cached[digest] = uses[digest][0] if uses[digest] else len(chains)
            heappush(farthest, (-cached[digest], digest))
        while len(cached) > NUM_BLOCKS:
            negative, digest = heappop(farthest)
            if cached.get(digest) == -negative:
                del cached[digest]
    return num_found / sum(map(len, chains))


def _num_cached(digests: Chain, cached: OrderedDict[bytes, None] | dict[bytes, int]) -> int:
    for index, digest in enumerate(digests):
        if digest not in cached:
            return index
    return len(digests)


def main() -> int:
    """Print a table of all cases; the exit code."""
    sys.stdout.write("| prefixes | found | least recently used | at best |\n|---|---|---|---|\n")
    for name, traffic in CASES.items():
        chains = list(traffic(random.Random(0)))
        parts = (found(chains), found_by_recency(chains), found_at_best(chains))
        sys.stdout.write(f"| {name} | " + " | ".join(f"{100 * part:.1f} %" for part in parts) + " |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
