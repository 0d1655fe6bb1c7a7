"""Copying drills: random words that come again, and pairs that are asked for in another order.

They are no text that the model should write by itself; they teach it quickly to copy from its prompt, which names,
tool arguments and echoes need, and columns of sums teach their results. Called by the mixer.
"""

from random import Random

from demo.corpus import facts, talk, tasks
from demo.corpus.dialog import EOS, Document


def item(rng: Random) -> str:
    """A word of the facts, a made-up word, a name or a number."""
    roll = rng.random()
    if roll < 0.45:
        return rng.choice(rng.choice(rng.choice(facts.load()[0]).sentences).split(" "))
    if roll < 0.65:
        return talk.made_up(rng)
    if roll < 0.8:
        return rng.choice(talk.NAMES + talk.ECHO_WORDS)
    return str(rng.randint(0, 999))


def repeated(rng: Random) -> Document:
    """A row of random words, two or three times; only the repetitions are learned."""
    row = " ".join(item(rng) for _ in range(rng.randint(4, 24)))
    out: Document = [(row, False)]
    out += [("\n" + row, True) for _ in range(rng.randint(1, 2))]
    return [*out, (EOS, True)]


def recalled(rng: Random) -> Document:
    """Pairs of a word and a value, then the values of some of the words."""
    pairs = [(item(rng), item(rng)) for _ in range(rng.randint(2, 7))]
    out: Document = [("\n".join(f"{key}: {value}" for key, value in pairs) + "\n", False)]
    for key, value in rng.sample(pairs, len(pairs)):
        out += [(f"\n{key}:", False), (f" {value}", True)]
    return [*out, (EOS, True)]


def sums(rng: Random) -> Document:
    """A column of small sums and differences; only the results are learned."""
    out: Document = []
    for _ in range(rng.randint(6, 16)):
        a, sign, b, result = tasks.small_sum(rng)
        start, rest = (f"{a} {sign} {b} =", f" {result}") if rng.random() < 0.85 else (f"{a}{sign}{b}=", str(result))
        out += [(("\n" if out else "") + start, False), (rest, True)]
    return [*out, (EOS, True)]


def drill(rng: Random) -> Document:
    """One drill of either kind."""
    return repeated(rng) if rng.random() < 0.6 else recalled(rng)
