"""Prompts of five kinds for the model that copies, whose answers behave as real ones of that kind do.

Does: make the prompts of a numbered request, always the same for a number; write the tokenizer that spells the tokens.
Does not: run anything. Pure, but for `write_tokenizer`. Used by `tasks`.

- chat: the answer copies nothing: the model speaks of its own accord.
- summary: short spans from all over the prompt, joined by new tokens.
- edit: a file is repeated; every dozen tokens or so two of them are changed.
- json: records of one schema follow two examples: the skeleton is the same, every value is new.
- agent: turns of one conversation; each answer is a thought of new tokens and a tool call that repeats the last one with
  changed arguments. The examples of calls and the names in them are the same for all conversations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.serving.model import EOS, VOCAB_SIZE, byte_alphabet
from benchmarks.speculation.mind import BEGIN, FIELDS, NUM_CHANGES, NUM_WORDS, Mind, Vocabulary, build_mind
from benchmarks.speculation.tasks import AGENT, CHAT, EDIT, JSON, SUMMARY, Task, Turn

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {field: {"type": "string", "maxLength": 24} for field in FIELDS},
        "required": list(FIELDS),
        "additionalProperties": False,
    },
}
NUM_TURNS = 4
_JSON_EXAMPLES, _JSON_RECORDS = 2, 3
_BLANK = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"  # as byte-level tokenizers write it
_WORD_CHARS = "ABCDEFGHJKLMNPQRSTUVWXYZ"  # 24; a word has four


@cache
def vocabulary() -> Vocabulary:
    """Who the tokens are."""
    return Vocabulary()


@cache
def mind() -> Mind:
    """What the model has in mind."""
    return build_mind(vocabulary())


def copier_task(kind: str, number: int) -> Task:
    """Request `number` of a kind."""
    questions = _MAKERS[kind](number, random.Random(f"{kind}/{number}"))
    grammar = {"guided_json": SCHEMA} if kind == JSON else {}
    text: list[int] = []
    turns = []
    for added, num_tokens in questions:
        text += added
        turns.append(Turn(num_tokens, ids=tuple(text), grammar=grammar, ignores_eos=True))
        text += mind().answer(text, num_tokens)
    return Task(kind, tuple(turns))


Question = tuple[Sequence[int], int]
"""What a turn adds to the text, and how many tokens the answer has."""


def _chat(number: int, dice: random.Random) -> list[Question]:
    known, num_tokens = vocabulary(), 128
    begin = known.talk[number * num_tokens % len(known.talk)]
    return [((BEGIN, *dice.sample(known.words, 48), begin), num_tokens)]


def _summary(number: int, dice: random.Random) -> list[Question]:
    known = vocabulary()
    words = iter(dice.sample(known.words, NUM_WORDS))
    chains = known.change_chains[number % len(known.change_chains)]
    tour = dice.sample(range(NUM_CHANGES), NUM_CHANGES)  # the order in which the answer comes to the segments
    goes_to = dict(zip(tour, [*tour[1:], tour[0]], strict=True))
    segments = []
    for place in range(NUM_CHANGES):
        said = [next(words) for _ in range(dice.randint(3, 8))]
        left_out = [next(words) for _ in range(dice.randint(2, 4))]
        segments.append([known.resume[place], *said, chains[goes_to[place]].values[0], *left_out])
    text = [token_id for segment in segments for token_id in segment]
    return [((BEGIN, *text, next(words), known.resume[tour[0]]), 128)]


def _edit(number: int, dice: random.Random) -> list[Question]:
    known = vocabulary()
    words = iter(dice.sample(known.words, NUM_WORDS))
    chains = known.change_chains[number % len(known.change_chains)]
    file: list[int] = []
    for chain in dice.sample(chains, 10):
        file += [next(words) for _ in range(dice.randint(6, 20))]
        file += [chain.values[0], chain.tails[0], chain.resume]
    file += [next(words) for _ in range(10)]
    asked = [next(words) for _ in range(16)]
    return [((BEGIN, *asked, *file, next(words), file[0]), len(file) - 1)]


def _json(number: int, dice: random.Random) -> list[Question]:
    known = vocabulary()
    chains = known.json_chains[number % len(known.json_chains)]
    first = number // len(known.json_chains) % 3 * 5
    examples = [
        token_id
        for step in range(first, first + _JSON_EXAMPLES)
        for pieces, chain in zip(known.json, chains, strict=True)
        for token_id in (*pieces, chain.values[step], chain.tails[step])
    ]
    asked = dice.sample(known.words, 24)
    ids = (BEGIN, *asked, known.json_open, *examples[1:], known.json_close, known.asks_for_json)
    num_tokens = len(examples) // _JSON_EXAMPLES * _JSON_RECORDS
    return [(ids, num_tokens)]


def _agent(number: int, dice: random.Random) -> list[Question]:
    known = vocabulary()
    words = iter(dice.sample(known.words, NUM_WORDS))
    chains = known.call_chains[number % len(known.call_chains)]
    first = number // len(known.call_chains) % 2 * 3
    call = [
        token_id
        for names, chain in zip(known.call, chains, strict=True)
        for token_id in (*names, chain.values[first], chain.tails[first])
    ]
    manual = random.Random("manual").sample(known.words[:100], 60)  # what all conversations begin with
    words = iter([word for word in words if word not in manual])
    turns: list[Question] = []
    for turn in range(NUM_TURNS):
        result = [next(words) for _ in range(30)]
        thought = known.thoughts[(number * NUM_TURNS + turn) % len(known.thoughts)]
        length = dice.randint(4, 7)
        before = (BEGIN, *manual, *call, known.call_end) if not turn else (known.call_end,)
        turns.append(((*before, *result, thought[-length]), length - 1 + len(call)))
    return turns


_MAKERS = {CHAT: _chat, SUMMARY: _summary, EDIT: _edit, JSON: _json, AGENT: _agent}


def write_tokenizer(directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json: the pieces of JSON spell themselves, every other token is a word."""
    known = vocabulary()
    ids = {EOS: 0} | {character: i + 1 for i, character in enumerate(byte_alphabet())}
    ids |= {
        known.texts.get(token_id, _word(token_id)).replace(" ", _BLANK): token_id
        for token_id in range(BEGIN, VOCAB_SIZE)
    }
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    pieces = sorted(known.texts.values(), key=len, reverse=True)
    pattern = "|".join([*("".join(f"\\{c}" if not c.isalnum() else c for c in piece) for piece in pieces), "[A-Z]{4}"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    tokenizer.save(str(directory / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS}
    (directory / "tokenizer_config.json").write_text(json.dumps(facts, indent=2))


def _word(token_id: int) -> str:
    """Four letters that no other token has."""
    letters = ""
    for _ in range(4):
        token_id, digit = divmod(token_id, len(_WORD_CHARS))
        letters += _WORD_CHARS[digit]
    return letters
