"""Surface variation of prompts: letter case, final punctuation, small politeness and typing slips.

Makes the model answer "what is deep learning" as it answers "What is Deep Learning?". Never applied to
answers. Called by the mixer for every question that does not depend on its exact letters.
"""

from random import Random

LEADS = [
    "Please tell me: ",
    "I have a question: ",
    "Quick question: ",
    "Hi! ",
    "Hello, ",
    "Hey, ",
    "Please, ",
    "Can you help me? ",
]
TAILS = [" Thanks!", " Thank you.", " Please.", " Please help me.", " Answer briefly.", " Keep it short."]


def title_case(text: str) -> str:
    """Capital letters for the longer words, as in a heading ("What is Deep Learning?")."""
    words = text.split(" ")
    small = {"is", "a", "an", "the", "of", "to", "in", "and", "are", "me", "about", "for"}
    return " ".join(w if w.lower() in small and i else w[:1].upper() + w[1:] for i, w in enumerate(words))


def slip(text: str, rng: Random) -> str:
    """One typing slip inside a longer word."""
    spots = [
        i for i in range(1, len(text) - 1) if text[i - 1].isalpha() and text[i].isalpha() and text[i + 1].isalpha()
    ]
    if not spots:
        return text
    spot = rng.choice(spots)
    if rng.random() < 0.5:
        return text[:spot] + text[spot + 1 :]
    return text[:spot] + text[spot + 1] + text[spot] + text[spot + 2 :]


def vary(prompt: str, rng: Random, wrap: bool = True) -> str:
    """The prompt as people might type it; about half of the time unchanged."""
    if wrap and rng.random() < 0.06:
        lead = rng.choice(LEADS)
        keep = prompt[:2].isupper() or prompt.startswith("I ") or lead.endswith(("! ", "? "))
        prompt = lead + (prompt if keep else prompt[0].lower() + prompt[1:])
    if wrap and prompt[-1] in ".?!" and rng.random() < 0.05:
        prompt += rng.choice(TAILS)
    roll = rng.random()
    if roll < 0.22 and prompt[-1] in ".?!":
        prompt = prompt[:-1]
    elif roll < 0.24 and prompt[-1] == "?":
        prompt = prompt[:-1] + rng.choice(["??", " ?", "?!", "."])
    roll = rng.random()
    if roll < 0.16:
        prompt = prompt.lower()
    elif roll < 0.32:
        prompt = title_case(prompt)
    elif roll < 0.34:
        prompt = prompt.upper()
    if rng.random() < 0.03:
        prompt = slip(prompt, rng)
    return prompt
