"""Measures what prompts on disk bring: first tokens after a restart, and what neighbours, throughput and sessions notice.

Does: run engines in fresh processes, one after the other, over one directory; a table of ratios, all of one run, and one
last JSON line. Does not: start a server, or judge. Run by hand, on an otherwise idle machine:

    python -m benchmarks.prefix_store --model MODEL_DIR                    (five minutes for 386 million parameters)
    python -m benchmarks.prefix_store --known 256 --visits 2 --turns 6     (the bundled model, for a look)

MODEL_DIR needs no tokenizer. Where its context is too short it is made longer, in a copy of its config.json. The directory
lies where TMPDIR says, which should be a disk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.start import drop_from_page_cache, read_s
from dragoman.config.resolve import demo_model_dir

STORE_GB = 8.0
PROMPT_TOKENS, ANSWER_TOKENS, AT_ONCE = 256, 32, 8  # of throughput
SYSTEM_TOKENS, TURN_TOKENS, TURN_ANSWER, NUM_LIVES = (
    2000,
    150,
    8,
    4,
)  # of the session; with so many lives, three restarts
NUM_PREFIXES = 2  # that are visited in turn, beside a cache with room for one
QUESTION_TOKENS = 8  # new ones behind known ones
ALONE_S = 0.7  # before each visit, in which a neighbour has the engine to itself
_FAMILIAR = 600  # tokens of a prompt with which every life begins: kernels are ready, and the cost of a step is known


# --- in the process of one life ---------------------------------------------------------------------------------------


def tokens(seed: object, count: int) -> tuple[int, ...]:
    """A prompt of random tokens, the same for the same seed."""
    dice = random.Random(str(seed))
    return tuple(dice.randrange(3, 250) for _ in range(count))


@dataclass(slots=True)
class Life:
    """An engine from its start to its end, and what it is to do. `facts`: as the measuring process sends them."""

    engine: Any
    facts: Mapping[str, Any]
    _count: int = 0

    async def ask(self, prompt_ids: Sequence[int], max_tokens: int = 1) -> tuple[float, list[int], int]:
        """(Seconds to the first token, the answer, cached tokens)."""
        from dragoman.types import EngineRequest, SamplingParams

        self._count += 1
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        request = EngineRequest(f"r{self._count}", tuple(prompt_ids), sampling, max_tokens, seed=1)
        begin_s, first_s, answer, num_cached = time.perf_counter(), 0.0, [], 0
        async for output in self.engine.generate(request):
            first_s = first_s or time.perf_counter() - begin_s
            answer += output.token_ids
            num_cached += output.num_cached_tokens
        return first_s, answer, num_cached

    # What a life can do, by name.

    async def first(self) -> dict[str, Any]:
        """Answer new questions behind known tokens, then the known tokens alone: from the second on they are in memory."""
        known = tokens("known", self.facts["known"])
        first_s, _, num_cached = await self.ask((*known, *tokens("question", QUESTION_TOKENS)))
        again_s = (await self.ask((*known, *tokens("another", QUESTION_TOKENS))))[0]
        return {"first_s": first_s, "cached": num_cached, "again_s": again_s, "same_s": (await self.ask(known))[0]}

    async def fill(self) -> dict[str, Any]:
        """Compute the prefixes that are visited later."""
        for number in range(NUM_PREFIXES):
            await self.ask(tokens(number, self.facts["known"]))
        return {}

    async def neighbour(self) -> dict[str, Any]:
        """Decode a stream, alone and while somebody else's first token comes behind known tokens, in turn."""
        if self.facts["in_memory"]:
            await self.fill()
        prompts = [  # beforehand, since it takes time from the engine's thread
            (*tokens(number % NUM_PREFIXES, self.facts["known"]), *tokens(("question", number), QUESTION_TOKENS))
            for number in range(self.facts["visits"])
        ]
        times, has_begun = [time.perf_counter()], asyncio.Event()

        async def decode() -> None:
            from dragoman.types import EngineRequest, SamplingParams

            sampling = SamplingParams(temperature=0.0, ignore_eos=True)
            for turn in range(1_000_000):  # for as long as it takes: the context is short
                prompt = tokens(("neighbour", turn), 64)
                request = EngineRequest(f"n{turn}", prompt, sampling, self.facts["known"] // 4, seed=1)
                async for output in self.engine.generate(request):
                    times.extend([time.perf_counter()] * len(output.token_ids))
                    has_begun.set()

        decoding = asyncio.create_task(decode())
        await has_begun.wait()
        alone, visits, num_found = [], [], 0
        for prompt in prompts:
            begin_s = time.perf_counter()
            await asyncio.sleep(ALONE_S)
            visit_s = time.perf_counter()
            first_s, _, num_cached = await self.ask(prompt)
            alone.append((begin_s, visit_s))
            visits.append((visit_s, visit_s + first_s))
            num_found += num_cached
        await asyncio.sleep(0.1)  # the token after the last visit
        decoding.cancel()
        await asyncio.gather(decoding, return_exceptions=True)
        stats = self.engine.stats()
        return {
            "alone": rate(times, alone),
            "visited": rate(times, visits),
            "all": rate(times, [*alone, *visits]),
            "visit_s": statistics.mean(end_s - begin_s for begin_s, end_s in visits),
            "found": num_found,
            "read_bytes": stats.num_stored_read_bytes or 0,
        }

    async def throughput(self) -> dict[str, Any]:
        """Answer prompts that have nothing in common."""
        begin_s, room = time.perf_counter(), asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                await self.ask(tokens(("load", self.facts["round"], number), PROMPT_TOKENS), ANSWER_TOKENS)

        num_requests = self.facts["requests"]
        await asyncio.gather(*map(one, range(num_requests)))
        num_tokens = num_requests * (PROMPT_TOKENS + ANSWER_TOKENS)
        return {"tokens_per_s": num_tokens / (time.perf_counter() - begin_s)}

    async def session(self) -> dict[str, Any]:
        """Some turns of an agent's session, which goes on from a file and is left there."""
        path = Path(self.facts["history"])
        history = list(tokens("system", self.facts["system"]))
        if self.facts["turns"][0]:
            history = json.loads(await asyncio.to_thread(path.read_text))
        before = self.engine.stats().num_prompt_tokens
        for turn in range(*self.facts["turns"]):
            history += tokens(("turn", turn), TURN_TOKENS)
            history += (await self.ask(history, TURN_ANSWER))[1]
            await asyncio.sleep(self.facts["pause_s"])  # a tool runs, a person reads
        await asyncio.to_thread(path.write_text, json.dumps(history))
        return {"computed": self.engine.stats().num_prompt_tokens - before}


def rate(times: Sequence[float], spans: Sequence[tuple[float, float]]) -> float:
    """Tokens a second within spans of time, of a stream whose tokens came at `times`; a token counts in parts."""
    num_tokens = sum(float(np.diff(np.interp(span, times, range(len(times))))[0]) for span in spans)
    return num_tokens / sum(end_s - begin_s for begin_s, end_s in spans)


@asynccontextmanager
async def living(facts: Mapping[str, Any]) -> AsyncIterator[Life]:
    """An engine over the model, started and familiar with prompts; it has written what it is to write when this ends."""
    from dragoman.engine.base import EngineTools
    from dragoman.engine.factory import EngineSetup, find_factory

    def no_texts(*_: object) -> Any:
        raise NotImplementedError("requests of this benchmark have no texts")

    store = {"prefix_store_gb": STORE_GB, "prefix_store_dir": Path(facts["store"])} if facts["store"] else {}
    options = {
        "dtype": facts["dtype"],
        "cache_dir": Path(facts["work"]) / "kept",
        "max_model_len": facts["max_model_len"],
        "kv_cache_gb": facts["kv_cache_gb"],
        "max_num_seqs": AT_ONCE,  # with more, small caches would have another type
        "speculation": "off",
        **store,
    }
    factory = find_factory("rolling")
    loaded = await asyncio.to_thread(factory.load, EngineSetup(Path(facts["model"]), options, given=frozenset(options)))
    built = await asyncio.to_thread(loaded.build, EngineTools(no_texts, no_texts), 1 << 40)
    engine = built.engine
    await engine.start()
    try:
        life = Life(engine, facts)
        length = min(_FAMILIAR, facts["max_model_len"] - 8)
        await life.ask(tokens(("familiar", facts["life"]), length), 4)
        yield life
    finally:
        await engine.shutdown(0.0)


async def live(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What came of it."""
    async with living(facts) as life:
        result: dict[str, Any] = await getattr(life, facts["does"])()
    return result


# --- in the process that measures -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bench:
    """Lives over one directory. `base`: the facts that all of them share."""

    base: dict[str, Any]
    work: Path
    num_lives: int = 0

    @property
    def store(self) -> Path:
        """The directory of all lives that have one."""
        return self.work / "store"

    @property
    def files(self) -> list[Path]:
        """The files in it with blocks."""
        return sorted(self.store.glob("*.blocks"))

    def live(self, does: str, *, has_store: bool = True, **facts: Any) -> dict[str, Any]:
        """Run a life in a process of its own; what came of it. Raises: SystemExit if it failed."""
        self.num_lives += 1
        store = str(self.store) if has_store else ""
        asked = {**self.base, "store": store, "does": does, "life": self.num_lives, **facts}
        command = [sys.executable, "-m", "benchmarks.prefix_store", "--life", json.dumps(asked)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{does} failed:\n{done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def measure_first(bench: Bench, rounds: int) -> dict[str, Any]:
    """First tokens behind known ones: computed, then read by restarted engines."""
    computed = bench.live("first")
    size = sum(path.stat().st_size for path in bench.files)
    found: dict[str, Any] = {"computed_s": computed["first_s"], "bytes": size}
    for name in ("cached", "cold"):
        firsts, reads, again, same, hits, is_cold = [], [], [], [], 0, True
        for _ in range(rounds):
            files = bench.files
            if name == "cold":
                is_cold &= drop_from_page_cache(files)
            reads.append(read_s(files))
            if name == "cold":
                is_cold &= drop_from_page_cache(files)
            life = bench.live("first")
            firsts.append(life["first_s"])
            again.append(life["again_s"])
            same.append(life["same_s"])
            hits = life["cached"]
        found[name] = {
            "first_s": min(firsts),
            "again_s": min(again),
            "same_s": min(same),
            "read_s": min(reads),
            "found": hits,
            "is_cold": name == "cold" and is_cold,
        }
    return found


def measure_neighbour(bench: Bench, bytes_per_token: float) -> dict[str, Any]:
    """A stream's tokens a second while somebody else's first token comes, from disk and from memory."""
    length = bench.base["known"] + 64
    room = {"small": 1.3 * length, "large": (NUM_PREFIXES + 1) * length}
    gb = {name: max(count * bytes_per_token, 1e6) / 1e9 for name, count in room.items()}
    bench.live("fill", max_model_len=length, kv_cache_gb=gb["large"])
    small, large = (
        bench.live("neighbour", max_model_len=length, kv_cache_gb=gb[name], in_memory=name == "large")
        for name in ("small", "large")
    )
    return {"disk": small, "memory": large}


def measure_throughput(bench: Bench, bytes_per_token: float, rounds: int, num_requests: int) -> dict[str, list[float]]:
    """Tokens a second with the store and without, in turn, where the cache is small and evictions are many."""
    length = PROMPT_TOKENS + ANSWER_TOKENS + 32
    gb = max(AT_ONCE * 1.5 * length * bytes_per_token, 1e6) / 1e9
    rates: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for name in ("without", "with") if number % 2 else ("with", "without"):
            facts = {"max_model_len": length, "kv_cache_gb": gb, "round": number, "requests": num_requests}
            life = bench.live("throughput", has_store=name == "with", **facts)
            rates[name].append(life["tokens_per_s"])
    return rates


def measure_session(bench: Bench, num_turns: int, system: int, pause_s: float) -> dict[str, Any]:
    """Prompt tokens that a session's turns compute: in one life without a store, and in four with one."""

    def computed(name: str, turns: tuple[int, int], *, has_store: bool) -> int:
        facts = {"history": str(bench.work / f"{name}.json"), "turns": turns, "system": system, "pause_s": pause_s}
        length = system + num_turns * (TURN_TOKENS + TURN_ANSWER) + 32
        count: int = bench.live("session", has_store=has_store, max_model_len=length, **facts)["computed"]
        return count

    ends = [num_turns * part // NUM_LIVES for part in range(NUM_LIVES + 1)]
    whole = computed("whole", (0, num_turns), has_store=False)
    parts = [computed("parts", (begin, end), has_store=True) for begin, end in itertools.pairwise(ends)]
    return {"whole": whole, "parts": parts}


def prepared(model: Path, work: Path, length: int) -> Path:
    """The model with a context of at least so many tokens: itself, or a copy whose config.json says so."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config.get("max_position_embeddings", length) >= length:
        return model
    copy = work / "model"
    copy.mkdir()
    for path in model.iterdir():
        if path.name != "config.json":
            (copy / path.name).symlink_to(path.resolve())
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": length}), encoding="utf-8")
    return copy


def table(found: Mapping[str, Any], known: int, num_turns: int) -> str:
    """The ratios, for people."""
    first, near, rates, session = (found[name] for name in ("first", "neighbour", "throughput", "session"))
    with_store, without = (statistics.median(rates[name]) for name in ("with", "without"))
    in_parts = sum(session["parts"])
    rows = [
        ("measured", "", "ratio", "wanted"),
        ("---", "---", "---", "---"),
        (
            f"first token of {QUESTION_TOKENS} tokens behind {known} known ones, computed",
            f"{1000 * first['computed_s']:.0f} ms",
            "",
            "",
        ),
    ]
    for name, words in (("cold", "read from the disk"), ("cached", "read from the page cache")):
        one = first[name]
        sooner, slower = first["computed_s"] / one["first_s"], one["first_s"] / one["read_s"]
        note = " (its files stayed in the page cache)" if name == "cold" and not one["is_cold"] else ""
        rows += [
            (f"{words} after a restart{note}", f"{1000 * one['first_s']:.0f} ms", f"{sooner:.0f} times sooner", "50"),
            (
                f"reading its {first['bytes'] / 1e6:.0f} MB alone takes",
                f"{1000 * one['read_s']:.0f} ms",
                f"{slower:.2f} times that",
                "at most 2",
            ),
        ]
    again_s, same_s = (min(first[name][which] for name in ("cold", "cached")) for which in ("again_s", "same_s"))
    rows.append(("found in memory, for comparison", f"{1000 * again_s:.0f} ms", "", ""))
    rows.append(("the known tokens alone, found in memory but for the last block", f"{1000 * same_s:.0f} ms", "", ""))
    rows.append(("a neighbour's tokens/s alone", f"{near['disk']['alone']:.1f}", "", ""))
    for name, words in (("disk", "from disk"), ("memory", "from memory")):
        one = near[name]
        share, share_of_all = one["visited"] / one["alone"], one["all"] / one["alone"]
        lost_ms = 1000 * one["visit_s"] * (1 - share)
        rows.append(
            (
                f"until somebody's first token comes, {words}, in {1000 * one['visit_s']:.0f} ms",
                f"{one['visited']:.1f}",
                f"{share:.3f}; {lost_ms:.0f} ms lost; {share_of_all:.3f} with the time between",
                "at least 0.9" if name == "disk" else "",
            )
        )
    rows += [
        ("tokens/s of prompts without anything in common, without a store", f"{without:.0f}", "", ""),
        ("with a store", f"{with_store:.0f}", f"{with_store / without:.3f}", "at least 0.98"),
        (f"prompt tokens computed in {num_turns} turns without a restart", f"{session['whole']}", "", ""),
        ("over three restarts, with a store", f"{in_parts}", f"{in_parts / session['whole']:.3f}", "at most 1.05"),
    ]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description="What prompts on disk bring.")
    parser.add_argument("--model", type=Path, default=demo_model_dir(), help="a model directory [the bundled one]")
    parser.add_argument("--dtype", default="auto", help="of the weights [as a server has it]")
    parser.add_argument("--known", type=int, default=8000, help="known tokens behind which the first answer comes")
    parser.add_argument("--visits", type=int, default=8, help="behind known tokens, beside a neighbour")
    parser.add_argument("--requests", type=int, default=16, help="of each round of throughput")
    parser.add_argument("--turns", type=int, default=40, help="of the session")
    parser.add_argument("--system", type=int, default=SYSTEM_TOKENS, help="tokens with which the session begins")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between turns of the session")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--life", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.life is not None:
        sys.stdout.write(json.dumps(asyncio.run(live(json.loads(asked.life)))) + "\n")
        return 0
    begin_s = time.perf_counter()
    longest = max(asked.known, asked.system + asked.turns * (TURN_TOKENS + TURN_ANSWER)) + 64
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        base = {
            "model": str(prepared(asked.model, work, longest)),
            "work": directory,
            "dtype": asked.dtype,
            "known": asked.known,
            "visits": asked.visits,
            "max_model_len": asked.known + 64,
            "kv_cache_gb": 1.0,
        }
        bench = Bench(base, work)
        first = measure_first(bench, asked.rounds)
        per_token = first["bytes"] / asked.known
        found = {
            "first": first,
            "neighbour": measure_neighbour(bench, per_token),
            "throughput": measure_throughput(bench, per_token, asked.rounds, asked.requests),
            "session": measure_session(bench, asked.turns, asked.system, asked.pause),
        }
    facts = {"model": asked.model.name, "cores": len(os.sched_getaffinity(0)), "s": time.perf_counter() - begin_s}
    sys.stdout.write(table(found, asked.known, asked.turns) + json.dumps({**facts, **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
