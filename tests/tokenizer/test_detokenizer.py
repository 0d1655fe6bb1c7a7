"""Text token by token: never a split character, always the whole text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizerFile

from dragoman.tokenizer.base import TokenPieces
from dragoman.tokenizer.detokenizer import IncrementalDetokenizer
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.model_files import TextFiles
from tests.support.byte_tokenizer import EOS_ID, ByteTokenizer
from tests.support.tables import table
from tests.support.tiers import examples
from tests.tokenizer import vocabularies

NO_FACTS = TextFiles({}, (), (), None, {}, None)
STYLES = {
    "byte_level": vocabularies.byte_level,
    "llama2": vocabularies.byte_fallback,
    "gemma": lambda: vocabularies.byte_fallback(strips=False),
    "metaspace": vocabularies.metaspace,
    "bare_metaspace": lambda: vocabularies.metaspace("never"),
    "words": vocabularies.words,
}
TEXTS = ("Deep learning is fun.", "naïve café 深度 🍊🍋", "  two  spaces\n\ttabs ", "", "<|fim_prefix|>é</s>")


@cache
def library(style: str) -> TokenizerFile:
    """The style's tokenizer as the library has it: the reference for whole decodes."""
    return STYLES[style]()


@cache
def ours(style: str) -> HfTokenizer:
    """The style's tokenizer as the server has it."""
    return HfTokenizer(STYLES[style](), NO_FACTS)


def streamed(style: str, token_ids: Sequence[int], *, at_start: bool = True, skips: bool = True) -> list[str]:
    """The text of each token; what `flush` gives is added to the last."""
    detokenizer = IncrementalDetokenizer(
        TokenPieces(ours(style)), skip_special_tokens=skips, spaces_between_special_tokens=False, at_start=at_start
    )
    texts = [detokenizer.push(token_id) for token_id in token_ids]
    return [*texts[:-1], texts[-1] + detokenizer.flush()] if texts else []


def spelled_out(style: str, token_ids: Sequence[int]) -> bytes:
    """The bytes of SentencePiece-style tokens, by the letter of their names."""
    all_names = [library(style).id_to_token(token_id) for token_id in token_ids]
    names = [name for name in all_names if name is not None and name not in ("<unk>", *vocabularies.SPECIAL_TOKENS)]
    return b"".join(
        bytes([int(name[3:5], 16)]) if re.fullmatch("<0x..>", name) else name.replace("▁", " ").encode()
        for name in names
    )


@given(ids=st.lists(st.integers(0, 329), max_size=30), skips=st.booleans())
def test_byte_level_tokens_stream_to_what_the_library_decodes_whole(ids: list[int], skips: bool) -> None:
    texts = streamed("byte_level", ids, skips=skips)
    assert "".join(texts) == library("byte_level").decode(ids, skip_special_tokens=skips)


@given(text=st.text(max_size=40), cut=st.integers(0, 20), skips=st.booleans())
def test_byte_level_text_survives_encoding_and_streaming(text: str, cut: int, skips: bool) -> None:
    ids = library("byte_level").encode(text, add_special_tokens=False).ids
    if not any(token in text for token in vocabularies.SPECIAL_TOKENS):
        assert "".join(streamed("byte_level", ids, skips=skips)) == text
    tail = ids[cut:]  # begins anywhere, also inside a character
    assert "".join(streamed("byte_level", tail, skips=skips)) == library("byte_level").decode(
        tail, skip_special_tokens=skips
    )


@table("style", ["llama2", "gemma", "metaspace", "bare_metaspace", "words"])
@given(data=st.data(), skips=st.booleans())
def test_any_tokens_of_other_styles_stream_to_what_the_library_decodes_whole(
    style: str, data: st.DataObject, skips: bool
) -> None:
    file = library(style)
    is_text = [not re.fullmatch("<0x[89A-F].>", file.id_to_token(i) or "") for i in range(file.get_vocab_size())]
    valid = st.sampled_from([[i] for i, ok in enumerate(is_text) if ok] + _characters(file))
    ids = [token_id for group in data.draw(st.lists(valid, max_size=12)) for token_id in group]
    assert "".join(streamed(style, ids, skips=skips)) == file.decode(ids, skip_special_tokens=skips)


@given(ids=st.lists(st.integers(0, 280), max_size=20))
def test_bad_bytes_of_byte_fallback_spoil_no_character_beside_them(ids: list[int]) -> None:
    """The library gives up every byte of a run with a bad one; we show the characters that are complete."""
    text = "".join(streamed("gemma", ids))
    assert text == spelled_out("gemma", ids).decode("utf-8", "replace")
    reference = library("gemma").decode(ids)
    assert text == reference or "\ufffd" in reference


@table("style", STYLES)
@table("text", TEXTS)
def test_decode_agrees_with_the_library(style: str, text: str) -> None:
    ids = library(style).encode(text, add_special_tokens=False).ids
    for skips in (True, False):
        assert ours(style).decode(ids, skip_special_tokens=skips) == library(style).decode(
            ids, skip_special_tokens=skips
        )


@given(text=st.text(max_size=30))
def test_a_character_comes_whole_with_the_token_that_completes_it(text: str) -> None:
    detokenizer = IncrementalDetokenizer(TokenPieces(ByteTokenizer()))
    tokens = [detokenizer.push(byte) for byte in text.encode("utf-8", "replace")]
    assert [piece for piece in tokens if piece] == list(text.encode("utf-8", "replace").decode())
    assert detokenizer.flush() == ""


@given(head=st.binary(max_size=20))
def test_bytes_that_never_became_a_character_end_as_one_replacement_character(head: bytes) -> None:
    """Also when complete text stands before them."""
    detokenizer = IncrementalDetokenizer(TokenPieces(ByteTokenizer()))
    shown = "".join(detokenizer.push(byte) for byte in head + "🍊".encode()[:3])
    assert shown + detokenizer.flush() == (head + "🍊".encode()[:3]).decode("utf-8", "replace")
    assert detokenizer.flush() == ""


def test_the_first_space_is_part_of_a_completion_and_not_of_a_text() -> None:
    deep = ours("llama2").token_to_id("▁Deep")
    assert deep is not None
    assert streamed("llama2", [deep, deep], at_start=True) == ["Deep", " Deep"]
    assert streamed("llama2", [deep, deep], at_start=False) == [" Deep", " Deep"]
    assert streamed("gemma", [deep, deep], at_start=True) == [" Deep", " Deep"]


def test_special_tokens_are_hidden_within_a_character_without_breaking_it() -> None:
    orange = list("🍊".encode())
    detokenizer = IncrementalDetokenizer(TokenPieces(ByteTokenizer()))
    assert [detokenizer.push(token_id) for token_id in [*orange[:2], EOS_ID, *orange[2:]]] == ["", "", "", "", "🍊"]


@table(
    ("skips", "spaces", "expected"),
    [(True, True, "ab"), (True, False, "ab"), (False, True, "a</s> </s>b"), (False, False, "a</s></s>b")],
)
def test_special_tokens_are_shown_with_spaces_between_them_as_asked(skips: bool, spaces: bool, expected: str) -> None:
    detokenizer = IncrementalDetokenizer(
        TokenPieces(ByteTokenizer()), skip_special_tokens=skips, spaces_between_special_tokens=spaces
    )
    assert "".join(detokenizer.push(token_id) for token_id in (ord("a"), EOS_ID, EOS_ID, ord("b"))) == expected


@settings(max_examples=examples(25))
@given(ids=st.lists(st.integers(0, 5000), max_size=10))
def test_ids_without_a_token_add_nothing(ids: list[int]) -> None:
    """Models have more rows than their tokenizer has tokens, and nothing keeps them from being generated."""
    known = [token_id for token_id in ids if token_id < ours("byte_level").vocab_size]
    assert "".join(streamed("byte_level", ids)) == "".join(streamed("byte_level", known))


def _characters(file: TokenizerFile) -> list[list[int]]:
    """Characters spelled in byte tokens, for the styles that have these."""
    spelled = [[file.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()] for text in ("é", "深", "🍊")]
    return [[token_id for token_id in ids if token_id is not None] for ids in spelled if None not in ids]
