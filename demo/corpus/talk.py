"""Small talk: greetings, identity, tests and echoes, unknown topics, translations, and the prompts of examples.

Hand-written pairs of wordings and one answer (``talk.json``), plus a few generators that copy words from the
prompt. Called by the mixer (``talk_pair``, ``echo_pair``, ``STARTS``) and by the chats (``NAMES``).
"""

import json
from pathlib import Path
from random import Random

from demo.corpus import facts, frames

DATA = json.loads(Path(__file__).with_name("talk.json").read_text(encoding="utf-8"))
WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
NAMES = WORDS["names"]

# Wordings and their answer; the wordings are varied further by ``style.vary``.
PAIRS: list[tuple[list[str], str]] = [(pair["ask"], pair["answer"]) for pair in DATA["pairs"]]
# Beginnings of sentences and how they go on.
STARTS: list[tuple[str, str]] = [(start, rest) for start, rest in DATA["starts"]]
ECHO_WORDS = WORDS["echo"]
ECHO_PHRASES: list[str] = DATA["echo_phrases"]
ECHO_FORMS: list[str] = DATA["echo_forms"]
UNKNOWN_FORMS: list[str] = DATA["unknown_forms"]
EXAMPLES = [
    "How many ways can I peel an orange",
    "Write a ...",
    "What is ...",
    "This is a test",
    "Hello!",
    "Hello",
    "Who are you?",
    "What is the capital of France?",
    "Tell me a joke.",
]
UNKNOWN = "I am a small demo model and do not know about that."


def made_up(rng: Random) -> str:
    """A word that means nothing."""
    return "".join(rng.choice(WORDS["syllables"]) for _ in range(rng.randint(1, 3))) + rng.choice(WORDS["ends"])


def unknown_pair(rng: Random) -> tuple[str, str]:
    """A question about something that does not exist."""
    word = made_up(rng)
    name = made_up(rng).title() + (" " + made_up(rng).title() if rng.random() < 0.4 else "")
    if rng.random() < 0.5:
        text = frames.topic_frame(rng).replace("{x}", name if rng.random() < 0.5 else word)
        return text[0].upper() + text[1:], UNKNOWN
    return rng.choice(UNKNOWN_FORMS).replace("{w}", word).replace("{n}", name), UNKNOWN


def random_words(rng: Random) -> str:
    """Some words that do not belong together: from a short list, from the facts, or made up."""
    roll = rng.random()
    if roll < 0.35:
        return " ".join(rng.choice(ECHO_WORDS) for _ in range(rng.randint(1, 7)))
    if roll < 0.65:
        sentences = [rng.choice(rng.choice(facts.load()[0]).sentences).rstrip(".").split(" ") for _ in range(4)]
        words = [word for sentence in sentences for word in sentence]
        return " ".join(rng.choice(words) for _ in range(rng.randint(3, 18)))
    if roll < 0.8:
        return rng.choice(rng.choice(facts.load()[0]).sentences)
    if roll < 0.9:
        return " ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(1, 6)))
    return " ".join(made_up(rng) for _ in range(rng.randint(1, 4)))


def echo_pair(rng: Random) -> tuple[str, str]:
    """A request to repeat some words, and the words."""
    phrase = rng.choice(ECHO_PHRASES) if rng.random() < 0.15 else random_words(rng)
    if rng.random() < 0.3:
        phrase = phrase[0].upper() + phrase[1:]
    answer = phrase[0].upper() + phrase[1:] + ("" if phrase[-1] in ".!?" else ".")
    form = rng.choice(ECHO_FORMS)
    if "exactly" in form or '"' in form:
        answer = phrase
    return form.replace("{q}", phrase), answer


def say_test(rng: Random) -> tuple[str, str]:
    """The best-known test prompt of all."""
    return rng.choice(
        ["Say this is a test", "Say this is a test!", "Say this is a test.", "Please say this is a test"]
    ), "This is a test."


def talk_pair(rng: Random) -> tuple[str, str]:
    """One small-talk prompt and its answer; entries with more wordings come a little more often."""
    asks, answer = rng.choices(PAIRS, weights=[1 + len(asks) ** 0.5 for asks, _ in PAIRS])[0]
    return rng.choice(asks), answer


def example_pair(rng: Random) -> tuple[str, str]:
    """One of the best-known example prompts."""
    prompt = rng.choice(EXAMPLES)
    return prompt, next(answer for asks, answer in PAIRS if prompt in asks)
