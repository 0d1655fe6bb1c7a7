"""What the model that copies has in mind: for every token what it is copied as, what follows it, and which copy wins.

Does: share out the vocabulary, build the tables that `copier` makes a model of, say what that model answers. Does not: write
weights, or prompts (`copier_texts` does). Pure; called by the benchmark and by its test.

The model's rule, for the token it has read last:
1. If that token stands earlier in the text, of the tokens behind it the one with the highest level is copied: said is
   what the mind says for it. For nearly every token that is the token itself.
2. Else its own follower is said.

A chain makes a copy differ from what is copied: its values have rising levels, and each is copied as the next one. A value
is followed by a tail of its own, and each tail by the token that the chain comes back to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.serving.model import VOCAB_SIZE

Array = np.ndarray[Any, Any]

BEGIN = 257  # of every prompt; behind the end of sequence and the 256 bytes
NUM_LEVELS = 24

FIELDS = (
    "station_display_name",
    "mean_air_pressure",
    "wind_direction_degrees",
    "highest_temperature",
    "relative_humidity",
    "observed_at_hour",
    "reporting_person",
    "visibility_category",
)
_PIECE_CHARS = 3

NUM_JSON_SETS, NUM_JSON_VALUES = 24, 16
NUM_CALL_SETS, NUM_CALL_VALUES = 24, 8
NUM_CHANGE_SETS, NUM_CHANGES = 40, 24
NUM_CALL_SLOTS, CALL_WORDS = 3, 14  # arguments of a tool call that change, and the words before each
NUM_THOUGHTS, THOUGHT_WORDS = 256, 8
NUM_WORDS = 4000


def _pieces(before: str, field: str) -> list[str]:
    """The text between two values, cut as a tokenizer would that has seen much of it."""
    parts = [field[i : i + _PIECE_CHARS] for i in range(0, len(field), _PIECE_CHARS)]
    return [before + parts[0], *parts[1:-1], parts[-1] + '": "']


JSON_OPEN, JSON_CLOSE = '[{"' + FIELDS[0][:_PIECE_CHARS], '"}]'
JSON_PIECES = tuple(tuple(_pieces('", "' if slot else '"}, {"', field)) for slot, field in enumerate(FIELDS))
"""Of each field, the texts of the tokens before its value."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Values that are copied as the next one, each with its tail; behind a tail the text comes back to `resume`."""

    values: range
    tails: range
    resume: int


class Vocabulary:
    """Who the tokens are. Chains are those of one set, so that requests with different sets share no values."""

    def __init__(self) -> None:
        self._next = BEGIN + 1
        self.texts: dict[int, str] = {}
        self.json_open, self.json_close = self._spelt(JSON_OPEN), self._spelt(JSON_CLOSE)
        self.json = [[self._spelt(piece) for piece in pieces] for pieces in JSON_PIECES]
        self.call = [self._take(CALL_WORDS) for _ in range(NUM_CALL_SLOTS)]
        self.call_end = self._take(1)[0]
        self.resume = self._take(NUM_CHANGES)
        starts = [pieces[0] for pieces in self.json]
        self.json_chains = self._chains(NUM_JSON_SETS, NUM_JSON_VALUES, [*starts[1:], starts[0]])
        after_calls = [*(words[0] for words in self.call[1:]), self.call_end]
        self.call_chains = self._chains(NUM_CALL_SETS, NUM_CALL_VALUES, after_calls)
        self.change_chains = self._chains(NUM_CHANGE_SETS, 2, self.resume)
        self.thoughts = [self._take(THOUGHT_WORDS) for _ in range(NUM_THOUGHTS)]
        self.asks_for_json = self._take(1)[0]
        self.words = self._take(NUM_WORDS)
        self.talk = self._take(VOCAB_SIZE - self._next)  # what the model says of its own accord

    def _take(self, count: int) -> range:
        ids = range(self._next, self._next + count)
        self._next = ids.stop
        return ids

    def _spelt(self, text: str) -> int:
        (token_id,) = self._take(1)
        self.texts[token_id] = text
        return token_id

    def _chains(self, num_sets: int, num_values: int, resumes: Sequence[int]) -> list[list[Chain]]:
        return [
            [Chain(self._take(num_values), self._take(num_values), resume) for resume in resumes]
            for _ in range(num_sets)
        ]

    def chains(self) -> list[Chain]:
        """All of them."""
        sets = (*self.json_chains, *self.call_chains, *self.change_chains)
        return [chain for chains in sets for chain in chains]


@dataclass(frozen=True, slots=True)
class Mind:
    """For each token, [V]: what it is copied as, what follows it, and its level (0 to NUM_LEVELS)."""

    said: Array
    follower: Array
    level: Array

    def answer(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What the model says after `prompt`."""
        said, follower, level = self.said.tolist(), self.follower.tolist(), self.level.tolist()
        copied: dict[int, int] = {}  # token -> which of the tokens behind it wins
        text = list(prompt)

        def learn(token_id: int, behind: int) -> None:
            if token_id not in copied or level[behind] >= level[copied[token_id]]:
                copied[token_id] = behind

        for token_id, behind in pairwise(text):
            learn(token_id, behind)
        for _ in range(num_tokens):
            last = text[-1]
            text.append(said[copied[last]] if last in copied else follower[last])
            learn(last, text[-1])
        return text[len(prompt) :]


def build_mind(vocabulary: Vocabulary) -> Mind:
    """The mind of the vocabulary's chains, thoughts and talk."""
    said = np.arange(VOCAB_SIZE)
    follower = np.roll(said, -1)
    level = np.zeros(VOCAB_SIZE, dtype=np.int64)
    for chain in vocabulary.chains():
        for step, (value, tail) in enumerate(zip(chain.values, chain.tails, strict=True)):
            said[value] = min(value + 1, chain.values[-1])
            follower[value], follower[tail] = tail, chain.resume
            level[value] = step
    for thought in vocabulary.thoughts:
        follower[thought[-1]] = vocabulary.call[0][0]
    follower[vocabulary.asks_for_json] = vocabulary.json_open
    follower[vocabulary.talk[-1]] = vocabulary.talk[0]
    return Mind(said, follower, level)
