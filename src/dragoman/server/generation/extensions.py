"""The abilities of a service beyond plain text. The composition root sets them; service and preparer read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.server.generation.pictures import PicturePrompts
from dragoman.server.generation.text_until_stop import ParserFactory
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
    """Abilities of a service beyond plain text. Prompts are prepared on several threads, which call all of these.

    `make_parser` None = all text is the answer; it sees the special tokens in `marker_ids`. `turn_end_ids` end a chat's
    answer besides the tokenizer's end-of-sequence tokens. `draw_seed` serves requests that name no seed. `plain` keeps
    control tokens out of clients' texts, None = they are tokenised as such.
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
