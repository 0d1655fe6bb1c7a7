"""Grammars made to take long are refused at once, or wait in a lane of their own; others compile meanwhile."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dragoman.errors import InvalidParameter, Overloaded
from dragoman.grammar import compiler as compiler_module
from dragoman.grammar import trial
from dragoman.grammar.compiler import GrammarCompiler, Lanes, llguidance_source
from dragoman.grammar.masker import Vocabulary
from dragoman.grammar.trial import TooCostly
from dragoman.types import Grammar
from tests.support.patience import PATIENCE_S

pytest.importorskip("llguidance")

EOS = 256
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b"<eos>"], frozenset({EOS}), EOS)
COMPILER = GrammarCompiler(VOCABULARY)
MOST_CPU_S = 10.0  # far beyond what any of these takes, and far below what they took


def schema(**members: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(members))


def lark(*lines: str) -> Grammar:
    return Grammar("lark", "\n".join(lines))


MULTIPLES = {"type": "integer", "multipleOf": 999_983}
REFUSED = {
    "a state for each remainder": schema(**MULTIPLES),
    "two that multiply": schema(allOf=[{"multipleOf": 9973}, {"multipleOf": 9967}]),
    "one far below": schema(properties={"a": {"items": MULTIPLES}}),
    "in a Lark grammar": lark(f"start: %json {json.dumps(MULTIPLES)}"),
    "escaped": lark('start: %json {"type": "integer", "multiple\\u004ff": 999983}'),
    "a long expression": Grammar("regex", "(a?b?c?)*" * 10_000),
    "a number of many digits": schema(type="integer", multipleOf=10**400 + 1),
    "a truth value": schema(type="integer", multipleOf=True),
    "long patterns": schema(anyOf=[{"pattern": "a?" * 1000 + str(i)} for i in range(20)]),
    "property names": schema(patternProperties={"a?" * 10_000: {}}),
    "many values": schema(enum=[f"value{i}" for i in range(100_000)]),
    "many choices": Grammar("choice", json.dumps([f"choice number {i}" for i in range(50_000)])),
    "many rules": lark("start: " + " | ".join(f"a{i}" for i in range(9000))),
    "a deep GBNF": Grammar("lark", "root ::= " + "(" * 3000 + '"a"' + ")" * 3000),
    "a long GBNF": Grammar("lark", "root ::= " + " | ".join(f'"a{i}"' for i in range(80_000))),
    "a tool's frame": Grammar("regex", "a", frame="start: @output\n" + "#" * compiler_module.MAX_SOURCE_CHARS),
    "doubled terminals": lark("start: T0", *(f"T{i}: T{i + 1} T{i + 1}" for i in range(30)), 'T30: "a"'),
}


@pytest.mark.parametrize("grammar", REFUSED.values(), ids=REFUSED)
def test_costly_grammars_are_refused_in_one_line(grammar: Grammar) -> None:
    begin = time.process_time()
    with pytest.raises(InvalidParameter) as caught:
        COMPILER.compile(grammar)
    assert time.process_time() - begin < MOST_CPU_S
    assert caught.value.param == "response_format"
    assert caught.value.message.startswith("response_format: ")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


def nested(depth: int) -> str:
    return "a" if not depth else f"({nested(depth - 1)}{{0,99}})"


TAKEN = {
    "nested repeats": Grammar("regex", nested(8)),
    "a large repeat": Grammar("regex", "[a-z]{1,1000000000}"),
    "an automaton with 2^25 states": Grammar("regex", "(a|b)*a(a|b){25}"),
    "rules that double": lark("start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)), 'r40: "a"'),
    "an ambiguous rule": lark("start: s", 's: s s s | s s | "a"'),
    "a recursive schema": schema(**{"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}),
    "many items": schema(type="array", items={"type": "integer"}, minItems=1_000_000),
    "cents": schema(type="number", multipleOf=0.01),
    "a million": schema(type="integer", multipleOf=1_000_000),
    "what many schemas have": schema(allOf=[{"multipleOf": number} for number in (5, 0.5, 60, 3600)]),
    "a property of that name": schema(type="object", properties={"multipleOf": {"type": "integer"}}),
    "a value of that name": schema(enum=[{"multipleOf": 21_001}, {"multipleOf": True}]),
    "a thousand values": schema(enum=[f"value{i}" for i in range(1000)]),
}


@pytest.mark.parametrize("grammar", TAKEN.values(), ids=TAKEN)
def test_grammars_that_only_look_costly_are_accepted(grammar: Grammar) -> None:
    begin = time.process_time()
    masker = COMPILER.compile(grammar)
    for _ in range(20):
        if masker.is_finished:
            break
        assert any(masker.fork().advance(token_id) for token_id in range(257))
        for token_id in range(257):
            if masker.advance(token_id):
                break
    assert time.process_time() - begin < MOST_CPU_S


def test_a_large_grammar_waits_for_another_and_a_small_one_does_not() -> None:
    lanes, large, small = Lanes(), Grammar("regex", "a" * 5000), Grammar("regex", "a")
    order: list[str] = []
    with lanes.enter(large):
        waiting = threading.Thread(target=lambda: _enter(lanes, large, order), daemon=True)
        waiting.start()
        _enter(lanes, small, order)
        order.append("first")
    waiting.join(PATIENCE_S)
    assert order == ["regex 1", "first", "regex 5000"]


def _enter(lanes: Lanes, grammar: Grammar, order: list[str]) -> None:
    with lanes.enter(grammar):
        order.append(f"{grammar.kind} {len(grammar.source)}")


def test_no_more_large_grammars_wait_than_threads_can_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_WAITING", 0)
    lanes, large = Lanes(), Grammar("regex", "a" * 5000)
    with lanes.enter(large), pytest.raises(Overloaded, match="1 large grammars are being compiled"), lanes.enter(large):
        pass
    with lanes.enter(large):  # the place is free again
        pass


def test_the_cache_of_grammars_is_bounded_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Grammar] = []

    def note(grammar: Grammar) -> str:
        built.append(grammar)
        return llguidance_source(grammar)

    monkeypatch.setattr(compiler_module, "llguidance_source", note)
    compiler = GrammarCompiler(VOCABULARY)
    grammars = [schema(enum=[f"{i}-{j}-{'x' * 200}" for j in range(1000)]) for i in range(8)]
    for grammar in [*grammars, grammars[-1], grammars[0]]:
        compiler.compile(grammar)
    assert built == [*grammars, grammars[0]]


def test_callers_with_the_same_large_grammar_take_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Grammar] = []
    may_go = threading.Event()

    def note(grammar: Grammar) -> str:
        built.append(grammar)
        assert may_go.wait(PATIENCE_S)
        return llguidance_source(grammar)

    monkeypatch.setattr(compiler_module, "llguidance_source", note)
    compiler = GrammarCompiler(VOCABULARY)
    large = schema(enum=[f"value{i}" for i in range(1000)])
    with ThreadPoolExecutor(3 * compiler_module.MAX_WAITING) as pool:
        compiled = [pool.submit(compiler.compile, large) for _ in range(3 * compiler_module.MAX_WAITING)]
        may_go.set()
        for future in compiled:
            future.result(PATIENCE_S)
    assert built == [large]


def test_a_refused_grammar_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding out what a grammar costs takes as long as it may cost: who sends it over and over takes nobody's time."""
    tried: list[str] = []
    may_go = threading.Event()

    def fail(source: str) -> None:
        tried.append(source)
        assert may_go.wait(PATIENCE_S)
        raise TooCostly

    monkeypatch.setattr(compiler_module, "check_cost", fail)
    compiler = GrammarCompiler(VOCABULARY)
    with ThreadPoolExecutor(16) as pool:
        told = [pool.submit(compiler.compile, lark('start: "a"')) for _ in range(40)]
        may_go.set()
        errors = {id(future.exception(PATIENCE_S)): str(future.exception()) for future in told}
    assert (len(errors), len(tried)) == (40, 1)
    assert set(errors.values()) == {
        "response_format: the grammar takes more than 5 s or 512 MiB to compile, write a simpler one"
    }


def test_a_grammar_that_could_not_be_tried_in_time_can_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MAX_WAIT_S", 0.0)
    compiler = GrammarCompiler(VOCABULARY)
    with pytest.raises(Overloaded, match="the trial of the grammar took too long"):
        compiler.compile(lark('start: "a"'))
    monkeypatch.undo()
    compiler.compile(lark('start: "a"'))


def test_each_caller_gets_the_error_of_the_same_grammar() -> None:
    wrong = Grammar("regex", "(" * 5000)
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(COMPILER.compile, wrong) for _ in range(3)]:
            with pytest.raises(InvalidParameter):
                future.result(PATIENCE_S)
