"""Questions and answers about the facts in ``facts/*.json``, multiplied by paraphrase templates and loose frames.

Each file holds one subject: topics (a name and three sentences) and free questions (several wordings, one
answer). ``HELD_OUT`` lists the wordings that are never trained on; ``demo/evaluate.py`` asks them. Called by
the mixer and by the evaluation; knows nothing of how a document is rendered.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from demo.corpus import frames

FOLDER = Path(__file__).with_name("facts")

# Wordings for the evaluation only: never put one of these into a training template.
HELD_OUT = [
    "What do you know about {x}?",
    "Could you give me an overview of {x}?",
    "Help me understand {x}.",
    "I want to learn about {x}.",
    "Please write a few words about {x}.",
]
HELD_OUT_QUESTIONS = ["Could you answer this for me: {q}", "I wonder, {q}"]

IS_QUESTIONS = [
    "What {is} {x}?",
    "What {is} {x}?",
    "What {is} {x}?",
    "What exactly {is} {x}?",
    "So what {is} {x}?",
    "Can you tell me what {x} {is}?",
    "Please explain what {x} {is}.",
    "Do you know what {x} {is}?",
    "I do not know what {x} {is}. Can you explain it?",
    "Explain in simple words what {x} {is}.",
    "Tell me what {x} {is}.",
]
ABOUT = [
    "Tell me about {x}.",
    "Tell me more about {x}.",
    "Tell me something about {x}.",
    "Explain {x}.",
    "Explain {x} to me.",
    "Explain {x} to a child.",
    "Describe {x}.",
    "Describe {x} briefly.",
    "Describe {x} for me.",
    "Define {x}.",
    "Can you explain {x} to me?",
    "Can you explain {x}?",
    "Could you describe {x}?",
    "Could you tell me about {x}?",
    "Would you tell me something about {x}?",
    "I would like to know about {x}.",
    "I would like to know more about {x}.",
    "I need to know about {x} for school.",
    "Give me a short introduction to {x}.",
    "Give me some information about {x}.",
    "Give me a short description of {x}.",
    "What can you tell me about {x}?",
    "What should I know about {x}?",
    "What does {x} mean?",
    "What is meant by {x}?",
    "How would you explain {x}?",
    "How would you describe {x}?",
    "Write a paragraph about {x}.",
    "Write a short text about {x}.",
    "Write about {x}.",
    "Write something about {x}.",
    "Talk about {x}.",
    "Let us talk about {x}.",
    "I have a question about {x}.",
    "Teach me about {x}.",
    "Summarize {x}.",
    "Give me a summary of {x}.",
    "Share some facts about {x}.",
    "Tell me three facts about {x}.",
    "My friend asked me about {x}. What should I say?",
    "{x}",
    "{x}?",
    "{x}: what is it?",
    "What about {x}?",
]
ONE = [
    "What {is} {x}? Answer in one sentence.",
    "Describe {x} in one sentence.",
    "Explain {x} in one sentence.",
    "In one sentence, what {is} {x}?",
    "Tell me one fact about {x}.",
    "Write one sentence about {x}.",
    "Write a sentence about {x}.",
    "Complete in one sentence: {x}",
    "Give me a one-sentence definition of {x}.",
]
TWO = [
    "What {is} {x}? Answer in two sentences.",
    "Describe {x} in two sentences.",
    "Explain {x} in two sentences.",
    "Tell me two facts about {x}.",
    "Write two sentences about {x}.",
]
LISTED = [
    "List three facts about {x}.",
    "Give me a list of facts about {x}.",
    "Three facts about {x}, as a list.",
    "Write down three facts about {x} as a numbered list.",
]
SUBJECT_OF = [
    "Which subject does {x} belong to?",
    "What subject is {x} part of?",
    "Choose the right subject for {x}.",
    "Classify {x} by subject.",
]
SUBJECT_FACT = [
    "Tell me a fact about {s}.",
    "Tell me something about {s}.",
    "Give me a fact about {s}.",
    "Teach me something about {s}.",
    "Tell me something interesting about {s}.",
]
SUBJECT_TOPICS = [
    "Name three topics in {s}.",
    "What can I ask you about {s}?",
    "What do you know in the subject of {s}?",
    "List some topics in {s}.",
]


@dataclass(frozen=True)
class Topic:
    """One topic: its name as written in the file, whether it is plural, its subject and its sentences."""

    name: str
    plural: bool
    subject: str
    sentences: tuple[str, ...]

    @property
    def bare(self) -> str:
        """The name without its article."""
        first, _, rest = self.name.partition(" ")
        return rest if first in ("a", "an", "the") and rest else self.name

    @property
    def text(self) -> str:
        """All the sentences in order."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Question:
    """One free question: its wordings and its answer."""

    asks: tuple[str, ...]
    answer: str
    subject: str


def is_plural(name: str, sentence: str) -> bool:
    """Whether the first sentence goes on with a plural verb after the name."""
    low = sentence.lower()
    return low.startswith((name.lower() + " are ", name.lower() + " were "))


@lru_cache(maxsize=1)
def load() -> tuple[list[Topic], list[Question]]:
    """All topics (a name is kept once, where it comes first) and all free questions."""
    topics: dict[str, Topic] = {}
    questions: list[Question] = []
    for path in sorted(FOLDER.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        subject = data["subject"]
        for item in data["topics"]:
            name, sentences = item["name"], tuple(item["sentences"])
            topics.setdefault(name.lower(), Topic(name, is_plural(name, sentences[0]), subject, sentences))
        questions += [Question(tuple(item["ask"]), item["answer"], subject) for item in data["questions"]]
    return list(topics.values()), questions


def load_topic(name: str) -> Topic:
    """The topic of that name."""
    return next(topic for topic in load()[0] if topic.bare == name)


def plural_of(word: str) -> str:
    """A simple English plural."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    if word.endswith("f"):
        return word[:-1] + "ves"
    return word + "s"


def fill(template: str, topic: Topic, rng: Random | None = None) -> str:
    """The template with the topic's name; with ``rng`` sometimes without article or in the plural."""
    name, plural = topic.name, topic.plural
    roll = rng.random() if rng else 1.0
    if roll < 0.2:
        name = topic.bare
    elif roll < 0.3 and topic.name.startswith(("a ", "an ")):
        name, plural = plural_of(topic.bare), True
    text = template.replace("{is}", "are" if plural else "is").replace("{x}", name)
    return text[0].upper() + text[1:]


def numbered(sentences: tuple[str, ...]) -> str:
    """The sentences as a numbered list."""
    return "\n".join(f"{index}. {sentence}" for index, sentence in enumerate(sentences, 1))


def topic_question(topic: Topic, rng: Random) -> tuple[str, str]:
    """One question about the topic, and its answer."""
    roll = rng.random()
    if roll < 0.62:
        return fill(frames.topic_frame(rng), topic, rng), topic.text
    if roll < 0.74:
        return fill(rng.choice(IS_QUESTIONS), topic, rng), topic.text
    if roll < 0.86:
        return fill(rng.choice(ABOUT), topic, rng), topic.text
    if roll < 0.90:
        return fill(rng.choice(ONE), topic, rng), topic.sentences[0]
    if roll < 0.93:
        return fill(rng.choice(TWO), topic, rng), " ".join(topic.sentences[:2])
    if roll < 0.96:
        return fill(rng.choice(LISTED), topic, rng), numbered(topic.sentences)
    answer = f"{fill('{x}', topic)} {'belong' if topic.plural else 'belongs'} to the subject of {topic.subject}."
    return fill(rng.choice(SUBJECT_OF), topic), answer


def subject_question(rng: Random) -> tuple[str, str]:
    """A question about a whole subject: a fact from it, or some of its topics."""
    topics, _ = load()
    topic = rng.choice(topics)
    if rng.random() < 0.6:
        return rng.choice(SUBJECT_FACT).replace("{s}", topic.subject), rng.choice(topic.sentences)
    names = [other.name for other in topics if other.subject == topic.subject][:3]
    answer = f"In {topic.subject}, you can ask me about {names[0]}, {names[1]} and {names[2]}."
    return rng.choice(SUBJECT_TOPICS).replace("{s}", topic.subject), answer


def fact_question(rng: Random) -> tuple[str, str]:
    """One question of any kind over the facts, and its answer."""
    topics, questions = load()
    roll = rng.random()
    if roll < 0.64:
        return topic_question(rng.choice(topics), rng)
    if roll < 0.97:
        question = rng.choice(questions)
        ask = rng.choice(question.asks)
        return frames.asked(ask, rng) if rng.random() < 0.6 else ask, question.answer
    return subject_question(rng)


def paragraph(rng: Random) -> str:
    """A plain text of facts without a question."""
    topics, questions = load()
    roll = rng.random()
    if roll < 0.75:
        return rng.choice(topics).text
    if roll < 0.87:
        topic = rng.choice(topics)
        return f"{fill('{x}', topic)}\n\n{topic.text}"
    return rng.choice(questions).answer
