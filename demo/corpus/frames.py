"""Loose wordings of a question: parts that are put together at random around the topic's name.

There are millions of combinations, so that the name counts and not the words around it. The
wordings of the evaluation (``HELD_OUT`` in ``facts.py``) are never put together: ``near_held_out`` finds them, and
these parts are drawn again. Called by ``facts.py`` and ``talk.py``; knows nothing of topics or answers.
"""

import json
from pathlib import Path
from random import Random

# The heart of each held-out wording. A text that contains one is too near to the evaluation to train on.
HEARTS = (
    "do you know about",
    "give me an overview",
    "me understand",
    "me to understand",
    "to learn about",
    "write a few words",
    "a few words about",
    "answer this for me",
    "i wonder,",
)
# The words that a question begins with, so that it ends with a question mark.
BEGINNINGS = ("Can", "Could", "Would", "Will", "Might", "Are", "Is", "May", "Do", "How", "Where")
PARTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("frames.json").read_text(encoding="utf-8"))


def near_held_out(text: str) -> bool:
    """Whether the text contains the heart of a wording that is kept for the evaluation."""
    low = text.lower()
    return any(heart in low for heart in HEARTS)


def joined(first: str, second: str) -> str:
    """Both parts, the second with a small letter after a comma or a colon."""
    if first.endswith((",", ":")) and not second.startswith(("I ", "{")):
        second = second[0].lower() + second[1:]
    return f"{first} {second}"


def core(rng: Random) -> str:
    """One sentence or phrase with ``{x}``, perhaps with an addition."""
    roll = rng.random()
    if roll < 0.25:
        return rng.choice(PARTS["stating"])
    addition = f"{rng.choice(['', ','])} {rng.choice(PARTS['end'])}" if rng.random() < 0.3 else ""
    if roll < 0.45:
        start = rng.choice(PARTS["wishing"])
        middle = rng.choice(PARTS["learning"])
    else:
        start = rng.choice(PARTS["asking"]) if rng.random() < 0.8 else ""
        middle = (
            rng.choice(PARTS["doing"])
            if rng.random() < 0.45
            else f"{rng.choice(PARTS['giving'])} {rng.choice(PARTS['nouns'])}"
        )
    asks = start.startswith(BEGINNINGS)
    text = f"{start} {middle} {{x}}{addition}{'?' if asks else '.'}".strip()
    return text[0].upper() + text[1:]


def around(text: str, rng: Random) -> str:
    """The text, perhaps with a greeting or a reason before it, or a word after it."""
    if rng.random() < 0.2:
        text = joined(rng.choice(PARTS["reason"]), text)
    if rng.random() < 0.2:
        text = joined(rng.choice(PARTS["hello"]), text)
    if text[-1] in ".?!" and rng.random() < 0.12:
        text += " " + rng.choice([*PARTS["after"], *PARTS["reason"]])
    return text


def topic_frame(rng: Random) -> str:
    """A wording with ``{x}`` for the topic's name, never one that is held out."""
    while near_held_out(text := around(core(rng), rng)):
        pass
    return text


def asked(question: str, rng: Random) -> str:
    """A question that stands by itself, perhaps with words before and after it."""
    while True:
        text = joined(rng.choice(PARTS["before_question"]), question) if rng.random() < 0.7 else question
        text = around(text, rng)
        if not near_held_out(text.replace(question, "")):
            return text
