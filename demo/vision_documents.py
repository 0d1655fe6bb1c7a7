"""Chats about one picture as training documents: which questions, in which order, with what around them.

Called by the second stage of ``demo/vision_train.py`` and by its measuring; the text of a picture is its expansion.
"""

from random import Random

from tokenizers import Tokenizer

from demo.corpus import chats, facts
from demo.corpus.dialog import Document, Exchange, raw_pair, render_chat
from demo.corpus.style import vary
from demo.pictures.questions import Asked, questions, wording
from demo.pictures.scene import Scene, draw_scene
from demo.pictures.wordings import NO_PICTURE
from demo.vision_model import EXPANSION

HARDEST = ("where", "exists", "count_shape", "number")  # asked twice as often

Coded = tuple[list[int], list[float]]
Turn = tuple[str, str]


def with_picture(text: str, rng: Random) -> str:
    """A user's text with the picture before or after it."""
    gap = "\n" if rng.random() < 0.15 else ""
    return EXPANSION + gap + text if rng.random() < 0.5 else text + gap + EXPANSION


def ask(asked: Asked, rng: Random) -> str:
    """The question in one of its trained wordings, sometimes as people type."""
    text = wording(asked, rng)
    return vary(text, rng) if rng.random() < 0.2 else text


def chat_about(scene: Scene, rng: Random) -> Document:
    """A chat of one to six questions about the picture, which comes with the first of them."""
    pool = questions(scene, rng)
    pool += [asked for asked in pool if asked.kind in HARDEST]
    count = 1 if rng.random() < 0.3 else rng.randint(3, 6)
    turns: list[Turn] = []
    if rng.random() < 0.05:
        turns += chats.one_turn(rng)
    for index, asked in enumerate(rng.sample(pool, min(count, len(pool)))):
        if index and rng.random() < 0.04:
            turns += chats.one_turn(rng)
        text = ask(asked, rng)
        turns += [("user", text if index else with_picture(text, rng)), ("assistant", asked.answer)]
    system = rng.choice(chats.SYSTEMS) if rng.random() < 0.25 else None
    return render_chat(Exchange(turns, system))


def blind(rng: Random) -> Document:
    """A question about a picture that is not there, and the honest answer."""
    scene = draw_scene(rng)
    text = ask(rng.choice(questions(scene, rng)), rng)
    if rng.random() < 0.25:
        return raw_pair(text, NO_PICTURE, rng)
    turns = chats.one_turn(rng) if rng.random() < 0.2 else []
    turns += [("user", text), ("assistant", NO_PICTURE)]
    return render_chat(Exchange(turns, rng.choice(chats.SYSTEMS) if rng.random() < 0.25 else None))


def picture_fact(rng: Random) -> Document:
    """A picture with a question that has nothing to do with it."""
    prompt, answer = facts.fact_question(rng)
    return render_chat(Exchange([("user", with_picture(vary(prompt, rng), rng)), ("assistant", answer)]))


def coded(tokenizer: Tokenizer, documents: list[Document]) -> list[Coded]:
    """Token ids, and 1 for those of answers."""
    encoded = iter(
        tokenizer.encode_batch([part for document in documents for part, _ in document], add_special_tokens=False)
    )
    out: list[Coded] = []
    for document in documents:
        ids: list[int] = []
        weights: list[float] = []
        for _, is_answer in document:
            new = next(encoded).ids
            ids += new
            weights += [float(is_answer)] * len(new)
        out.append((ids, weights))
    return out


def coded_documents(tokenizer: Tokenizer, scenes: list[Scene], rng: Random) -> list[Coded]:
    """One document for each scene."""
    return coded(tokenizer, [picture_fact(rng) if rng.random() < 0.03 else chat_about(scene, rng) for scene in scenes])
