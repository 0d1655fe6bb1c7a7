"""Lists, small arithmetic and choices: short answers with one right form. Called by the mixer."""

import json
from pathlib import Path
from random import Random

WORD_LISTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))

CATEGORIES: dict[str, list[str]] = {
    "fruits": ["apple", "banana", "orange", "pear", "grape", "lemon", "cherry", "peach", "plum", "mango"],
    "vegetables": ["carrot", "onion", "potato", "tomato", "cabbage", "pea", "bean", "spinach", "pumpkin", "leek"],
    "colors": ["red", "blue", "green", "yellow", "black", "white", "orange", "purple", "brown", "pink"],
    "animals": ["dog", "cat", "horse", "cow", "lion", "elephant", "rabbit", "bear", "fox", "mouse"],
    "farm animals": ["cow", "pig", "sheep", "hen", "goat", "duck", "horse"],
    "wild animals": ["lion", "tiger", "wolf", "bear", "elephant", "fox", "zebra"],
    "birds": ["sparrow", "eagle", "owl", "duck", "swan", "crow", "robin", "penguin"],
    "fish": ["salmon", "trout", "tuna", "cod", "shark", "carp", "herring"],
    "insects": ["ant", "bee", "fly", "butterfly", "beetle", "mosquito", "wasp"],
    "trees": ["oak", "pine", "birch", "maple", "willow", "apple tree", "palm"],
    "flowers": ["rose", "tulip", "daisy", "lily", "sunflower", "violet", "orchid"],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
    "countries": ["France", "Japan", "Brazil", "Egypt", "Canada", "India", "Spain", "Kenya"],
    "cities": ["Paris", "London", "Tokyo", "New York", "Rome", "Cairo", "Berlin", "Sydney"],
    "capitals": ["Paris", "Berlin", "Rome", "Madrid", "London", "Tokyo", "Cairo", "Ottawa"],
    "continents": ["Africa", "Antarctica", "Asia", "Europe", "North America", "Oceania", "South America"],
    "oceans": ["Pacific Ocean", "Atlantic Ocean", "Indian Ocean", "Southern Ocean", "Arctic Ocean"],
    "rivers": ["Nile", "Amazon", "Danube", "Rhine", "Mississippi", "Ganges"],
    "sports": ["soccer", "tennis", "swimming", "basketball", "running", "cycling", "skiing", "boxing"],
    "musical instruments": ["piano", "violin", "guitar", "flute", "drum", "trumpet", "harp", "cello"],
    "days of the week": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "months": ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"],
    "seasons": ["spring", "summer", "autumn", "winter"],
    "programming languages": ["Python", "C", "Java", "Rust", "JavaScript", "Go", "Ruby", "Swift"],
    "parts of a computer": ["processor", "memory", "disk", "screen", "keyboard", "mouse"],
    "operating systems": ["Linux", "Windows", "macOS", "Android"],
    "tools": ["hammer", "saw", "screwdriver", "drill", "wrench", "pliers"],
    "pieces of furniture": ["chair", "table", "bed", "sofa", "desk", "shelf"],
    "clothes": ["shirt", "coat", "hat", "shoes", "socks", "trousers", "scarf", "gloves"],
    "drinks": ["water", "tea", "coffee", "milk", "juice", "lemonade"],
    "spices": ["pepper", "cinnamon", "ginger", "saffron", "nutmeg", "cumin"],
    "metals": ["iron", "gold", "silver", "copper", "aluminum", "lead", "zinc"],
    "languages": ["English", "Spanish", "French", "Japanese", "Arabic", "Hindi", "Chinese", "German"],
    "jobs": ["teacher", "doctor", "baker", "farmer", "engineer", "painter", "nurse", "pilot"],
    "vehicles": ["car", "bus", "train", "bicycle", "boat", "airplane", "truck"],
    "shapes": ["circle", "square", "triangle", "rectangle", "star", "oval"],
    "body parts": ["head", "hand", "foot", "arm", "leg", "ear", "nose", "eye"],
    "kitchen tools": ["knife", "spoon", "fork", "pot", "pan", "bowl", "oven"],
    "feelings": ["joy", "fear", "anger", "sadness", "surprise", "love"],
    "hobbies": ["reading", "painting", "gardening", "cooking", "hiking", "chess"],
}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
LIST_FORMS = [
    "List {k} {c}.",
    "Name {k} {c}.",
    "Give me {k} {c}.",
    "Write a list of {k} {c}.",
    "Can you name {k} {c}?",
    "Tell me {k} {c}.",
    "Please list {k} {c}.",
    "Give me a list of {k} {c}.",
    "I need {k} {c}.",
    "Write down {k} {c}.",
    "What are {k} {c}?",
    "List {k} different {c}.",
    "Make a list of {k} {c}.",
    "Show me {k} {c}.",
]
OPEN_FORMS = [
    "List some {c}.",
    "Name some {c}.",
    "Make a list of {c}.",
    "Give me a list of {c}.",
    "Write a list of {c}.",
    "List {c}.",
]
BULLET_FORMS = [
    "List {k} {c} as bullet points.",
    "Give me {k} {c} as a bulleted list.",
    "Write {k} {c} with bullet points.",
]
COMMA_FORMS = [
    "List {k} {c}, separated by commas.",
    "Name {k} {c} in one line.",
    "Give me {k} {c} separated by commas.",
]
EXAMPLE_FORMS = ["Name a {c}.", "Give me an example of a {c}.", "Tell me the name of a {c}."]
SHOPPING = "1. Bread\n2. Milk\n3. Eggs\n4. Apples\n5. Tea"
TODO = "1. Water the plants.\n2. Write to a friend.\n3. Buy bread.\n4. Read ten pages."
SINGLE = {
    "fruits": "fruit",
    "vegetables": "vegetable",
    "colors": "color",
    "animals": "animal",
    "birds": "bird",
    "trees": "tree",
    "flowers": "flower",
    "planets": "planet",
    "metals": "metal",
    "sports": "sport",
    "jobs": "job",
    "tools": "tool",
    "drinks": "drink",
}


def capital(word: str) -> str:
    """The word with a capital letter, the rest as it is."""
    return word if word == "macOS" else word[0].upper() + word[1:]


def list_pair(rng: Random) -> tuple[str, str]:
    """A request for a list, and the list."""
    if rng.random() < 0.06:
        if rng.random() < 0.5:
            return rng.choice(
                ["Write a shopping list.", "Make a shopping list.", "Write a list.", "Give me a list."]
            ), SHOPPING
        return rng.choice(["Write a to-do list.", "Make a to-do list.", "Write a to-do list for today."]), TODO
    name = rng.choice(list(CATEGORIES))
    items = CATEGORIES[name]
    count = rng.randint(2, min(len(items), 8)) if rng.random() < 0.6 else min(rng.choice([3, 5]), len(items))
    picked = items[:count]
    roll = rng.random()
    if roll < 0.05 and name in SINGLE:
        return rng.choice(EXAMPLE_FORMS).replace("{c}", SINGLE[name]), capital(items[0])
    if roll < 0.62:
        form, answer = rng.choice(LIST_FORMS), "\n".join(f"{i}. {capital(item)}" for i, item in enumerate(picked, 1))
    elif roll < 0.68:
        form, answer = rng.choice(OPEN_FORMS), "\n".join(f"{i}. {capital(item)}" for i, item in enumerate(items[:5], 1))
    elif roll < 0.84:
        form, answer = rng.choice(BULLET_FORMS), "\n".join(f"- {capital(item)}" for item in picked)
    else:
        form, answer = rng.choice(COMMA_FORMS), capital(", ".join(picked))
    number = WORDS[count] if rng.random() < 0.7 else str(count)
    return form.replace("{k}", number).replace("{c}", name), answer


def small_sum(rng: Random) -> tuple[int, str, int, int]:
    """Two numbers with their sign between them, mostly single digits, and the sum or difference."""
    top = rng.choices([9, 12, 20], weights=[8, 1, 1])[0]
    a, b = rng.randint(0, top), rng.randint(0, top)
    if rng.random() < 0.6:
        return a, "+", b, a + b
    return max(a, b), "-", min(a, b), abs(a - b)


def sum_pair(rng: Random) -> tuple[str, str]:
    """A small sum, difference, product or comparison, and its result."""
    roll = rng.random()
    if roll < 0.72:
        a, sign, b, result = small_sum(rng)
        word = "plus" if sign == "+" else "minus"
    elif roll < 0.88:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        sign, word, result = rng.choice("*x×"), "times", a * b
    elif roll < 0.94:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if a == b:
            b += 1
        forms = [
            f"Which is larger, {a} or {b}?",
            f"Which number is bigger: {a} or {b}?",
            f"What is the larger number, {a} or {b}?",
        ]
        return rng.choice(forms), f"{max(a, b)} is larger than {min(a, b)}."
    else:
        start, step = rng.randint(0, 10), rng.choice([1, 2, 5, 10])
        row = ", ".join(str(start + step * i) for i in range(4))
        forms = [f"What comes next: {row}?", f"Continue: {row}", f"Which number comes after {row}?"]
        return rng.choice(forms), str(start + step * 4)
    full = f"{a} {sign} {b} = {result}"
    pairs = [
        (f"What is {a} {sign} {b}?", full),
        (f"What is {a} {word} {b}?", f"{a} {word} {b} is {result}."),
        (f"{a} {sign} {b}", full),
        (f"{a} {sign} {b} =", str(result)),
        (f"{a}{sign}{b}=", str(result)),
        (f"Calculate {a} {sign} {b}.", full),
        (f"How much is {a} {word} {b}?", f"{a} {word} {b} is {result}."),
        (f"Compute {a} {sign} {b}", full),
        (f"What is {a}{sign}{b}?", full),
        (f"Solve {a} {sign} {b}.", full),
        (f"What is {a} {sign} {b}? Answer with the number only.", str(result)),
        (f"{a} {sign} {b} = ?", full),
    ]
    if a <= 10 and b <= 10 and 0 <= result <= 10 and rng.random() < 0.3:
        return f"What is {WORDS[a]} {word} {WORDS[b]}?", f"{capital(WORDS[a])} {word} {WORDS[b]} is {WORDS[result]}."
    return rng.choice(pairs)


def choice_pair(rng: Random) -> tuple[str, str]:
    """A question with a closed set of answers: the feeling of a sentence, yes or no, one of a group."""
    roll = rng.random()
    if roll < 0.55:
        positive = rng.random() < 0.5
        word, thing = (
            rng.choice(WORD_LISTS["good"] if positive else WORD_LISTS["bad"]),
            rng.choice(WORD_LISTS["reviewed"]),
        )
        text = rng.choice(
            ["The {t} was {w}.", "What a {w} {t}!", "This {t} is {w}.", "I had a {w} {t}.", "My {t} was really {w}."]
        )
        text = text.replace("{t}", thing).replace("{w}", word)
        verb = "love" if positive else "hate"
        if rng.random() < 0.2:
            text = f"I {verb} this {thing}!"
        form = rng.choice(
            [
                "Is this sentence positive or negative? {q}",
                "Classify the sentiment: {q}",
                "Sentiment of this text: {q}",
                "Positive or negative: {q}",
                "Classify this sentiment: {q}",
                "Is the following review positive or negative? {q}",
            ]
        )
        return form.replace("{q}", text), "Positive" if positive else "Negative"
    name, other = rng.sample([key for key in SINGLE if key not in ("animals", "birds")], 2)
    if roll < 0.8:
        yes = rng.random() < 0.5
        item = rng.choice(CATEGORIES[name if yes else other])
        if item in CATEGORIES[name] and not yes:
            yes = True
        item = item if item[0].isupper() else ("an " if item[0] in "aeiou" else "a ") + item
        kind = ("an " if SINGLE[name][0] in "aeiou" else "a ") + SINGLE[name]
        return f"Is {item} {kind}? Answer yes or no.", "Yes" if yes else "No"
    item = rng.choice(CATEGORIES[name])
    first, second = rng.sample([SINGLE[name], SINGLE[other]], 2)
    if item in CATEGORIES[other]:
        return choice_pair(rng)
    return f"Is this a {first} or a {second}: {item}?", capital(SINGLE[name])
