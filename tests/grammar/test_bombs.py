"""What hostile grammars take of memory, compiled in a process of their own: less than the pages say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidParameter, Overloaded
from dragoman.grammar import compiler as compiler_module
from dragoman.grammar import trial
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.types import Grammar
from tests.grammar.bombs import BOMBS, TOO_COSTLY, lark, vocabulary
from tests.support.tiers import width

pytest.importorskip("llguidance")

ROOT = Path(__file__).parents[2]
MOST_MIB = trial.MAX_BYTES >> 20  # of what compiling adds; docs/limits.md says so
PATIENCE_S = 120
CHEAP = "empty branches"  # the least work of those that are too costly


def blow_up(name: str) -> Any:
    """What compiling the bomb came to, in a process of its own."""
    command = [sys.executable, "-m", "tests.grammar.bombs", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", width(list(BOMBS), [CHEAP, "references that double"]))
def test_compiling_a_bomb_takes_a_bounded_amount_of_memory(name: str) -> None:
    result = blow_up(name)
    assert result["own"] < MOST_MIB
    assert result["trial"] < MOST_MIB + 100, "the bound counts from what the process has at its start"
    if name in TOO_COSTLY:
        assert "takes more than 5 s or 512 MiB to compile" in result["answer"]


def test_a_grammar_that_takes_too_much_is_refused_in_one_line() -> None:
    with pytest.raises(InvalidParameter) as caught:
        GrammarCompiler(vocabulary()).compile(TOO_COSTLY[CHEAP])
    assert caught.value.message == (
        "response_format: the grammar takes more than 5 s or 512 MiB to compile, write a simpler one"
    )
    assert caught.value.param == "response_format"


def test_a_grammar_that_does_not_compile_has_its_reason() -> None:
    with pytest.raises(InvalidParameter, match="the lark grammar does not compile"):
        GrammarCompiler(vocabulary()).compile(lark("start: nothing"))


def test_without_a_process_the_client_can_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(compiler_module, "check_cost", fail)
    with pytest.raises(Overloaded, match="Resource temporarily unavailable"):
        GrammarCompiler(vocabulary()).compile(lark('start: "a"'))


def test_grammars_that_cannot_be_costly_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(compiler_module, "check_cost", tried.append)
    compiler = GrammarCompiler(vocabulary())
    plain = (
        Grammar("json_object", ""),
        Grammar("choice", '["a", "b"]'),
        Grammar("regex", r"\d{4}-\d{2}-\d{2}( \d+)?"),
        Grammar("json_schema", '{"type": "string", "pattern": "^[a-z]+@[a-z]+(\\\\.[a-z]{2,})+$", "minLength": 6}'),
    )
    for grammar in plain:
        compiler.compile(grammar)
    assert not tried
    compiler.compile(lark('start: "a"'))
    assert len(tried) == 1
