"""Sizes of the groups in which kernels quantise activations: which there are, and what the runtime's own name for them asks.

Does: the words of option.activation_group, and the value of DYNAMIC_QUANTIZATION_GROUP_SIZE in other servers' files in these
words. Does not: know which size goes with a model's weights (`models.profile` does). Used at start-up, on any thread.
"""

from __future__ import annotations

STEP, LARGEST = 32, 128
"""Groups are multiples of the one, up to the other: with larger ones prompts are computed more slowly again."""

AT_MOST = "<="
"""Before a size: a smaller one, where it does not go with the weights."""

PROPERTY = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""The runtime's name for it, which OpenVINO's servers take too."""

ALLOWED = f"groups have multiples of {STEP} columns up to {LARGEST}, and 0 is none"


def option_text(asked: str) -> str | None:
    """What such a file asks for as a value of option.activation_group, the nearest below; None if there is none."""
    word = asked.strip()
    if not word.isdecimal() or not word.isascii() or len(word) > 20:  # digits of 64 bits
        return None
    number = min(int(word), LARGEST) // STEP * STEP
    if number:
        return f"{AT_MOST}{number}"
    return "0" if not int(word) else None


def group_of(text: str) -> int | None:
    """The size in a value of the option; None for auto."""
    return None if text == "auto" else int(text.removeprefix(AT_MOST))
