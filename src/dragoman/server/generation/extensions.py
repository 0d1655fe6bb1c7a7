"""The abilities of a service beyond plain text. The composition root sets them; service and preparer read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.server.generation.pictures import PicturePrompts
from dragoman.server.generation.sequence_text import ParserFactory
from dragoman.server.generation.thinking import FindThought
from dragoman.tokenizer.plain_content import PlainContent
from dragoman.types import GenerationRequest, Grammar, TokenMasker, Unsearched

GrammarCompiler = Callable[[Grammar], TokenMasker]
"""Raises InvalidRequest for a grammar that does not compile; keeps those that do, for the engine."""

Constrain = Callable[[GenerationRequest, str], Grammar | None]
"""(request, prompt text) -> the grammar for its answer: the client's own, or one that also covers reasoning and calls."""

FindUnsearched = Callable[[GenerationRequest, str], Unsearched | None]
"""(request, prompt text) -> the parts where its stop strings do not count; None if only a parser can tell."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """Abilities of a service beyond plain text. `compile_grammar`: finds out which grammars its engine can follow.

    `make_parser` splits reasoning and tool calls from the text, None = all of it is the answer; it sees the special tokens
    in `marker_ids`. `constrain` makes room for both in a request's grammar. `turn_end_ids` end a chat's answer besides the
    tokenizer's end-of-sequence tokens. `draw_seed` gives the seed of requests that name none. `pictures`: of a model that
    takes them. `plain`: keeps control tokens out of clients' texts, None = they are tokenised as such.
    `unsearched`: the parts of an answer that are not content, so far as an engine can tell. `find_thought`: the marks of
    its reasoning, None = it has none. Prompts are prepared on several threads, which call all of these.
    """

    compile_grammar: GrammarCompiler | None = None
    make_parser: ParserFactory | None = None
    marker_ids: frozenset[int] = frozenset()
    constrain: Constrain | None = None
    turn_end_ids: frozenset[int] = frozenset()
    draw_seed: Callable[[], int] | None = None
    pictures: PicturePrompts | None = None
    plain: PlainContent | None = None
    unsearched: FindUnsearched | None = None
    find_thought: FindThought | None = None
