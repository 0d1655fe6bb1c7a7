"""Answers of five kinds of text, token by token: those of the model that copies follow from its rule, others are computed.

Does: make prompts, answers and the start states of their grammars. Does not: guess, or count. Used by `__main__`.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speculation.copier_texts import copier_task, mind, write_tokenizer
from benchmarks.speculation.demo_texts import text_task
from dragoman.compose import engine_tools
from dragoman.config.resolve import demo_model_dir
from dragoman.llm import LLM
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import Grammar, SamplingParams, TokenMasker

COPIER, DEMO = "copier", "demo"


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt, and what came. `task`: its number. `masker`: the start state of its grammar."""

    task: int
    prompt: Sequence[int]
    token_ids: array[int]
    masker: TokenMasker | None


Answers = Callable[[str, int], Iterator[Answer]]
"""Those of a kind to so many tasks."""


@contextmanager
def answers_of(model: str) -> Iterator[Answers]:
    """Of the model that copies, or of the bundled one, which is loaded meanwhile."""
    if model == DEMO:
        with LLM(dtype="f32", speculation="off") as llm:
            compile_grammar = engine_tools(load_tokenizer(demo_model_dir())).compile_grammar
            yield lambda kind, num_tasks: _demo_answers(llm, compile_grammar, kind, num_tasks)
        return
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory))
        compile_grammar = engine_tools(load_tokenizer(Path(directory))).compile_grammar
        yield lambda kind, num_tasks: _copier_answers(compile_grammar, kind, num_tasks)


_Compiler = Callable[[Grammar], TokenMasker]


def _copier_answers(compile_grammar: _Compiler, kind: str, num_tasks: int) -> Iterator[Answer]:
    for number in range(num_tasks):
        for turn in copier_task(kind, number).turns:
            grammar = _grammar(turn.grammar)
            token_ids = array("q", mind().answer(turn.ids, turn.max_tokens))
            yield Answer(number, turn.ids, token_ids, compile_grammar(grammar) if grammar else None)


def _demo_answers(llm: LLM, compile_grammar: _Compiler, kind: str, num_tasks: int) -> Iterator[Answer]:
    for number in range(num_tasks):
        text = ""
        for turn in text_task(kind, number).turns:
            text += turn.text
            grammar = _grammar(turn.grammar)
            sampling = SamplingParams(temperature=0.0, grammar=grammar)
            (result,) = llm.generate(text, sampling, max_tokens=turn.max_tokens)
            (sequence,) = result.sequences
            text += sequence.text
            token_ids = array("q", [token.id for token in sequence.tokens])
            masker = compile_grammar(grammar) if grammar else None
            yield Answer(number, result.prompt.token_ids, token_ids, masker)


def _grammar(asked: Mapping[str, Any]) -> Grammar | None:
    """That of a request's body."""
    if "guided_json" in asked:
        return Grammar("json_schema", json.dumps(asked["guided_json"]))
    return Grammar("regex", asked["guided_regex"]) if asked else None
