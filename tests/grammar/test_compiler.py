"""Compiled grammars: whatever is drawn under them belongs to the language, and bad grammars are explained."""

from __future__ import annotations

import json
import re
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import InvalidParameter, UnsupportedFeature
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import GrammarMasker, Spelling, Vocabulary
from dragoman.types import SLOW_MASK_S, Grammar, TokenMasker
from tests.support.sampling import make_request
from tests.support.tiers import examples

llguidance = pytest.importorskip("llguidance")

# Every byte, tokens of several bytes that cross the borders of JSON's syntax, a piece of a character, and specials.
PIECES = [
    b'{"',
    b'":',
    b'", "',
    b"true",
    b"false",
    b"null",
    b"}]",
    b"], [",
    b"name",
    b"\xc3\xa9",
    b"\xe2\x82",
    b"12",
    b" ",
]
SPECIALS = [b"<eos>", b"<pad>", b"<end_of_turn>"]
TOKENS = [*(bytes([byte]) for byte in range(256)), *PIECES, *SPECIALS]
FIRST_SPECIAL = len(TOKENS) - len(SPECIALS)
EOS, PAD, TURN = FIRST_SPECIAL, FIRST_SPECIAL + 1, FIRST_SPECIAL + 2
VOCABULARY = Vocabulary(TOKENS, frozenset({EOS, PAD, TURN}), EOS, frozenset({TURN}))
NUM_LOGITS = len(TOKENS) + 51  # models pad their vocabulary: the last ids have logits and no text

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHARED = GrammarCompiler(VOCABULARY)  # immutable to its users; function-scoped fixtures do not mix with hypothesis


@pytest.fixture
def compiler() -> GrammarCompiler:
    return SHARED


def allowed(masker: TokenMasker) -> set[int]:
    """The tokens the masker allows next."""
    words = np.full(-(-NUM_LOGITS // 32), 0xFFFFFFFF, dtype=np.uint32)
    masker.fill_mask(words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def feed(masker: TokenMasker, text: bytes) -> None:
    """Advance byte by byte; every byte must be allowed."""
    for byte in text:
        assert masker.advance(byte), bytes([byte])


def walk(masker: TokenMasker, seed: int, max_tokens: int = 400) -> str | None:
    """Text of a random walk of the sampler under the grammar; None if it did not end in time."""
    sampler = Sampler(NUM_LOGITS)
    request = make_request(temperature=1.0, seed=seed, eos_token_ids=frozenset({EOS, TURN}))
    state = sampler.new_state(request, 0, masker)
    favoured = np.zeros(NUM_LOGITS, dtype=np.float32)
    favoured[[ord('"'), ord("}"), ord("]"), EOS, TURN]] = 3.0  # so that strings and arrays come to an end
    text = b""
    for _ in range(max_tokens):
        token_id = int(sampler.sample(favoured[None].copy(), [state]).token_ids[0])
        if token_id in (EOS, TURN):
            return text.decode("utf-8")
        text += TOKENS[token_id]
        state.observe(token_id)
    return None


def check_person(person: dict[str, Any]) -> None:
    assert {"name", "age"} <= set(person) <= set(PERSON["properties"])  # type: ignore[call-overload]
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 6
    assert isinstance(person["age"], int)
    assert 0 <= person["age"] <= 150
    assert len(person.get("tags", [])) <= 3
    assert set(person.get("tags", [])) <= {"a", "b"}
    assert isinstance(person.get("ok", True), bool)


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32))
def test_random_walks_under_a_schema_always_validate(seed: int) -> None:
    text = walk(SHARED.compile(Grammar("json_schema", json.dumps(PERSON))), seed)
    assert text is not None
    check_person(json.loads(text))


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32))
def test_random_walks_under_json_object_always_parse(seed: int) -> None:
    text = walk(SHARED.compile(Grammar("json_object")), seed)
    if text is not None:  # nothing bounds the depth of a random object
        assert isinstance(json.loads(text), dict)


@settings(max_examples=examples(30))
@given(st.integers(0, 2**32))
def test_random_walks_under_a_regular_expression_always_match(seed: int) -> None:
    text = walk(SHARED.compile(Grammar("regex", r"(é|[a-c]{2,4})-[0-9]{1,3}(, x)?")), seed)
    assert text is not None
    assert re.fullmatch(r"(é|[a-c]{2,4})-[0-9]{1,3}(, x)?", text)


def test_every_choice_is_reachable_and_nothing_else(compiler: GrammarCompiler) -> None:
    choices = ["yes", "no", 'quo"ted', "back\\slash", "line\nbreak", "é"]
    masker = compiler.compile(Grammar("choice", json.dumps(choices)))
    assert {walk(masker, seed) for seed in range(120)} == set(choices)


def test_a_lark_grammar_is_followed(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("lark", 'start: "(" start ")" | "x"'))
    texts = [walk(masker, seed) for seed in range(20)]
    assert all(text is None or re.fullmatch(r"(\(*)x(\)*)", text) for text in texts)
    assert all(text is None or text.count("(") == text.count(")") for text in texts)
    assert "(x)" in texts


# --- the masker's protocol --------------------------------------------------------------------------------------------


def test_specials_and_padding_are_never_allowed_inside_the_text(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("regex", "(.|\n)*"))
    assert allowed(masker) >= {ord("a"), ord("<"), EOS, TURN}
    assert not allowed(masker) & {PAD, *range(len(TOKENS), NUM_LOGITS)}


def test_a_row_shorter_than_the_vocabulary_gets_its_part_of_the_mask(compiler: GrammarCompiler) -> None:
    words = np.full(4, 0xFFFFFFFF, dtype=np.uint32)
    compiler.compile(Grammar("regex", "[a-c]")).fill_mask(words)
    assert np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist() == [97, 98, 99]


def test_a_refused_token_changes_nothing(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("regex", "ab+"))
    assert not masker.advance(ord("b"))
    assert not masker.advance(EOS)
    assert allowed(masker) == {ord("a")}
    feed(masker, b"ab")
    assert not masker.is_finished
    assert allowed(masker) == {ord("b"), EOS, TURN}


def test_a_complete_text_allows_only_its_end_any_number_of_times(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("regex", "ab"))
    feed(masker, b"ab")
    for end in (EOS, TURN, EOS):
        assert masker.is_finished
        assert allowed(masker) == {EOS, TURN}
        assert masker.advance(end)
    assert not masker.advance(ord("b"))


@pytest.mark.parametrize("source", ["ab", "ab+"], ids=["finished by its text", "finished by its end"])
def test_validation_foresees_what_advancing_accepts(compiler: GrammarCompiler, source: str) -> None:
    drafts = [[97, 98, EOS, EOS, 98], [97, 98, 98], [97, EOS], [98], [], [97, 98, EOS, 97]]
    for draft in drafts:
        masker = compiler.compile(Grammar("regex", source))
        foreseen = masker.validate(draft)
        accepted = [masker.advance(token_id) for token_id in draft]
        assert accepted[:foreseen] == [True] * foreseen
        assert foreseen == len(draft) or not accepted[foreseen]
    finished = compiler.compile(Grammar("regex", source))
    for token_id in (97, 98, EOS):
        finished.advance(token_id)
    assert finished.validate([EOS, 98]) == 1


def test_forks_move_on_their_own(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("regex", "a(b|c)"))
    feed(masker, b"a")
    fork = masker.fork()
    feed(fork, b"b")
    assert fork.is_finished
    assert allowed(masker) == {98, 99}


def test_the_same_grammar_starts_afresh_every_time(compiler: GrammarCompiler) -> None:
    first = compiler.compile(Grammar("regex", "xy"))
    feed(first, b"x")
    assert allowed(compiler.compile(Grammar("regex", "xy"))) == {ord("x")}


def test_more_grammars_than_the_cache_holds_all_work(compiler: GrammarCompiler) -> None:
    for round_ in range(2):
        for number in range(140):
            assert allowed(compiler.compile(Grammar("regex", chr(97 + number % 26) + str(number)))), round_


def test_compiling_works_on_any_thread(compiler: GrammarCompiler) -> None:
    masks: list[set[int]] = []
    threads = [
        threading.Thread(target=lambda: masks.append(allowed(compiler.compile(Grammar("regex", "[ab]")))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert masks == [{97, 98}] * 4


@pytest.mark.parametrize(
    "grammar", [Grammar("json_object"), Grammar("json_schema", '{"type": "object", "additionalProperties": true}')]
)
def test_json_has_one_blank_after_commas_and_colons_and_no_other_space(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    masker = compiler.compile(grammar)
    for text in (b'{"k": [1, 2.5e3, null], "', b"x"):
        assert not masker.advance(ord("\n"))
        feed(masker, text)
        assert not masker.advance(ord("\n"))
    feed(masker, b'": {}}')
    assert masker.is_finished


def test_a_schemas_own_settings_for_white_space_count(compiler: GrammarCompiler) -> None:
    source = '{"enum": [[1, 2]], "x-guidance": {"whitespace_flexible": false, "item_separator": ";"}}'
    feed(compiler.compile(Grammar("json_schema", source)), b"[1;2]")


def test_a_grammar_in_gbnf_is_followed(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("lark", 'root ::= "(" root ")" | letter{2}\nletter ::= [x-y]'))
    feed(masker, b"((xy))")
    assert masker.is_finished


def test_a_lark_grammar_can_contain_gbnf_signs(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("lark", 'start: "a ::= " "b"'))
    feed(masker, b"a ::= b")
    assert masker.is_finished


def test_a_frame_stands_around_the_grammar(compiler: GrammarCompiler) -> None:
    frame = 'start: "<" @output ">"'
    for grammar, text in (
        (Grammar("choice", '["a", "b"]', frame), b"<b>"),
        (Grammar("json_schema", '{"enum": [7]}', frame), b"<7>"),
        (Grammar("regex", "x+", frame), b"<xx>"),
        (Grammar("lark", 'start: "y"', frame), b"<y>"),
    ):
        masker = compiler.compile(grammar)
        feed(masker, text)
        assert masker.is_finished


def test_every_tokenisation_of_a_forced_text_is_allowed(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("regex", "true"))
    assert allowed(masker) == {ord("t"), TOKENS.index(b"true")}


def test_a_grammar_that_becomes_too_complex_fails_the_request() -> None:
    tokenizer = llguidance.LLTokenizer("byte")
    limits = llguidance.LLParserLimits(max_lexer_states=50)
    source = llguidance.LLMatcher.grammar_from_regex("(a|b)*c(a|b){200}")
    end = int(tokenizer.eos_token)
    token_bytes = [tokenizer.decode_bytes([token_id]) for token_id in range(tokenizer.vocab_size)]
    matcher = llguidance.LLMatcher(tokenizer, source, limits=limits, log_level=0)
    spelling = Spelling(tokenizer.greedy_tokenize)
    masker = GrammarMasker(matcher, Vocabulary(token_bytes, frozenset(), end), spelling)
    problem = ""
    mask: set[int] = set()
    for token_id in b"aac" + b"ab" * 60:
        mask = allowed(masker)
        if problem := problem_of(masker, token_id):
            break
    assert problem == (
        "response_format: the grammar became too complex to follow: lexer error: too many states: 50 >= 50"
    )
    assert mask == {end}, "until then no token leaves the grammar"
    assert masker.is_finished
    with pytest.raises(InvalidParameter, match="too complex"):
        masker.advance(end)


def problem_of(masker: TokenMasker, token_id: int) -> str:
    """Why the token cannot be taken in, "" if it can."""
    try:
        masker.advance(token_id)
    except InvalidParameter as error:
        return error.message
    return ""


def test_masks_of_an_ambiguous_grammar_are_bounded_in_every_notation() -> None:
    """The parser's items for one mask: with a token of many letters they are many, and take long."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"a" * 44, b"<eos>"]
    compiler = GrammarCompiler(Vocabulary(tokens, frozenset({len(tokens) - 1}), len(tokens) - 1))
    ambiguous = "start: s\ns: /[a ]/ | s s | s s s | s s s s"
    for grammar in (
        Grammar("lark", ambiguous, frame="start: @output"),
        Grammar("lark", "root ::= s\ns ::= [a ] | s s | s s s | s s s s"),
    ):
        masker, problem = compiler.compile(grammar), ""
        while not problem:
            masker.fill_mask(np.zeros(-(-len(tokens) // 32), dtype="<u4"))
            problem = problem_of(masker, ord("a"))
        assert "too complex to follow: parser error: Too many items (limit 10000; mask)" in problem


def test_the_time_of_a_grammar_counts_for_the_whole_request() -> None:
    masker = GrammarCompiler(VOCABULARY, max_mask_s=0.001).compile(Grammar("regex", "[ab]*"))
    first, second = masker.fork(), masker.fork()
    problem = ""
    while not problem:
        allowed(first)
        problem = problem_of(first, ord("b"))
    assert problem == (
        "response_format: following the grammar took more than 0.001 s of a processor (option.max_grammar_s); "
        "write a less ambiguous one"
    )
    assert second.total_s == first.total_s > 0.001
    assert problem_of(second, ord("b")) == problem


def test_no_tokens_are_foreseen_while_masks_are_slow(compiler: GrammarCompiler) -> None:
    masker = compiler.compile(Grammar("regex", "xyz"))
    assert (masker.foresee(8).token_ids, masker.validate([ord("x")])) == ([*b"xyz"], 1)
    masker.last_s = SLOW_MASK_S
    assert (masker.foresee(8).token_ids, masker.validate([ord("x")])) == ([], 0)
    assert masker.advance(ord("x"))
    assert masker.foresee(8).token_ids


# --- bad grammars -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("regex", "a(b"), "unclosed group"),
        (Grammar("regex", "\ud800"), "surrogates"),
        (Grammar("lark", "start: missing"), 'unknown name: "missing"'),
        (Grammar("json_schema", '{"type": "strin"}'), "Invalid type: strin"),
        (Grammar("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}'), "minLength (5)"),
        (Grammar("json_schema", '{"type": '), "not JSON"),
        (Grammar("json_schema", "[" * 100_000), "not JSON"),
        (Grammar("json_schema", '{}}], "x": [{"lark_grammar": "start: /a/"'), "not JSON"),
        (Grammar("json_schema", "3"), "must be an object"),
        (Grammar("choice", '["\\ud800"]'), "hex escape"),
        (Grammar("choice", "[]"), "one or more strings"),
        (Grammar("choice", '["a", 1]'), "one or more strings"),
    ],
    ids=lambda value: f"{value.kind}: {value.source[:30]!r}" if isinstance(value, Grammar) else "",
)
def test_a_bad_grammar_is_refused_with_its_reason_on_one_line(
    compiler: GrammarCompiler, grammar: Grammar, reason: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        compiler.compile(grammar)
    message = caught.value.message
    assert caught.value.param == "response_format"
    assert message.startswith(f"response_format: the {grammar.kind} grammar does not compile: ")
    assert reason in message
    assert "\n" not in message
    assert len(message) < 400


def test_without_llguidance_grammars_are_an_unsupported_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedFeature, match="llguidance"):
        GrammarCompiler(VOCABULARY)
