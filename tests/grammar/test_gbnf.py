"""GBNF: what llama.cpp's notation says is followed, and what is wrong in it is told with its line."""

from __future__ import annotations

import time

import pytest

from dragoman.errors import InvalidParameter
from dragoman.grammar.compiler import GrammarCompiler, is_gbnf
from dragoman.grammar.masker import Vocabulary
from dragoman.types import Grammar, TokenMasker

pytest.importorskip("llguidance")

EOS = 256
COMPILER = GrammarCompiler(Vocabulary([*(bytes([byte]) for byte in range(256)), b"<eos>"], frozenset({EOS}), EOS))

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws ( string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
FOLLOWED: dict[str, tuple[str, list[str], list[str]]] = {
    "JSON": (JSON, ['{"a": [1, -2.5e3, "x\\n\\u00e9"], "b": null}'], ["{a}", '{"a": "\n"}']),
    "a rule named start": ('root ::= start\nstart ::= "a" | "b" "c"', ["a", "bc"], ["b"]),
    "names that look alike": ('root ::= fB f-b F_B\nfB ::= "a"\nf-b ::= "b"\nF_B ::= "c"', ["abc"], ["aaa"]),
    "escapes": (r'root ::= "\u00e9\U0001F600\x41\t\"\\" [\u00e0-\u00ef]', ['é\U0001f600A\t"\\é'], ["é"]),
    "signs in classes": (r'root ::= [a-z-] [-x] [+-] [&~&~] [^\]a] [\[\]] ["/]', ["--+&b[/"], ["A-+&b[/", "--+&][/"]),
    "signs that an escape stands for": (r"root ::= [a\x2dz] [\x5e]", ["-^", "a^"], ["b^"]),
    "lines and comments": ('root ::= "a" |\n "b" | ("c"\n | "d")+ # x\n# y\nx ::= "z"', ["a", "b", "cd"], ["ab", "z"]),
    "nothing": ('root ::= a b?\na ::= ""\nb ::= "x" |', ["", "x"], ["xx"]),
    "any character": ("root ::= . [^]", ["\né"], ["a"]),
    "repetitions": ('root ::= "a"{2} "b"{1,} "c"{ 0 , 1 }', ["aab", "aabbc"], ["ab", "aabcc"]),
    "rules that lead around": ('root ::= "(" root ")" | letter\nletter ::= [x-y]', ["((x))"], ["(x"]),
    "a text that looks like a rule": ('root ::= "foo ::= bar"', ["foo ::= bar"], ["foo"]),
}
WRONG = {
    'foo ::= "a"': "it has no rule named root",
    'root ::= "a"\n  | missing': "line 2: there is no rule named 'missing'",
    'root ::= "a"\nroot ::= "b"': "line 2: there are two rules named 'root'",
    'root ::= "\\': "line 1: a text that does not end '\"\\\\'",
    'root ::= "a"\nb ::= [a': "line 2: a class of characters that does not end '[a'",
    r'root ::= "\u00"': r"line 1: there is no escape '\\u'",
    r'root ::= "\q"': r"line 1: there is no escape '\\q'",
    r'root ::= "\ud800"': r"line 1: there is no character '\\ud800'",
    r'root ::= "\UFFFFFFFF"': r"line 1: there is no character '\\UFFFFFFFF'",
    "root ::= []": "line 1: an empty class of characters",
    "root ::= (": "line 1: an unclosed bracket at the end of a rule",
    "root ::= )": "line 1: a closing bracket without an opening one",
    'root ::= * "a"': "line 1: * follows nothing to repeat",
    'root ::= "a" ::=': "line 1: it cannot go on as '::='",
    'root ::= "a" <tool>': "line 1: it cannot go on as '<tool>'",
    '"a"\nroot ::= "b"': "line 1: a rule must come first, as name ::= ..., got '\"a\"'",
    "root ::= root": "it never comes to an end: a rule or a reference leads back to itself",
    "root ::= [z-a]": "invalid character class range",
    'root ::= "a"{3,1}': "range end must be >= start",
}


def is_taken(masker: TokenMasker, text: str) -> bool:
    return all(masker.advance(byte) for byte in text.encode()) and masker.advance(EOS)


def test_gbnf_grammars_are_followed() -> None:
    for name, (source, good, bad) in FOLLOWED.items():
        masker = COMPILER.compile(Grammar("lark", source))
        assert [text for text in good if not is_taken(masker.fork(), text)] == [], name
        assert [text for text in bad if is_taken(masker.fork(), text)] == [], name


def test_a_mistake_is_reported_with_its_line_and_the_parameter() -> None:
    for source, problem in WRONG.items():
        with pytest.raises(InvalidParameter) as caught:
            COMPILER.compile(Grammar("lark", source, param="guided_grammar"))
        assert caught.value.message.startswith("guided_grammar: the GBNF grammar does not compile: ")
        assert problem in caught.value.message
        assert caught.value.param == "guided_grammar"


def test_any_error_of_the_compiler_is_the_requests_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what nobody foresaw: a client's text must not become an internal error."""

    def fail(source: str) -> str:
        raise IndexError("string index out of range")

    monkeypatch.setattr("dragoman.grammar.compiler.gbnf_to_lark", fail)
    with pytest.raises(InvalidParameter, match="does not compile: string index out of range"):
        COMPILER.compile(Grammar("lark", 'root ::= "unforeseen"'))


def test_blanks_of_any_number_are_read_at_once() -> None:
    begun = time.process_time()
    for blanks in ("\n" * 32_768, "\n " * 16_384, " " * 32_768):
        assert not is_gbnf(Grammar("lark", blanks))
        assert is_gbnf(Grammar("lark", f'{blanks}\t root {blanks} ::= "a"'))
    assert time.process_time() - begun < 2
