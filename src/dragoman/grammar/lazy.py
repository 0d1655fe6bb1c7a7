"""The grammar compiler of a served model. Called by the service and its engine, on any thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import Grammar, TokenMasker


def compiler_for(
    tokenizer: HfTokenizer, turn_end_ids: frozenset[int] = frozenset(), max_mask_s: float = float("inf")
) -> Callable[[Grammar], TokenMasker]:
    """Compiles grammars; builds the vocabulary's tables for the first one, since most servers never get any.

    The model may have more or fewer logits than the tokenizer has tokens. `turn_end_ids` end an output like the
    tokenizer's end-of-sequence tokens. Raises: InvalidParameter, UnsupportedFeature.
    """

    @cache  # two threads may make two compilers; one is dropped, which is harmless
    def compiler() -> GrammarCompiler:
        return GrammarCompiler(_vocabulary(tokenizer, turn_end_ids), max_mask_s)

    def compiled(grammar: Grammar) -> TokenMasker:
        return compiler().compile(grammar)

    return compiled


def _vocabulary(tokenizer: HfTokenizer, turn_end_ids: frozenset[int]) -> Vocabulary:
    ids, eos_ids, own = range(tokenizer.vocab_size), sorted(tokenizer.eos_token_ids), tokenizer.eos_token_id
    return Vocabulary(
        token_bytes=[tokenizer.token_bytes(token_id) for token_id in ids],
        special_ids=frozenset(token_id for token_id in ids if tokenizer.is_special(token_id)),
        eos_id=own if own in eos_ids and own is not None else (eos_ids or [0])[0],
        extra_eos_ids=frozenset(eos_ids) | turn_end_ids,
        encode=tokenizer.encode_continuation,
    )
