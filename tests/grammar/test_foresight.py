"""What a grammar foresees: forced tokens are the only ones allowed, likely ones are allowed, and nothing moves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.grammar.bitmask import ids_of
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.types import Grammar, TokenMasker
from tests.support.tiers import examples

pytest.importorskip("llguidance")

PIECES = [
    b'{"',
    b'":',
    b'", "',
    b' "',
    b"true",
    b" true",
    b"name",
    b"na",
    b"\xc3\xa9",
    b"\xe2\x82",
    b"12",
    b"re",
    b"},",
]
TOOL, END_TOOL, EOS, TURN = (256 + len(PIECES) + place for place in range(4))
TOKENS = [*(bytes([byte]) for byte in range(256)), *PIECES, b"<tool>", b"</tool>", b"<eos>", b"<turn>"]
NUM_WORDS = -(-len(TOKENS) // 32)
ONE_END = GrammarCompiler(Vocabulary(TOKENS, frozenset({TOOL, END_TOOL, EOS, TURN}), EOS))
TWO_ENDS = GrammarCompiler(Vocabulary(TOKENS, frozenset({TOOL, END_TOOL, EOS, TURN}), EOS, frozenset({TURN})))

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "né": {"const": "12 € and more"},
        "kind": {"enum": ["red", "reed", "green"]},
        "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "last": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "né", "kind", "last"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar("json_schema", json.dumps(SCHEMA)),
    "object": Grammar("json_object"),
    "regex": Grammar("regex", r"(na|né)me-[0-9]{2}(, x €)?"),
    "choice": Grammar("choice", json.dumps(["name it", "name", "nature", "true", "é€"])),
    "control tokens": Grammar("lark", 'start: "na" <tool> ("name" | "true") /[a-c]{2}x/ </tool> "é€"'),
    "up to a mark": Grammar("lark", 'start: trigger "(name)"\nUP: /(?s:.*)<f>/\ntrigger[lazy]: UP\n'),
    "no way back": Grammar("lark", 'start: a "name" a\na[max_tokens=3]: /[0-9]+/'),
    "stop": Grammar("lark", 'start: a "name"\na[stop="-"]: /[0-9]+/'),
}
grammars = st.sampled_from(sorted(GRAMMARS))


def words_of(masker: TokenMasker) -> np.ndarray:
    words = np.zeros(NUM_WORDS, dtype=np.uint32)
    masker.fill_mask(words)
    return words


def allowed(masker: TokenMasker) -> list[int]:
    found = ids_of(words_of(masker), NUM_WORDS)
    assert found is not None
    return [int(token_id) for token_id in found]


@given(name=grammars, compiler=st.sampled_from([ONE_END, TWO_ENDS]), data=st.data())
@settings(max_examples=examples(80))
def test_a_random_walk_never_leaves_what_was_foreseen(
    name: str, compiler: GrammarCompiler, data: st.DataObject
) -> None:
    masker, plain = compiler.compile(GRAMMARS[name]), compiler.compile(GRAMMARS[name])
    for _ in range(30):
        if data.draw(st.booleans()):
            check_foresight(masker, data.draw(st.integers(1, 12)))
        choices = allowed(plain)  # of one that was never asked
        assert allowed(masker) == choices
        token_id = data.draw(st.sampled_from(choices))
        assert masker.advance(token_id) == plain.advance(token_id)
        assert masker.is_finished == plain.is_finished


def check_foresight(masker: TokenMasker, limit: int) -> None:
    foreseen = masker.foresee(limit)
    assert masker.foresee(limit) == foreseen
    assert foreseen.num_forced <= len(foreseen.token_ids) <= limit
    assert masker.validate(foreseen.token_ids) == len(foreseen.token_ids)
    position = masker.fork()
    for place, token_id in enumerate(foreseen.token_ids):
        if place < foreseen.num_forced:
            assert allowed(position) == [token_id]
        assert position.advance(token_id)


@given(name=grammars, data=st.data())
@settings(max_examples=examples(60))
def test_masks_ahead_are_those_of_a_fork_that_went_there(name: str, data: st.DataObject) -> None:
    masker, plain = ONE_END.compile(GRAMMARS[name]), ONE_END.compile(GRAMMARS[name])
    for _ in range(8):
        position, token_ids, expected = plain.fork(), [], [words_of(plain)]
        for _ in range(data.draw(st.integers(0, 4))):
            # Mostly legal; one that is refused leaves the grammar where it is.
            token_ids.append(data.draw(st.sampled_from([*allowed(position), ord("%")])))
            position.advance(token_ids[-1])
            expected.append(words_of(position))
        rows = np.full((len(expected), NUM_WORDS), 0xFFFFFFFF, dtype=np.uint32)
        masker.fill_masks(rows, token_ids)
        assert np.array_equal(rows, np.stack(expected))
        following = data.draw(st.sampled_from(allowed(plain)))
        assert masker.advance(following)
        assert plain.advance(following)
        assert allowed(masker) == allowed(plain)


def test_a_key_is_foreseen_as_it_is_spelled() -> None:
    foreseen = ONE_END.compile(GRAMMARS["schema"]).foresee(12)
    assert [TOKENS[token_id] for token_id in foreseen.token_ids] == [b'{"', b"name", b'":', b' "']
    assert foreseen.num_forced == 0
    assert not foreseen.is_open
    assert ONE_END.compile(GRAMMARS["schema"]).foresee(2).token_ids == foreseen.token_ids[:2]


def test_the_last_token_is_open_if_what_follows_may_lengthen_it() -> None:
    masker = ONE_END.compile(Grammar("regex", "n(ame|b)"))
    assert masker.foresee(4) == ([ord("n")], 0, True)  # "na" begins so, too


def test_control_tokens_and_the_only_spelling_are_forced() -> None:
    masker = ONE_END.compile(Grammar("lark", "start: <tool> /xy/ </tool>"))
    assert masker.foresee(9) == ([TOOL, ord("x"), ord("y"), END_TOOL], 4, False)


def test_the_end_is_forced_where_one_token_ends() -> None:
    for compiler, forced in ((ONE_END, [EOS, EOS]), (TWO_ENDS, [])):
        masker = compiler.compile(Grammar("choice", '["x"]'))
        assert masker.advance(ord("x"))
        assert masker.foresee(2).token_ids == forced


def test_a_tokenizers_own_spelling_is_used_if_the_grammar_allows_it() -> None:
    spelled = {"true": [ord(letter) for letter in "true"]}
    vocabulary = Vocabulary(TOKENS, frozenset({EOS}), EOS, encode=lambda text: spelled.get(text, [ord("?")]))
    compiler = GrammarCompiler(vocabulary)
    assert compiler.compile(Grammar("regex", "true")).foresee(9).token_ids == spelled["true"]
    masker = compiler.compile(Grammar("regex", "name"))
    assert masker.foresee(9).token_ids == []
    assert allowed(masker) == [ord("n"), TOKENS.index(b"name"), TOKENS.index(b"na")]


def test_a_long_text_is_foreseen_as_far_as_asked_for() -> None:
    text = "name 12 é€ " * 2_000
    masker = ONE_END.compile(Grammar("choice", json.dumps([text])))
    spelled = b""
    for _ in range(10):
        token_ids = masker.foresee(8).token_ids
        assert 0 < len(token_ids) <= 8
        for token_id in token_ids:
            assert masker.advance(token_id)
            spelled += TOKENS[token_id]
    assert text.encode().startswith(spelled)
