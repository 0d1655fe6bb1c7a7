"""The mixture: draws one training document from all generators, in its raw or its chat form.

``sample_document`` is the only entry; the trainer and the tokenizer call it with a seeded ``Random``.
"""

from collections.abc import Callable
from random import Random

from demo.corpus import chats, drills, facts, structured, talk, tasks, tools, writing
from demo.corpus.dialog import Document, continuation, fill_in_middle, plain, raw_pair, render_chat
from demo.corpus.style import vary

Pair = tuple[str, str]
CHAT_SHARE = 0.45


def present(pair: Pair, rng: Random, varied: bool = True) -> Document:
    """The pair as a raw document or as a chat, the prompt varied as people type."""
    prompt, answer = pair
    if varied:
        prompt = vary(prompt, rng)
    if rng.random() >= CHAT_SHARE:
        return raw_pair(prompt, answer, rng)
    return render_chat(chats.single(prompt, answer, rng))


def plain_text(rng: Random) -> str:
    """A text without a question, of any kind."""
    roll = rng.random()
    if roll < 0.6:
        return facts.paragraph(rng)
    if roll < 0.85:
        return writing.story_text(rng)
    return writing.verse_text(rng)


def opening(rng: Random) -> Document:
    """A sentence's beginning as the prompt, and how it goes on."""
    roll = rng.random()
    if roll < 0.4:
        start, rest = rng.choice(talk.STARTS)
        if start and rng.random() < 0.15:
            start = start.lower()
        return continuation(start, rest)
    text = plain_text(rng)
    words = text.split(" ")
    cut = len(" ".join(words[: rng.randint(min(3, len(words)), min(8, len(words)))]))
    start = text[:cut]
    if rng.random() < 0.2:
        start = start.lower()
    return continuation(start, text[cut:])


def example_pair(rng: Random) -> Pair:
    """One of the prompts that guides and tests like best, so that these surely work."""
    roll = rng.random()
    if roll < 0.25:
        topic = facts.load_topic("deep learning")
        return rng.choice(
            ["What is Deep Learning?", "What is Deep Learning", facts.fill("What {is} {x}?", topic)]
        ), topic.text
    if roll < 0.45:
        return writing.example_pair(rng)
    return talk.example_pair(rng)


def named_fact(rng: Random) -> Document:
    """A chat about facts with the user's name, several turns or thinking."""
    return render_chat(chats.conversation(rng))


KINDS: list[tuple[float, Callable[[Random], Document]]] = [
    (0.46, lambda rng: present(facts.fact_question(rng), rng)),
    (0.05, lambda rng: present(talk.talk_pair(rng), rng)),
    (0.03, lambda rng: present(example_pair(rng), rng, varied=rng.random() < 0.3)),
    (0.005, lambda rng: present(talk.say_test(rng), rng)),
    (0.05, lambda rng: present(talk.echo_pair(rng), rng, varied=False)),
    (0.02, drills.drill),
    (0.025, lambda rng: present(talk.unknown_pair(rng), rng)),
    (0.04, lambda rng: present(writing.writing_pair(rng), rng)),
    (0.11, lambda rng: present(tasks.list_pair(rng), rng)),
    (0.09, lambda rng: present(tasks.sum_pair(rng), rng, varied=rng.random() < 0.5)),
    (0.07, drills.sums),
    (0.015, lambda rng: present(tasks.choice_pair(rng), rng, varied=False)),
    (0.03, lambda rng: present(structured.json_pair(rng), rng, varied=rng.random() < 0.3)),
    (0.04, named_fact),
    (0.02, lambda rng: render_chat(tools.tool_exchange(rng))),
    (0.01, lambda rng: plain(plain_text(rng))),
    (0.03, opening),
    (0.02, lambda rng: fill_in_middle(plain_text(rng), rng)),
]
WEIGHTS = [weight for weight, _ in KINDS]


def sample_document(rng: Random) -> Document:
    """One document of the mixture."""
    make = rng.choices(KINDS, weights=WEIGHTS)[0][1]
    return make(rng)
