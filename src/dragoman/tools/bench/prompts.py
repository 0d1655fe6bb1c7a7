"""The prompts of a benchmark: common words up to a length in tokens, or a file. The same seed makes the same prompts."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dragoman.tools.bench.apis import Prompt
from dragoman.tools.bench.load import Lengths, OptionError

# Short common words, which most vocabularies have as one token with the space before them.
_COMMON = """
about above across after again air all along also always animal another answer any apple area arm around ask away back
bad ball bank base bear beat bed before begin behind best better between big bird black blue board boat body book both
box boy bread bring build burn bus buy call camp car card care carry case cat catch chair child city class clean clear
clock close cloud coast cold color come common cook cool copy corn cost count course cover cross cry cut dance dark
day deal deep desk dinner dog door down draw dream dress drink drive drop dry each early earth east easy eat edge egg
else end engine enough even evening ever every eye face fact fall family far farm fast father fear
"""
WORDS = _COMMON.split()


@dataclass(frozen=True)
class SyntheticPrompts:
    """Prompts of made-up text with equal `shared_tokens`; n words have `overhead + n * tokens_per_word` tokens.

    `prompt`: of a request by its number in a point; negative points are not measured.
    """

    lengths: Lengths
    seed: int
    shared_tokens: int = 0
    tokens_per_word: float = 1.0
    overhead: float = 0.0

    def prompt(self, point: int, number: int) -> Prompt:
        dice = random.Random(f"{self.seed}/{point}/{number}")
        tokens = self.lengths.draw(dice) - self.overhead
        shared = self._prefix
        count = max(1, round(tokens / self.tokens_per_word) - len(shared))
        return Prompt(" ".join([*shared, *_words(dice, count)]))

    @cached_property
    def _prefix(self) -> list[str]:
        count = round((self.shared_tokens - self.overhead) / self.tokens_per_word) if self.shared_tokens else 0
        return _words(random.Random(f"{self.seed}/shared"), max(0, count))


def _words(dice: random.Random, count: int) -> list[str]:
    """`count` words. All are used before one repeats, which makes the number of tokens more exact."""
    found: list[str] = []
    while len(found) < count:
        found += dice.sample(WORDS, k=min(len(WORDS), count - len(found)))
    return found


@dataclass(frozen=True, slots=True)
class FilePrompts:
    prompts: tuple[Prompt, ...]

    def prompt(self, point: int, number: int) -> Prompt:
        return self.prompts[number % len(self.prompts)]


Prompts = SyntheticPrompts | FilePrompts


def read_prompts(path: Path) -> FilePrompts:
    """The prompts of a file: one JSON value per line if the first line is one, else texts. Raises: OptionError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise OptionError("prompts", f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise OptionError("prompts", "must be text in UTF-8") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise OptionError("prompts", "must hold at least one prompt")
    if not numbered[0][1].startswith(("{", '"')):
        return FilePrompts(tuple(Prompt(line) for _, line in numbered))
    return FilePrompts(tuple(_from_json(line, number) for number, line in numbered))


def _from_json(line: str, number: int) -> Prompt:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise OptionError("prompts", f"line {number}: must be JSON as the first line is: {error}") from None
    if isinstance(value, str):
        return Prompt(value)
    if isinstance(value, dict):
        text = next((value[name] for name in ("prompt", "text", "inputs") if isinstance(value.get(name), str)), "")
        messages, most = value.get("messages") or [], value.get("max_tokens")
        is_conversation = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
        is_length = most is None or (type(most) is int and most > 0)
        if is_conversation and is_length and bool(text) != bool(messages):
            return Prompt(text, tuple(messages), most)
    allowed = 'a string, {"prompt": "..."} or {"messages": [...]}, with "max_tokens" above 0 if it is there'
    raise OptionError("prompts", f"line {number}: must be {allowed}")
