"""Finds the tokens that write the beginning of a text or all of it: where DRY sees a repetition end. Used on any thread."""

from __future__ import annotations

import threading
from collections import defaultdict
from functools import cached_property

from dragoman.tokenizer.base import Tokenizer
from dragoman.types import SequenceBreaker

_MAX_KEPT = 16  # sets of texts; one takes up to some 100 KB
Breakers = tuple[SequenceBreaker, ...]


class BreakerFinder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._found: dict[tuple[str, ...], Breakers] = {(): ()}

    def is_quick(self, texts: tuple[str, ...]) -> bool:
        """True if the result is kept; otherwise `find` searches the vocabulary, which takes some 50 ms."""
        return texts in self._found

    def find(self, texts: tuple[str, ...]) -> Breakers:
        found = self._found.get(texts)
        if found is None:
            with self._lock:
                found = self._found.get(texts) or tuple(breaker for text in texts for breaker in self._search(text))
                if len(self._found) > _MAX_KEPT:
                    self._found = {(): ()}
                self._found[texts] = found
        return found

    def _search(self, text: str) -> Breakers:
        wanted = text.encode()
        whole = tuple(token_id for token_id, token in enumerate(self._tokens) if wanted in token)
        found = [SequenceBreaker(whole)] if whole else []
        for num_chars in range(1, len(text)):
            begin = text[:num_chars].encode()
            heads = tuple(
                token_id
                for token_id in self._by_last_byte[begin[-1]]
                if self._tokens[token_id].endswith(begin) and wanted not in self._tokens[token_id]
            )
            if heads:
                tail = tuple(self._tokenizer.encode_continuation(text[num_chars:]))
                found.append(SequenceBreaker(heads, tail))
        return tuple(found)

    @cached_property
    def _tokens(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token_id) for token_id in range(self._tokenizer.vocab_size)]

    @cached_property
    def _by_last_byte(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for token_id, token in enumerate(self._tokens):
            if token:
                found[token[-1]].append(token_id)
        return found
