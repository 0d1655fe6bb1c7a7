"""A tokenizer that was let go leaves nothing with the threads that used it."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.heap import CAN_TELL, live_bytes
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.model_files import TextFiles

pytestmark = pytest.mark.skipif(not CAN_TELL, reason="live memory is counted as glibc tells it")

NO_FACTS = TextFiles({}, (), (), None, {}, None)
DIGITS = "0123456789"
VOCABULARY = {
    piece: number for number, piece in enumerate((*DIGITS, *(f"{first}{last}" for first in DIGITS for last in DIGITS)))
}
MERGES = [(first, last) for first in DIGITS for last in DIGITS]
NUM_ROUNDS = 20
WORDS = " ".join(str(number) for number in range(10_000, 14_000))


def tokenizer() -> HfTokenizer:
    file = Tokenizer(models.BPE(VOCABULARY, MERGES))
    file.pre_tokenizer = pre_tokenizers.Whitespace()
    return HfTokenizer(file, NO_FACTS)


def test_tokenizers_that_come_and_go_leave_no_words_behind() -> None:
    assert len(tokenizer().encode(WORDS)) == 3 * 4_000
    tokenizer().encode_continuation(WORDS)
    begin = live_bytes()
    for _ in range(NUM_ROUNDS):
        here = tokenizer()
        here.encode(WORDS)
        here.encode_continuation(WORDS)
        del here
    assert live_bytes() - begin < NUM_ROUNDS * len(
        WORDS
    )  # a byte per character and round is less than keeping the words
