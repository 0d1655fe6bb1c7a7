"""Which tokens stand for a sequence breaker, on a real vocabulary, against its texts."""

from __future__ import annotations

from dragoman.config.bundled import BUNDLED, DEMO_NAME
from dragoman.tokenizer.breakers import BreakerFinder
from dragoman.tokenizer.hf_tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(BUNDLED[DEMO_NAME])
TEXTS = [TOKENIZER.token_bytes(token_id) for token_id in range(TOKENIZER.vocab_size)]


def test_every_token_that_holds_the_text_is_a_breaker() -> None:
    for text in ("\n", ".", "the", "ing"):
        whole = next(one for one in BreakerFinder(TOKENIZER).find((text,)) if not one.tail)
        assert set(whole.heads) == {n for n, own in enumerate(TEXTS) if text.encode() in own}


def test_a_text_is_found_wherever_the_tokens_of_a_longer_one_write_it() -> None:
    breaker = "ing.\nThe"
    found = BreakerFinder(TOKENIZER).find((breaker,))
    for written in ("Learning.\nThe end", "ing.\nThe", "I was walking.\nThe"):
        tokens = TOKENIZER.encode(written, add_special_tokens=False)
        assert any(
            tokens[n] in one.heads and tuple(tokens[n + 1 : n + 1 + len(one.tail)]) == one.tail
            for n in range(len(tokens))
            for one in found
        ), written


def test_the_vocabulary_is_searched_once_for_the_same_texts() -> None:
    finder = BreakerFinder(TOKENIZER)
    assert not finder.is_quick(("x", "yz"))
    first = finder.find(("x", "yz"))
    assert finder.is_quick(("x", "yz"))
    assert finder.find(("x", "yz")) is first
    for number in range(40):
        finder.find((str(number),))
    assert finder.find(("x", "yz")) == first
