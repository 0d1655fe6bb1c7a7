"""A vocabulary of 32 tokens, each a letter but the first, which ends a sequence; for engines without a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from dragoman.engine.base import EngineTools
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.tokenizer.answer_watch import AnswerWatch, watch_answer
from dragoman.tokenizer.base import Tokenizer, TokenPieces
from dragoman.tokenizer.stop_strings import StopOnTokens
from dragoman.types import EngineRequest

VOCAB_SIZE = 32
EOS_ID = 0
LETTERS = [b"", *(bytes([ord("a") + number]) for number in range(26)), b"A", b"B", b"C", b"D", b"E"]


class _Letters:
    """As much of a tokenizer as watching for stop strings takes."""

    def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
        return LETTERS[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS_ID


_PIECES = TokenPieces(cast(Tokenizer, _Letters()))


def letter_watch(request: EngineRequest) -> AnswerWatch | None:
    """What ends the request's reasoning, or its content."""
    return watch_answer(_PIECES, request)


def text_of(token_ids: Sequence[int]) -> str:
    """What the tokens write."""
    return b"".join(LETTERS[token_id] for token_id in token_ids).decode()


def letter_tools() -> EngineTools:
    """The grammar compiler and the watcher of stop strings for letters."""
    tokens = [b"</s>", *LETTERS[1:]]
    compiler = GrammarCompiler(Vocabulary(tokens, frozenset({EOS_ID}), EOS_ID))

    return EngineTools(compiler.compile, partial(StopOnTokens, _PIECES), watch_answer=letter_watch)
