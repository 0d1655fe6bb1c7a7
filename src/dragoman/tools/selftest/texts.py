"""The texts of a self-test: plain English of several kinds."""

from __future__ import annotations

TEXTS = (
    "The harbour lies in the shade of a long hill. In the morning the boats go out one after another, and by noon they "
    "come back with what the sea has given them. Old men sit on the wall and count them. When one is late, nobody says "
    "a word, but all look at the place where the water meets the sky, until a small dark point appears there.",
    "To make bread you need flour, water, salt and yeast. Mix them in a bowl until no dry flour is left, cover the bowl "
    "and wait for an hour. Fold the dough four times, wait again, and shape it into a round loaf. Bake it in a hot oven "
    "for forty minutes, and let it cool before you cut it.",
    "A binary search looks for a value in a sorted list. It compares the value with the one in the middle. If they are "
    "equal, it has found the place. If the value is smaller, it goes on with the left half, else with the right one. "
    "Each step halves what is left, so a million entries take twenty steps.",
    "Question: Why is the sky blue?\nAnswer: Light from the sun is scattered by the air. Short waves are scattered more "
    "than long ones, so blue light reaches our eyes from every direction.",
)
