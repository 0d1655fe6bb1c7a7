"""The compiler of a served model: every kind of tokenizer that is served can follow a grammar."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from dragoman.errors import UnsupportedFeature
from dragoman.grammar.compiler import GrammarCompiler, compiler_for
from dragoman.grammar.masker import Vocabulary
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.model_files import read_text_files
from dragoman.types import Grammar, TokenMasker
from tests.tokenizer.vocabularies import byte_fallback, byte_level, metaspace, words

pytest.importorskip("llguidance")

STYLES = {
    "byte-level": (byte_level(), ("fun", "Ġ", "ing", "Ã", "©")),
    "byte fallback": (byte_fallback(), ("▁Deep", "▁l", "é", "<0xC3>", "<0xA9>")),
    "metaspace, no fallback": (metaspace(), ("▁learn", "ing", "▁is", "🍊")),
    "words": (words(), ("deep", "learning", "fun")),
}


def tokenizer_of(file: Tokenizer, tmp_path: Path) -> HfTokenizer:
    """The tokenizer, whose answers </s> ends, or the unknown word where there is no such token."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": file.token_to_id("</s>") or 0}))
    return HfTokenizer(file, read_text_files(tmp_path))


def allowed(masker: TokenMasker, vocab_size: int) -> set[int]:
    mask = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    masker.fill_mask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize(("file", "pieces"), STYLES.values(), ids=STYLES)
def test_a_text_is_followed_in_the_tokens_of_every_kind_of_tokenizer(
    file: Tokenizer, pieces: tuple[str, ...], tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(file, tmp_path)
    token_ids = [token_id for piece in pieces if (token_id := file.token_to_id(piece)) is not None]
    assert len(token_ids) == len(pieces)
    text = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids).decode()
    masker = compiler_for(tokenizer)(Grammar("choice", json.dumps([text])))
    assert masker.validate(token_ids) == len(token_ids)
    assert all(masker.advance(token_id) for token_id in token_ids)
    assert masker.is_finished
    assert allowed(masker, tokenizer.vocab_size) == tokenizer.eos_token_ids


def test_the_end_of_a_turn_ends_a_grammars_text_too(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(byte_level(), tmp_path)
    turn_end = tokenizer.token_to_id("<|fim_suffix|>") or 0
    masker = compiler_for(tokenizer, frozenset((turn_end,)))(Grammar("choice", '["a"]'))
    assert masker.advance(tokenizer.encode("a")[0])
    assert allowed(masker, tokenizer.vocab_size) == tokenizer.eos_token_ids | {turn_end}


def test_added_tokens_that_are_not_special_are_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(byte_level(), tmp_path)
    masker = compiler_for(tokenizer)(Grammar("regex", "(.|\n)*"))
    may_follow = allowed(masker, tokenizer.vocab_size)
    assert tokenizer.token_to_id("<tool_call>") in may_follow
    assert tokenizer.token_to_id("<|fim_prefix|>") not in may_follow


@pytest.mark.parametrize("num_more", [-40, 40])
def test_logits_may_be_fewer_or_more_than_the_tokenizer_has_tokens(num_more: int, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(byte_level(), tmp_path)
    vocab_size = tokenizer.vocab_size + num_more
    masker = compiler_for(tokenizer)(Grammar("regex", "[a-c]"))
    texts = {tokenizer.token_bytes(token_id) for token_id in allowed(masker, vocab_size)}
    assert texts == {b"a", b"b", b"c"}


def test_a_vocabulary_that_the_library_panics_at_is_an_error_of_the_request() -> None:
    """A token may be so long; the panic is none of Python's usual exceptions."""
    for token_bytes in ([b"a", b"b" * 1_000_000, b"</s>"], [b"a"]):
        with pytest.raises(UnsupportedFeature, match="grammars are not possible with the model's vocabulary") as caught:
            GrammarCompiler(Vocabulary(token_bytes, frozenset({2}), 2))
        assert caught.value.param == "response_format"
