"""The grammar compiler of a served model. Called by the service and its engine, on any thread."""

from __future__ import annotations

from dragoman.grammar.compiler import GrammarCompiler, Vocabulary
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import Grammar, TokenMasker


class LazyGrammarCompiler:
    """Compiles grammars; builds the vocabulary's tables for the first one, since most servers never get any.

    The model may have more or fewer logits than the tokenizer has tokens. `turn_end_ids` end an output like the
    tokenizer's end-of-sequence tokens. Raises: InvalidParameter, UnsupportedFeature.
    """

    def __init__(
        self,
        tokenizer: HfTokenizer,
        turn_end_ids: frozenset[int] = frozenset(),
        max_mask_s: float = float("inf"),
    ) -> None:
        self._tokenizer = tokenizer
        self._max_mask_s = max_mask_s
        self._turn_end_ids = turn_end_ids
        self._compiler: GrammarCompiler | None = None

    def __call__(self, grammar: Grammar) -> TokenMasker:
        if self._compiler is None:  # two threads may make two compilers; one is dropped, which is harmless
            self._compiler = GrammarCompiler(self._vocabulary(), self._max_mask_s)
        return self._compiler.compile(grammar)

    def _vocabulary(self) -> Vocabulary:
        tokenizer, ids = self._tokenizer, range(self._tokenizer.vocab_size)
        eos_ids = sorted(tokenizer.eos_token_ids)
        own = tokenizer.eos_token_id
        eos_id = own if own in tokenizer.eos_token_ids and own is not None else (eos_ids or [0])[0]
        return Vocabulary(
            token_bytes=[tokenizer.token_bytes(token_id) for token_id in ids],
            special_ids=frozenset(token_id for token_id in ids if tokenizer.is_special(token_id)),
            eos_id=eos_id,
            extra_eos_ids=frozenset(eos_ids) | self._turn_end_ids,
            encode=tokenizer.encode_continuation,
        )
