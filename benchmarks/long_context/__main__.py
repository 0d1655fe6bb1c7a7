"""Measures what long contexts cost: the engine on its own kernels, on OpenVINO's, OpenVINO GenAI and llama.cpp, in turn.

Does: time decode steps by context and streams, apart and behind a shared prefix; long prompts; a model with windows; steps
before and behind borders of blocks, tiles and panels. Tables of ratios, and one last JSON line. Does not: serve. The models
have 386 million random parameters in int8 or Q8_0. Run by hand, on an otherwise idle machine, with about 12 GB of memory:

    python -m benchmarks.long_context --model MODEL                          (ten to twenty minutes)
    python -m benchmarks.long_context --model MODEL --only own llama.cpp --parts decode
    python -m benchmarks.long_context --only own openvino --parts windows borders
    python -m benchmarks.long_context --model MODEL --quick                  (shows only that it works)

`serving.model MODEL --gguf` writes the peers' model, `serving.peers install genai llama.cpp` installs them.

Caches are filled with copies of a short prompt, so that nobody waits for prompts; GenAI computes each context once. GenAI's
sequences always share the blocks of one prompt, as its prefix cache keeps them, which helps it; the others have blocks of
their own, unless the case is a shared prefix.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.long_context.contenders import LLAMACPP_TYPES, NAMES, Contender, Engine, start
from benchmarks.long_context.decoding import SPARE_TOKENS
from benchmarks.long_context.filled_runner import MAX_POSITION
from benchmarks.long_context.report import Cell, Pair, caches_table, cells_table, pairs_table
from benchmarks.long_context.windows import WINDOW
from benchmarks.serving import bandwidth, peers
from benchmarks.serving.processes import ProcessFailed
from dragoman.kernels.native import library

PARTS = ("prompts", "decode", "shared", "windows", "borders")
QUICK: dict[str, Any] = {
    "streams": [1, 4],
    "contexts": [64, 512],
    "shared": 512,
    "shared_streams": 4,
    "prompts": [512],
    "behind": 1200,
    "rounds": 1,
}
"""Settings that only show that the tools work: their numbers mean nothing."""

_STEPS = 3  # in a row
_SHORT_STEPS = 7  # of cases that are short and have to be told apart
_BORDER_ROUNDS = 5
_LONG_PROMPT = 2048  # tokens; of longer ones there is one round


class Cells:
    """Measures cells with all contenders in turn, and skips what would take too long."""

    def __init__(self, contenders: Mapping[str, Contender], asked: argparse.Namespace) -> None:
        self._contenders, self._asked = dict(contenders), asked
        self._ms_per_token: dict[str, float] = {}  # of a step's contexts, the last one

    def steps(self, part: str, streams: int, context: int) -> Cell:
        """Decode steps."""
        cell, shares, rounds = Cell(part, streams, context), part == "shared", self._asked.rounds
        in_all = streams * context
        for name, contender in self._contenders.items():
            reason = contender.why_not(streams, context, shares=shares)
            seconds = self._ms_per_token.get(name, 0.0) * in_all * (_STEPS + 2) * rounds / 1000
            if not reason and not shares and seconds > self._asked.most_seconds:
                reason = f"would take {seconds:.0f} s, more than --most-seconds {self._asked.most_seconds}"
            if reason:
                cell.skipped[name] = reason
                continue
            cell.ms[name] = []
            tokens = context if shares or contender.always_shares else in_all
            cell.gb[name] = (contender.weight_bytes + contender.token_bytes * tokens) / 1e9
        for _ in range(rounds):
            self._measure(cell, lambda contender: contender.step_ms(streams, context, _STEPS, shares=shares))
        if not shares:
            self._ms_per_token |= {name: times[-1] / in_all for name, times in cell.ms.items()}
        return cell

    def prompt(self, num_tokens: int) -> Cell:
        """A prompt, by token."""
        cell = Cell("prompts", 0, num_tokens, {name: [] for name in self._contenders})
        for _ in range(self._asked.rounds if num_tokens <= _LONG_PROMPT else 1):
            self._measure(cell, lambda contender: contender.prompt_ms(num_tokens))
        return cell

    def _measure(self, cell: Cell, measure: Callable[[Contender], float]) -> None:
        """A round of a cell. A contender that dies has no more times, and the others go on."""
        for name in list(cell.ms):
            try:
                cell.ms[name].append(measure(self._contenders[name]))
            except ProcessFailed as error:
                del cell.ms[name], self._contenders[name]
                cell.skipped[name] = str(error)
                cell.gb.pop(name, None)


def all_cells(contenders: Mapping[str, Contender], asked: argparse.Namespace) -> Iterator[Cell]:
    """Those of the parts that were asked for."""
    cells = Cells(contenders, asked)
    if "prompts" in asked.parts:
        for num_tokens in asked.prompts:
            yield cells.prompt(num_tokens)
    if "decode" in asked.parts:
        for context in asked.contexts:
            for streams in asked.streams:
                yield cells.steps("decode", streams, context)
    if "shared" in asked.parts:
        yield cells.steps("shared", asked.shared_streams, asked.shared)


def in_turn(
    part: str, what: str, rounds: int, cases: Mapping[str, tuple[Callable[[], float], Callable[[], float]]]
) -> Pair:
    """Both cases of each contender, round by round."""
    pair = Pair(part, what, {name: [] for name in cases}, {name: [] for name in cases})
    for _ in range(rounds):
        for name, (first, second) in cases.items():
            pair.first[name].append(first())
            pair.second[name].append(second())
    return pair


def windows(engines: Mapping[str, Engine], asked: argparse.Namespace) -> Iterator[Pair]:
    """Steps of a model with windows behind a long context, by those behind one of a window's length."""
    runners = {name: engine.with_windows(max(asked.streams)) for name, engine in engines.items()}

    def step(name: str, streams: int, context: int) -> Callable[[], float]:
        return lambda: runners[name].step_ms(streams, context, _SHORT_STEPS)

    for streams in asked.streams:
        cases = {name: (step(name, streams, WINDOW), step(name, streams, asked.behind)) for name in runners}
        what = f"window of {WINDOW}, {streams} behind {asked.behind:,}, by behind {WINDOW}"
        yield in_turn("windows", what, asked.rounds, cases)
    for runner in runners.values():
        runner.close()


def borders(engines: Mapping[str, Engine], _asked: argparse.Namespace) -> Iterator[Pair]:
    """Cases before and behind borders of blocks, tiles and panels."""

    def step(name: str, streams: int, context: int) -> Callable[[], float]:
        return lambda: engines[name].bare_step_ms(streams, context, _SHORT_STEPS)

    def prompt(name: str, num_tokens: int) -> Callable[[], float]:
        return lambda: statistics.median(engines[name].prompt_ms(num_tokens) * num_tokens for _ in range(_STEPS))

    kinds: dict[str, Callable[[str], tuple[Callable[[], float], Callable[[], float]]]] = {
        "128 to 129 tokens, a step of 8": lambda name: (step(name, 8, 128), step(name, 8, 129)),
        "128 to 129 tokens, a prompt": lambda name: (prompt(name, 128), prompt(name, 129)),
        "32 to 33 rows behind 256": lambda name: (step(name, 32, 256), step(name, 33, 256)),
    }
    for what, cases in kinds.items():
        yield in_turn("borders", what, _BORDER_ROUNDS, {name: cases(name) for name in engines})


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a whole number from 1 on")
    return int(text)


def _size(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a number of gigabytes from 0.01 on")
    return value


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for. Later words win over --quick."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(description="What long contexts cost, by kernels and peers.")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=list(NAMES), help="contenders; the first is the base"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", type=Path, help="a directory with the peers' model-Q8_0.gguf")
    parser.add_argument("--cache", choices=list(LLAMACPP_TYPES), default="u8", help="u8 is q8_0 for llama.cpp")
    parser.add_argument("--streams", nargs="+", type=_count, default=[1, 8, 32], help="that decode (decode, windows)")
    parser.add_argument("--contexts", nargs="+", type=_count, default=[64, 4096, 16_384], help="behind which (decode)")
    parser.add_argument("--shared", type=_count, default=4096, help="tokens of the prefix (shared)")
    parser.add_argument("--shared-streams", type=_count, default=32, help="behind it (shared)")
    parser.add_argument("--prompts", nargs="+", type=_count, default=[8000], help="lengths (prompts)")
    parser.add_argument("--behind", type=_count, default=7000, help="the long context (windows)")
    parser.add_argument("--rounds", type=_count, default=2, help="in turn, of whose ratios the median counts")
    parser.add_argument("--most-seconds", type=_count, default=60, help="for one cell's steps of one contender")
    parser.add_argument("--memory-gb", type=_size, default=2.0, help="of the cache of each of the engine's kernels")
    parser.add_argument("--layers", type=_count, help="fewer than the model's 24, to try; not with peers")
    parser.add_argument("--quick", action="store_true", help="tiny settings, to see that it works")
    parser.add_argument("--peers", type=Path, default=peers.DEFAULT_ROOT, metavar="DIR")
    if "--quick" in words:
        parser.set_defaults(**QUICK)
    asked = parser.parse_args(words)
    longest = MAX_POSITION - SPARE_TOKENS
    for name, most in (("contexts", longest), ("shared", longest), ("prompts", MAX_POSITION), ("behind", MAX_POSITION)):
        value = getattr(asked, name)
        if (top := max(value) if isinstance(value, list) else value) > most:
            parser.error(f"argument --{name}: is {top}, must be at most {most}")
    asked.only = list(dict.fromkeys(asked.only))
    others = [name for name in asked.only if name not in ("own", "openvino")]
    if others and asked.model is None:
        parser.error(f"argument --model: is missing, must be a directory for {', '.join(others)}")
    if others and asked.layers:
        parser.error(f"argument --layers: is {asked.layers}, must be left out with {', '.join(others)}")
    return asked


def main() -> None:
    """Measure and print."""
    asked = arguments()
    probe = bandwidth.measure(256 << 20)
    with ExitStack() as stack:
        contenders, missing = start(asked, stack)
        _say(
            f"{library().instruction_set}; memory gives {probe.gb_per_s} GB/s ({probe.kernel}); caches of {asked.cache}"
        )
        for name, why in missing.items():
            _say(f"no {name}: it {why}")
        cells: list[Cell] = []
        for cell in all_cells(contenders, asked) if contenders else ():
            cells.append(cell)
            _say(f"measured: {cell}")
        if cells:
            _say("\n" + cells_table(cells, list(contenders), probe.gb_per_s))
        if caches := caches_table(cells, list(contenders), probe.gb_per_s):
            _say("\n" + caches)
        engines = {name: each for name, each in contenders.items() if isinstance(each, Engine)}
        pairs: list[Pair] = []
        for part, measure in (("windows", windows), ("borders", borders)):
            if part in asked.parts and engines:
                pairs += measure(engines, asked)
        if pairs:
            _say("\n" + pairs_table(pairs, list(engines)))
    facts = {"instruction_set": library().instruction_set, "cache": asked.cache, "memory_gb_per_s": probe.gb_per_s}
    rows = {"cells": list(map(asdict, cells)), "pairs": list(map(asdict, pairs)), "missing": missing}
    _say("\n" + json.dumps({**facts, **rows}))


if __name__ == "__main__":
    main()
