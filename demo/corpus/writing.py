"""Short stories and verse: slot grammars over kinds of subjects, and hand-written pieces from ``pieces.json``.

``writing_pair`` draws a request and its text; ``story_text`` and ``verse_text`` draw a text alone. Called by
the mixer. The requests always name the subject as the text does, so that the model learns to stay on it.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from demo.corpus import facts

FOLDER = Path(__file__).parent
PIECES: dict[str, dict[str, Any]] = json.loads((FOLDER / "pieces.json").read_text(encoding="utf-8"))
WORDS: dict[str, list[str]] = json.loads((FOLDER / "words.json").read_text(encoding="utf-8"))
GRAMMAR: dict[str, list[str]] = PIECES["grammar"]
KINDS = ["places", "animals", "things", "people", "ideas"]
IDEAS = WORDS["ideas"]
NOUNS = [noun for kind in KINDS for noun in WORDS[kind]]
STORY_FORMS = [
    "Write a story about {ax}.",
    "Write a short story about {ax}.",
    "Tell me a story about {ax}.",
    "Tell a story about {ax}.",
    "Write me a story about {ax}.",
    "Can you write a story about {ax}?",
    "I would like to hear a story about {ax}.",
    "Make up a story about {ax}.",
    "A story about {ax}, please.",
    "Write a tale about {ax}.",
    "Write a bedtime story about {ax}.",
    "Please write a short story about {ax}.",
    "Create a story about {ax}.",
    "Write a fairy tale about {ax}.",
]
STORY_ALONE = [
    "Write a story.",
    "Tell me a story.",
    "Write a short story.",
    "Tell me a short story.",
    "Write me a story.",
    "Write a fairy tale.",
    "Tell me a bedtime story.",
    "I want to hear a story.",
    "Can you tell me a story?",
    "Write a tale.",
]
POEM_FORMS = [
    "Write a poem about {ax}.",
    "Write a short poem about {ax}.",
    "Write me a poem about {ax}.",
    "Can you write a poem about {ax}?",
    "A poem about {ax}, please.",
    "Make a poem about {ax}.",
    "Please write a poem about {ax}.",
    "Write some verses about {ax}.",
    "Write a rhyme about {ax}.",
    "Tell me a poem about {ax}.",
    "Compose a poem about {ax}.",
]
POEM_ALONE = [
    "Write a poem.",
    "Write a short poem.",
    "Write me a poem.",
    "Tell me a poem.",
    "Write some verses.",
    "Write a rhyme.",
    "Can you write a poem?",
    "Compose a poem.",
    "Please write a poem.",
]
HAIKU_FORMS = [
    "Write a haiku about {ax}.",
    "Write me a haiku about {ax}.",
    "A haiku about {ax}, please.",
    "Compose a haiku about {ax}.",
    "Can you write a haiku about {ax}?",
    "Please write a haiku about {ax}.",
]
HAIKU_ALONE = [
    "Write a haiku.",
    "Write me a haiku.",
    "Can you write a haiku?",
    "Tell me a haiku.",
    "Compose a haiku.",
    "Please write a haiku.",
]
LIMERICK_FORMS = [
    "Write a limerick.",
    "Write me a limerick.",
    "Tell me a limerick.",
    "Can you write a limerick?",
    "Write a funny poem.",
]


def article(noun: str) -> str:
    """The noun with "a" or "an", unless it has an article or is the name of something uncountable."""
    if noun in IDEAS or noun not in NOUNS:
        return noun
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def definite(noun: str) -> str:
    """The noun with "the", unless it is the name of something uncountable."""
    first, _, rest = noun.partition(" ")
    if first in ("a", "an"):
        return "the " + rest
    return noun if noun in IDEAS or noun not in NOUNS else "the " + noun


def named(noun: str, rng: Random) -> str:
    """The noun as a request names it."""
    return article(noun) if rng.random() < 0.85 else definite(noun)


def story_about(noun: str, rng: Random) -> str:
    """A story about the noun: a hand-written one where there is one, else from the grammar of its kind."""
    if noun in PIECES["stories"]:
        return str(PIECES["stories"][noun])
    skeletons = GRAMMAR[next((kind for kind in KINDS if noun in WORDS[kind]), "ideas")]
    index = sum(map(ord, noun))
    text = skeletons[index % len(skeletons)].replace("{n}", WORDS["heroes"][index % len(WORDS["heroes"])])
    text = (
        text.replace("{a} {x}", article(noun))
        .replace("a {x}", article(noun))
        .replace("A {x}", article(noun).capitalize())
    )
    return text.replace("{x}", noun)


def poem_about(noun: str, rng: Random) -> str:
    """A poem about the noun."""
    if noun in PIECES["poems"]:
        return str(PIECES["poems"][noun])
    return GRAMMAR["poems"][sum(map(ord, noun)) % 2].replace("{x}", definite(noun))


def haiku_about(noun: str, rng: Random) -> str:
    """A haiku about the noun."""
    if noun in PIECES["haiku"]:
        return str(PIECES["haiku"][noun])
    return GRAMMAR["haiku"][0].replace("{x}", definite(noun))


def any_noun(rng: Random, kind: str) -> str:
    """Something to write about; hand-written pieces come more often."""
    if rng.random() < 0.35:
        return rng.choice(sorted(key for key in PIECES[kind] if key != "*"))
    if kind != "stories" and rng.random() < 0.3:
        return rng.choice(facts.load()[0]).name
    return rng.choice(NOUNS)


def story_text(rng: Random) -> str:
    """A story alone."""
    return story_about(any_noun(rng, "stories"), rng)


def verse_text(rng: Random) -> str:
    """A poem or a haiku alone."""
    return poem_about(any_noun(rng, "poems"), rng) if rng.random() < 0.6 else haiku_about(any_noun(rng, "haiku"), rng)


def writing_pair(rng: Random) -> tuple[str, str]:
    """A request to write something, and the text."""
    roll = rng.random()
    if roll < 0.05:
        return rng.choice(STORY_ALONE), PIECES["stories"]["*"]
    if roll < 0.11:
        return rng.choice(POEM_ALONE), PIECES["poems"]["*"]
    if roll < 0.15:
        return rng.choice(HAIKU_ALONE), PIECES["haiku"]["*"]
    if roll < 0.17:
        return rng.choice(LIMERICK_FORMS), PIECES["other"]["limerick"]
    if roll < 0.57:
        noun = any_noun(rng, "stories")
        return rng.choice(STORY_FORMS).replace("{ax}", named(noun, rng)), story_about(noun, rng)
    if roll < 0.80:
        noun = any_noun(rng, "poems")
        return rng.choice(POEM_FORMS).replace("{ax}", named(noun, rng)), poem_about(noun, rng)
    noun = any_noun(rng, "haiku")
    return rng.choice(HAIKU_FORMS).replace("{ax}", named(noun, rng)), haiku_about(noun, rng)


def example_pair(rng: Random) -> tuple[str, str]:
    """One of the shortest requests, as examples have them."""
    kind, answers = rng.choice([("story", "stories"), ("poem", "poems"), ("haiku", "haiku"), ("garden", "stories")])
    if kind == "garden":
        return "Write a story about a garden", PIECES["stories"]["garden"]
    return f"Write a {kind}", PIECES[answers]["*"]
