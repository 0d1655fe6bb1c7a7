"""Computes what a second branch of guesses would bring: trees of two branches against the engine's chains, row for row.

Does: follow answers of five kinds of text with the engine's own guessers and count steps: with a chain of so many
guesses; with as many rows shared between the chain and the copy that is expected to add most to it; and, in the rows of
the chain, with the best of all copies in hindsight, which no second branch can beat. Does not: verify anything by a
model, or know what a second branch costs beside its rows (blocks of its own for the same places, a copy of the last),
which counts for trees. The answers of the model that copies follow from its rule; those of the bundled model are
computed. By hand, on any machine:

    python -m benchmarks.speculation.trees
    python -m benchmarks.speculation.trees --model demo --guesses 3 7 15
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

from benchmarks.speculation.tasks import KINDS
from benchmarks.speculation.trees.answers import COPIER, DEMO, Answer, answers_of
from benchmarks.speculation.trees.branches import Guesser

MOST_GUESSES = 32
CHAIN, TREE, HINDSIGHT = "chain", "tree", "hindsight"
SHAPES = (CHAIN, TREE, HINDSIGHT)
_UNMEASURED = 4  # first tasks of a kind, in which it is learned what holds
_CHEAP_ROWS = 8


@dataclass(slots=True)
class Count:
    """What decoding took. `cost`: in steps of a single row."""

    tokens: int = 0
    steps: int = 0
    rows: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """What a row costs more, as a share of a step of one: the first eight, and those behind."""

    cheap: float
    dear: float

    def step(self, num_rows: int) -> float:
        """A step of so many rows."""
        num_cheap = min(num_rows, _CHEAP_ROWS)
        return 1 + self.cheap * (num_cheap - 1) + self.dear * (num_rows - num_cheap)


def follow(answers: Sequence[Answer], shape: str, num_guesses: int | None, prices: Prices) -> Count:
    """Decode all answers with so many guesses a step; None = as many as pay."""
    guesser, count = Guesser(), Count()
    for answer in answers:
        guesser.begin(answer.prompt, answer.masker and answer.masker.fork())
        place = 1  # the first token comes with the prompt
        guesser.extend(answer.token_ids[:1])
        while place < len(answer.token_ids):
            truth = answer.token_ids[place:]
            num_rows, num_held = _step(guesser, truth, shape, num_guesses, prices)
            guesser.extend(truth[: num_held + 1])
            place += num_held + 1
            if answer.task >= _UNMEASURED:
                count.tokens += num_held + 1
                count.steps += 1
                count.rows += num_rows
                count.cost += prices.step(num_rows)
        guesser.end()
    return count


def _step(guesser: Guesser, truth: array[int], shape: str, num_guesses: int | None, prices: Prices) -> tuple[int, int]:
    """Rows, and guesses that held. Mutates: what the guesser knows about how often guesses hold."""
    most = min(MOST_GUESSES if num_guesses is None else num_guesses, len(truth) - 1)
    chain = guesser.chain(most)
    others = guesser.others(chain, most) if shape != CHAIN and chain.token_ids else []
    second = max(others, key=lambda branch: sum(branch.added), default=None) if shape == TREE else None
    odds = [(-likely, 0) for likely in chain.survival] + [(-likely, 1) for likely in (second.added if second else ())]
    odds.sort()
    taken = odds[: most if num_guesses is not None else _num_paying([-likely for likely, _ in odds], prices)]
    num_second = sum(branch for _, branch in taken)
    num_first = len(taken) - num_second
    num_held = _num_agreeing(chain.token_ids[:num_first], truth)
    if second is not None and num_second:
        num_held = max(num_held, _num_agreeing(second.token_ids[: second.parts_at + num_second], truth))
    if shape == HINDSIGHT:
        num_held = max([num_held, *(_num_agreeing(branch.token_ids[:num_first], truth) for branch in others)])
    guesser.judge(chain, second, truth[: num_held + 1])
    return 1 + len(taken), num_held


def _num_paying(odds: Sequence[float], prices: Prices) -> int:
    """How many of the guesses, the likeliest first, make the most tokens by what a step costs."""
    rates = [expected / prices.step(num_rows) for num_rows, expected in enumerate(accumulate(odds, initial=1.0), 1)]
    return rates.index(max(rates))


def _num_agreeing(guesses: array[int], truth: array[int]) -> int:
    pairs = zip(guesses, truth, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def line(kind: str, answers: Sequence[Answer], num_guesses: int | None, prices: Prices) -> dict[str, Any]:
    """What each shape makes of a kind of text; gains are of tokens by cost, over the chain's."""
    counts = {shape: follow(answers, shape, num_guesses, prices) for shape in SHAPES}
    rates = {shape: count.tokens / count.cost for shape, count in counts.items()}
    return {
        "kind": kind,
        "guesses": num_guesses,
        "tokens": counts[CHAIN].tokens,
        "tokens_per_step": {shape: round(count.tokens / count.steps, 3) for shape, count in counts.items()},
        "rows_per_step": {shape: round(count.rows / count.steps, 2) for shape, count in counts.items()},
        "gain": {shape: round(rates[shape] / rates[CHAIN] - 1, 4) for shape in SHAPES[1:]},
    }


def _row(found: dict[str, Any]) -> str:
    guesses = found["guesses"] or "pays"
    cells = (f"{found['tokens_per_step'][shape]:8.2f}{found['rows_per_step'][shape]:6.1f}" for shape in SHAPES)
    gains = (f"{100 * found['gain'][shape]:+9.1f} %" for shape in SHAPES[1:])
    return f"{found['kind']:<9}{guesses:>7}{''.join(cells)}{''.join(gains)}"


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="What a second branch of guesses would bring.")
    parser.add_argument("--model", choices=(COPIER, DEMO), default=COPIER, help="whose answers")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--guesses", nargs="+", type=_count, default=[3, 7, 15], help=f"a step, 1 to {MOST_GUESSES}")
    parser.add_argument("--tasks", type=_count, default=20, help=f"of each kind, the first {_UNMEASURED} uncounted")
    parser.add_argument("--row-prices", nargs=2, type=float, default=[0.03, 0.06], metavar="SHARE",
                        help="of a step, for each of the first eight rows and for one behind them")  # fmt: skip
    asked = parser.parse_args(words)
    if asked.tasks <= _UNMEASURED:
        parser.error(f"argument --tasks: is {asked.tasks}, must be more than {_UNMEASURED}")
    if max(asked.guesses) > MOST_GUESSES:
        parser.error(f"argument --guesses: is {max(asked.guesses)}, must be at most {MOST_GUESSES}")
    if not all(0 <= price < 10 for price in asked.row_prices):
        parser.error(f"argument --row-prices: is {asked.row_prices}, must be shares from 0 to 10")
    return asked


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a whole number from 1 on")
    return int(text)


def main() -> None:
    """Count and print: a table, and a last JSON line."""
    asked = parse_arguments()
    prices = Prices(*asked.row_prices)
    with answers_of(asked.model) as make:
        shapes = "".join(f"{shape:>14}" for shape in SHAPES)
        sys.stdout.write(
            f"{'kind':<9}{'guesses':>7}{shapes}{'tree':>11}{'hindsight':>11}  (tokens and rows a step; gain)\n"
        )
        found = []
        for kind in asked.kinds:
            answers = list(make(kind, asked.tasks))
            for num_guesses in [*asked.guesses, None]:
                found.append(line(kind, answers, num_guesses, prices))
                sys.stdout.write(_row(found[-1]) + "\n")
                sys.stdout.flush()
    sys.stdout.write(json.dumps({"benchmark": "trees", "model": asked.model, "results": found}) + "\n")


if __name__ == "__main__":
    main()
