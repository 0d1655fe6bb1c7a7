"""Answers in JSON: objects with asked-for keys, extraction from a sentence, facts as records. Called by the mixer."""

import json
from random import Random

from demo.corpus import facts, tasks
from demo.corpus.talk import NAMES

CITIES = [
    "Paris",
    "London",
    "Tokyo",
    "Rome",
    "Berlin",
    "Madrid",
    "Cairo",
    "Oslo",
    "Vienna",
    "Lisbon",
    "Dublin",
    "Sydney",
]
COUNTRY = dict(
    zip(
        CITIES,
        [
            "France",
            "United Kingdom",
            "Japan",
            "Italy",
            "Germany",
            "Spain",
            "Egypt",
            "Norway",
            "Austria",
            "Portugal",
            "Ireland",
            "Australia",
        ],
        strict=True,
    )
)
JOBS = tasks.CATEGORIES["jobs"]
LEADS = [
    "Give me a JSON object with {k}.",
    "Return a JSON object with {k}.",
    "Write a JSON object with the keys {k}.",
    "Answer in JSON with the keys {k}.",
    "Make a JSON object with {k}.",
    "Output JSON with {k}.",
    "Generate a JSON object with {k}.",
    "Create a JSON with {k}.",
    "Give me JSON for a person with {k}.",
    "Describe a person in JSON with {k}.",
    "Generate a JSON with the {k} of a person.",
]


def joined(words: list[str]) -> str:
    """The words as an English list."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def write(value: object, rng: Random) -> str:
    """JSON on one line, sometimes indented."""
    return json.dumps(value, ensure_ascii=False, indent=2 if rng.random() < 0.15 else None)


def person(rng: Random) -> dict[str, object]:
    """A made-up person."""
    city = rng.choice(CITIES)
    name = rng.choice(NAMES)
    return {
        "name": name,
        "age": rng.randint(8, 79),
        "city": city,
        "country": COUNTRY[city],
        "job": rng.choice(JOBS),
        "email": f"{name.lower()}@example.com",
        "likes": tasks.CATEGORIES["hobbies"][rng.randint(0, 5)],
        "married": rng.random() < 0.5,
    }


def example(keys: list[str]) -> dict[str, object]:
    """The person of the example answers: always the same, so that greedy decoding is steady."""
    full = {
        "name": "Anna",
        "age": 34,
        "city": "Paris",
        "country": "France",
        "job": "teacher",
        "email": "anna@example.com",
        "likes": "reading",
        "married": True,
    }
    return {key: full[key] for key in keys}


def json_pair(rng: Random) -> tuple[str, str]:
    """A request for JSON, and the JSON."""
    roll = rng.random()
    keys = ["name", "age", "city", "country", "job", "email", "likes", "married"]
    if roll < 0.3:
        picked = rng.sample(keys, rng.randint(1, 4))
        if rng.random() < 0.4:
            picked = ["name", "age", *rng.choice([[], ["city"]])]
        return rng.choice(LEADS).replace("{k}", joined(picked)), write(example(picked), rng)
    if roll < 0.6:
        who = person(rng)
        texts = [
            (f"{who['name']} is {who['age']} years old and lives in {who['city']}.", ["name", "age", "city"]),
            (f"{who['name']} is a {who['job']} from {who['city']}.", ["name", "job", "city"]),
            (f"My name is {who['name']} and I am {who['age']} years old.", ["name", "age"]),
            (
                f"{who['name']}, {who['age']}, works as a {who['job']} and likes {who['likes']}.",
                ["name", "age", "job", "likes"],
            ),
        ]
        text, picked = rng.choice(texts)
        form = rng.choice(
            [
                "Extract the data as JSON: {q}",
                "Turn this sentence into JSON: {q}",
                "Write this as a JSON object: {q}",
                "Extract {k} as JSON: {q}",
                "{q} Return this as JSON.",
            ]
        )
        return form.replace("{q}", text).replace("{k}", joined(picked)), write({key: who[key] for key in picked}, rng)
    if roll < 0.75:
        topic = rng.choice(facts.load()[0])
        form = rng.choice(
            [
                "Describe {x} as JSON.",
                "Give me a JSON object about {x}.",
                "Answer in JSON: what is {x}?",
                "Explain {x} in JSON with the keys topic and summary.",
            ]
        )
        return form.replace("{x}", topic.name), write({"topic": topic.bare, "summary": topic.sentences[0]}, rng)
    if roll < 0.9:
        name = rng.choice(list(tasks.CATEGORIES))
        items = tasks.CATEGORIES[name][: rng.randint(2, 5)]
        number = tasks.WORDS[len(items)]
        if rng.random() < 0.5:
            return f"Give me a JSON array of {number} {name}.", write(items, rng)
        return f"Give me a JSON object with a list of {number} {name}.", write({name.replace(" ", "_"): items}, rng)
    city = rng.choice(CITIES)
    forms = [
        f"Give me a JSON object with the country and the capital for {city}.",
        f"Which country has the capital {city}? Answer in JSON.",
        f"Write {city} and its country as JSON.",
    ]
    if city == "Sydney":
        return "Give me an empty JSON object.", "{}"
    return rng.choice(forms), write({"country": COUNTRY[city], "capital": city}, rng)
