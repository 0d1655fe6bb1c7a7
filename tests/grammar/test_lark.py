"""Grammars as one text: it compiles, and allows what the grammar itself allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.grammar.compiler import lark_of
from dragoman.types import Grammar

llguidance = pytest.importorskip("llguidance")

CASES: dict[str, tuple[Grammar, list[str], list[str]]] = {
    "regex": (Grammar("regex", "a/[bc]{2}"), ["a/bc"], ["a/b", "abc"]),
    "choice": (Grammar("choice", '["yes", "no}"]'), ["yes", "no}"], ["no", "maybe"]),
    "schema": (
        Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
        ['{"a": 1}'],
        ['{"a":  1}', '{"a": "b"}', "{}"],
    ),
    "object": (Grammar("json_object"), ['{"x": [1, 2]}', "{}"], ["[]"]),
    "lark": (Grammar("lark", 'start: "a" rest\nrest: /b+/ "}"'), ["abb}"], ["a}"]),
    "gbnf": (Grammar("lark", 'root ::= "a" [0-9]'), ["a7"], ["ab"]),
    "frame": (Grammar("regex", "x{2}", 'start: "<" (@output | "none") ">"'), ["<xx>", "<none>"], ["xx", "<x>"]),
    "framed lark": (Grammar("lark", 'start: "a" | part\npart: "b"', 'start: part @output\npart: "p"'), ["pa", "pb"], ["a"]),
}  # fmt: skip


class _Letters:
    """A tokenizer of 256 bytes, an end, and one of a turn."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>", b"<turn>"]
    special_token_ids = (256, 257)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def accepts(matcher: Any, text: str) -> bool:
    matcher.reset()
    return bool(matcher.consume_tokens(list(text.encode()))) and matcher.is_accepting()


@pytest.mark.parametrize("name", CASES)
def test_one_text_allows_what_the_grammar_allows(name: str) -> None:
    grammar, good, bad = CASES[name]
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Letters()))
    source = llguidance.grammar_from("grammar", lark_of(grammar))  # as vLLM takes it
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    assert [text for text in good if not accepts(matcher, text)] == []
    assert [text for text in bad if accepts(matcher, text)] == []


@pytest.mark.parametrize("name", CASES)
def test_several_tokens_can_end_the_text(name: str) -> None:
    grammar, (good, *_), _ = CASES[name]
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Letters()))
    source = llguidance.grammar_from("grammar", lark_of(grammar, {256, 257}))
    for end in (256, 257):
        assert not llguidance.LLMatcher(tokenizer, source, log_level=0).consume_tokens([end]), "nothing is written yet"
        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
        assert matcher.consume_tokens([*good.encode(), end])
        assert matcher.is_stopped()


def test_no_token_is_forced() -> None:
    assert json.loads(lark_of(Grammar("regex", "a")).splitlines()[0].removeprefix("%llguidance ")) == {
        "no_forcing": True
    }
