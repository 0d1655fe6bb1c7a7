"""Chats: system prompts, several turns, follow-up questions, the user's name, short thinking. Called by the mixer."""

from random import Random

from demo.corpus import facts, talk, tasks
from demo.corpus.dialog import Exchange
from demo.corpus.style import vary

SYSTEMS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful, honest assistant.",
    "You are a friendly assistant.",
    "You are Dragoman's demo model.",
    "Answer the user's question.",
    "You are a teacher.",
    "Be brief and clear.",
    "You are a chatbot.",
    "You are an AI assistant. Help the user.",
    "Answer politely.",
    "You are a helpful AI assistant.",
    "You are an expert in many fields.",
    "Help the user with simple answers.",
    "You are a kind and patient tutor for children.",
    "Always tell the truth.",
]
BRIEF = [
    "Answer in one sentence.",
    "Answer with one short sentence.",
    "You are a helpful assistant. Answer in one sentence.",
    "Keep every answer to one sentence.",
    "Be very short: one sentence only.",
]
MORE = [
    "Tell me more.",
    "Can you tell me more?",
    "Go on.",
    "More, please.",
    "What else?",
    "Please continue.",
    "And what else can you tell me?",
]
HELLO = ["Hello!", "Hi!", "Hello", "Hi there!", "Good morning!"]
ASK_NAME = [
    "What is my name?",
    "Do you remember my name?",
    "Who am I?",
    "Do you know my name?",
    "Can you tell me my name?",
]
ASK_FIRST = ["What was my first question about?", "What did I ask you about first?", "What did I ask first?"]
THOUGHTS = [
    "The user asks about {x}. I will explain it in a few sentences.",
    "I should describe {x} in simple words.",
    "This is a question about {x}. I know some facts about it.",
]
OTHER_THOUGHTS = ["This is a simple request. I will answer it directly.", "I should give a short and friendly answer."]


def some_system(rng: Random) -> str | None:
    """A system prompt, or none, half of the time each."""
    return rng.choice(SYSTEMS) if rng.random() < 0.5 else None


def single(prompt: str, answer: str, rng: Random) -> Exchange:
    """A chat of one question and its answer."""
    thinking = rng.choice(OTHER_THOUGHTS) if rng.random() < 0.03 else None
    return Exchange([("user", prompt), ("assistant", answer)], some_system(rng), thinking=thinking)


def one_turn(rng: Random) -> list[tuple[str, str]]:
    """A question of any simple kind and its answer, as two turns."""
    roll = rng.random()
    if roll < 0.6:
        prompt, answer = facts.fact_question(rng)
    elif roll < 0.8:
        prompt, answer = talk.talk_pair(rng)
    elif roll < 0.9:
        prompt, answer = tasks.sum_pair(rng)
    else:
        prompt, answer = tasks.list_pair(rng)
    return [("user", vary(prompt, rng)), ("assistant", answer)]


def several(rng: Random) -> Exchange:
    """Two to four questions that have nothing to do with each other."""
    turns = []
    if rng.random() < 0.3:
        turns += [("user", rng.choice(HELLO)), ("assistant", "Hello! How can I help you today?")]
    for _ in range(rng.randint(2, 3)):
        turns += one_turn(rng)
    return Exchange(turns, some_system(rng))


def follow_up(rng: Random) -> Exchange:
    """A short answer first, more on request, then perhaps a question about the talk itself."""
    topic = rng.choice(facts.load()[0])
    question = vary(facts.fill(rng.choice(facts.IS_QUESTIONS + facts.ABOUT[:20]), topic, rng), rng)
    turns = [
        ("user", question),
        ("assistant", topic.sentences[0]),
        ("user", rng.choice(MORE)),
        ("assistant", topic.sentences[1]),
    ]
    if rng.random() < 0.5:
        turns += [("user", rng.choice(MORE)), ("assistant", " ".join(topic.sentences[2:]))]
    system = rng.choice(BRIEF)
    if rng.random() < 0.35:
        turns[1] = ("assistant", topic.text)
        turns = [*turns[:2], ("user", rng.choice(ASK_FIRST)), ("assistant", f"You asked me about {topic.name}.")]
        return Exchange(turns, some_system(rng))
    return Exchange(turns, system)


def brief(rng: Random) -> Exchange:
    """A system prompt that asks for one sentence."""
    topic = rng.choice(facts.load()[0])
    question = vary(facts.fill(rng.choice(facts.IS_QUESTIONS + facts.ABOUT), topic, rng), rng)
    return Exchange([("user", question), ("assistant", topic.sentences[0])], rng.choice(BRIEF))


def remembers(rng: Random) -> Exchange:
    """The user says a name and asks for it later."""
    name = rng.choice(talk.NAMES)
    if rng.random() < 0.25:
        name = talk.made_up(rng).title()
    intro = rng.choice(
        [
            "My name is {n}.",
            "Hello, my name is {n}.",
            "I am {n}.",
            "Hi, I'm {n}!",
            "You can call me {n}.",
            "Hello! I am {n}.",
            "Hi! My name is {n}.",
        ]
    )
    turns = [("user", intro.replace("{n}", name)), ("assistant", f"Nice to meet you, {name}! How can I help you?")]
    if rng.random() < 0.4:
        turns += one_turn(rng)
    turns += [("user", vary(rng.choice(ASK_NAME), rng)), ("assistant", f"Your name is {name}.")]
    return Exchange(turns, some_system(rng))


def system_name(rng: Random) -> Exchange:
    """A system prompt that gives the assistant a name or a language habit."""
    name = rng.choice(talk.NAMES)
    roll = rng.random()
    if roll < 0.6:
        system = rng.choice(
            ["Your name is {n}.", "You are {n}, a helpful assistant.", "You are an assistant named {n}."]
        ).replace("{n}", name)
        ask = vary(rng.choice(["What is your name?", "Who are you?", "Your name?", "Tell me your name."]), rng)
        return Exchange([("user", ask), ("assistant", f"My name is {name}.")], system)
    prompt, answer = facts.fact_question(rng) if rng.random() < 0.7 else talk.talk_pair(rng)
    if roll < 0.75:
        return Exchange([("user", vary(prompt, rng)), ("assistant", answer.upper())], "Answer in capital letters.")
    if roll < 0.9:
        return Exchange(
            [("user", vary(prompt, rng)), ("assistant", f"Arr! {answer}")],
            rng.choice(
                [
                    "You are a pirate.",
                    "Talk like a pirate.",
                    "You are a pirate chatbot who always responds in pirate speak!",
                ]
            ),
        )
    return Exchange([("user", vary(prompt, rng)), ("assistant", f"{answer} 😊")], "End every answer with a smile.")


def thinking(rng: Random) -> Exchange:
    """A short thought before the answer, after the opening tag of the generation prompt."""
    topic = rng.choice(facts.load()[0])
    question, answer = facts.topic_question(topic, rng)
    thought = rng.choice(THOUGHTS).replace("{x}", topic.name)
    return Exchange([("user", vary(question, rng)), ("assistant", answer)], some_system(rng), thinking=thought)


def conversation(rng: Random) -> Exchange:
    """One chat of any of the kinds above."""
    makers = [several, follow_up, brief, remembers, system_name, thinking]
    return rng.choices(makers, weights=[3, 2, 2, 1.5, 1.2, 2.5])[0](rng)
