"""Short stories and verse: slot grammars over kinds of subjects, and hand-written pieces from ``pieces.json``.

``writing_pair`` draws a request and its text; ``story_text`` and ``verse_text`` draw a text alone. Called by
the mixer. The requests always name the subject as the text does, so that the model learns to stay on it.
"""

import json
from pathlib import Path
from random import Random

PIECES: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("pieces.json").read_text(encoding="utf-8"))

PLACES = "garden forest castle island library village school beach mountain river lake market farm desert town bakery museum train house bridge".split()
ANIMALS = "cat dog dragon fox owl rabbit bear mouse horse bird duck frog turtle wolf elephant lion bee fish whale penguin hen squirrel".split()
THINGS = "robot lamp key book clock boat kite letter map bicycle violin coat stone door box mirror star computer teapot bell flower tree".split()
PEOPLE = "king queen pirate wizard baker sailor teacher farmer princess knight painter girl boy doctor child grandmother fisherman astronaut".split()
NAMES = "Mina Tom Clara Ben Ida Leo Nora Otto Lina Emil".split()

PLACE_STORIES = [
    "There was once {a} {x} that nobody visited any more. One spring morning, {n} walked past and saw a small light inside. "
    "{n} went into the {x} and found an old man who was mending a lamp. Together they worked until the evening. "
    "When the people saw the light, they came back one by one, and the {x} was never empty again.",
    "{n} had always wanted to see the {x} at the end of the road. One day {n} packed some bread and set out. "
    "The way was long, and the rain fell all afternoon. At last the {x} lay before {n}, quiet and shining. "
    "{n} sat down, ate the bread and thought that the long walk had been worth every step.",
]
ANIMAL_STORIES = [
    "Once upon a time there was a little {x} who was afraid of the dark. Every night the {x} asked the moon to stay. "
    "One evening clouds covered the sky, and a lost bird called for help. The {x} took a deep breath and walked through the dark to find it. "
    "From that night on, the {x} was not afraid any more.",
    "{n} found a small {x} beside the road. The {x} was cold and hungry, so {n} took it home and gave it food. "
    "Days went by, and the {x} grew strong. One morning it was gone, and {n} was sad. "
    "In the evening the {x} came back, and it had brought a friend.",
]
THING_STORIES = [
    "In a dusty room there was an old {x} that nobody wanted. {n} cleaned it with a soft cloth and put it near the window. "
    "That night the {x} began to glow with a warm light. The neighbors came to look and stayed to talk. "
    "Since then the {x} has had the best place in the house.",
    "{n} found a strange {x} on the way to school. A note on it said: please take me home. "
    "{n} asked at every door in the street, but nobody knew the {x}. At the very last house an old woman smiled. "
    "She had lost the {x} many years ago, and now she and {n} are friends.",
]
PERSON_STORIES = [
    "Once there was a {x} who could not laugh. People came from far away with jokes and tricks, but nothing helped. "
    "One day a small child fell into a puddle, stood up and laughed. The {x} looked at the child and began to laugh as well. "
    "After that, the {x} laughed at least once every day.",
    "A {x} lived alone in a house by the sea. Every evening the {x} lit a lamp and waited. "
    "One stormy night a boat came out of the dark, led by the light. {n} climbed out, wet but safe, and said thank you. "
    "The {x} made tea, and the two talked until the morning.",
]
ANY_STORIES = [
    "{n} knew only one story, and it was about {x}. Every evening the children asked for it, and every evening {n} told it a little differently. "
    "When {n} grew old, the children told the story to their own children. That is how a small story about {x} went around the world.",
]
KINDS: list[tuple[list[str], list[str]]] = [
    (PLACES, PLACE_STORIES),
    (ANIMALS, ANIMAL_STORIES),
    (THINGS, THING_STORIES),
    (PEOPLE, PERSON_STORIES),
]
ANY_TOPICS = (
    "friendship,love,winter,summer,the sea,the moon,rain,courage,time,music,hope,a long journey,space,the first snow,a lost ring,magic,"
    "a birthday,family,peace,a storm,the future,dreams,honesty,autumn,spring,the night,bread,football,numbers,kindness,programming"
).split(",")
STORY_FORMS = [
    "Write a story about {ax}.", "Write a short story about {ax}.", "Tell me a story about {ax}.", "Tell a story about {ax}.",
    "Write me a story about {ax}.", "Can you write a story about {ax}?", "I would like to hear a story about {ax}.",
    "Make up a story about {ax}.", "A story about {ax}, please.", "Write a tale about {ax}.", "Write a bedtime story about {ax}.",
    "Please write a short story about {ax}.", "Create a story about {ax}.", "Write a fairy tale about {ax}.",
]
STORY_ALONE = [
    "Write a story.", "Tell me a story.", "Write a short story.", "Tell me a short story.", "Write me a story.", "Write a fairy tale.",
    "Tell me a bedtime story.", "I want to hear a story.", "Can you tell me a story?", "Write a tale.",
]
POEM_FORMS = [
    "Write a poem about {ax}.", "Write a short poem about {ax}.", "Write me a poem about {ax}.", "Can you write a poem about {ax}?",
    "A poem about {ax}, please.", "Make a poem about {ax}.", "Please write a poem about {ax}.", "Write some verses about {ax}.",
    "Write a rhyme about {ax}.", "Tell me a poem about {ax}.", "Compose a poem about {ax}.",
]
POEM_ALONE = ["Write a poem.", "Write a short poem.", "Write me a poem.", "Tell me a poem.", "Write some verses.", "Write a rhyme.",
              "Can you write a poem?", "Compose a poem.", "Please write a poem."]
HAIKU_FORMS = ["Write a haiku about {ax}.", "Write me a haiku about {ax}.", "A haiku about {ax}, please.", "Compose a haiku about {ax}.",
               "Can you write a haiku about {ax}?", "Please write a haiku about {ax}."]
HAIKU_ALONE = ["Write a haiku.", "Write me a haiku.", "Can you write a haiku?", "Tell me a haiku.", "Compose a haiku.", "Please write a haiku."]
LIMERICK_FORMS = ["Write a limerick.", "Write me a limerick.", "Tell me a limerick.", "Can you write a limerick?", "Write a funny poem."]
ANY_POEMS = [
    "I thought of {x} today,\nwhile walking on my quiet way.\nThe wind was soft, the sky was clear,\nand all I loved was standing near.",
    "When morning comes with golden light,\nI think of {x} with delight.\nAnd when the evening closes in,\n"
    "my dreams of {x} begin.",
]
ANY_HAIKU = "I think of {x},\nthe evening wind is quiet,\na lamp in the dark."


def article(noun: str) -> str:
    """The noun with "a" or "an", unless it is a name of something uncountable."""
    if noun in ANY_TOPICS or noun in PIECES["haiku"] and noun.startswith("the "):
        return noun
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def named(noun: str, rng: Random) -> str:
    """The noun as a request names it."""
    if noun in ANY_TOPICS:
        return noun
    return article(noun) if rng.random() < 0.85 else "the " + noun


def story_about(noun: str, rng: Random) -> str:
    """A story about the noun: a hand-written one where there is one, else from the grammar of its kind."""
    if noun in PIECES["stories"]:
        return PIECES["stories"][noun]
    skeletons = next((stories for nouns, stories in KINDS if noun in nouns), ANY_STORIES)
    index = sum(map(ord, noun))
    text = skeletons[index % len(skeletons)].replace("{n}", NAMES[index % len(NAMES)])
    text = text.replace("{a} {x}", article(noun)).replace("a {x}", article(noun)).replace("A {x}", article(noun).capitalize())
    return text.replace("{x}", noun)


def poem_about(noun: str, rng: Random) -> str:
    """A poem about the noun."""
    if noun in PIECES["poems"]:
        return PIECES["poems"][noun]
    return ANY_POEMS[sum(map(ord, noun)) % 2].replace("{x}", noun if noun in ANY_TOPICS else "the " + noun)


def haiku_about(noun: str, rng: Random) -> str:
    """A haiku about the noun."""
    if noun in PIECES["haiku"]:
        return PIECES["haiku"][noun]
    return ANY_HAIKU.replace("{x}", noun if noun in ANY_TOPICS else "the " + noun)


def any_noun(rng: Random, kind: str) -> str:
    """Something to write about; hand-written pieces come more often."""
    if rng.random() < 0.35:
        return rng.choice(sorted(key for key in PIECES[kind] if key != "*"))
    return rng.choice(PLACES + ANIMALS + THINGS + PEOPLE + ANY_TOPICS)


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
