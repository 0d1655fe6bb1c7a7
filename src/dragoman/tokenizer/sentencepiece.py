"""Translates a SentencePiece model (BPE or Unigram) for the `tokenizers` library.

Two things differ. Of two cuts with equal scores Unigram may choose the other one. Rules of the normaliser for a part of
several joined characters (a letter under three accents) are not applied to that part.
"""

from __future__ import annotations

import re
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.tokenizer.merges import all_merges
from dragoman.tokenizer.sentencepiece_model import BPE, UNIGRAM, Piece, PieceType, SentencePieceModel
from dragoman.tokenizer.soundness import check_charsmap, check_unigrams

BLANK = "▁"
_BYTE_PIECE = "(?<=<0x[0-9A-F])[0-9A-F](?=>)"  # cuts texts that look like a byte's piece


def tokenizer_of(model: SentencePieceModel, *, blank_everywhere: bool = True) -> Tokenizer:
    """The tokenizer. `blank_everywhere`: text after a special token begins with a blank too. Raises: ValueError."""
    _check(model)
    symbols = sorted((model.pieces[i].text for i in model.ids_of(PieceType.USER_DEFINED)), key=len, reverse=True)
    tokenizer = Tokenizer(_bpe(model, bool(symbols)) if model.model_type == BPE else _unigram(model))
    if model.charsmap:
        check_charsmap(model.charsmap)
    normalizer = _normalizer(model, blank_everywhere)
    _check_symbols(symbols, model)
    tokenizer.normalizer = normalizer
    cuts: list[Any] = []
    if model.adds_dummy_prefix and not blank_everywhere:
        cuts.append(pre_tokenizers.Metaspace(BLANK, prepend_scheme="first", split=False))
    if symbols and model.model_type == BPE:
        cuts.append(pre_tokenizers.Split(Regex("|".join(re.escape(symbol) for symbol in symbols)), "isolated"))
    if _has_all_bytes(model) and (symbols or model.model_type == UNIGRAM):  # otherwise only merges make pieces
        cuts.append(pre_tokenizers.Split(Regex(_BYTE_PIECE), "isolated"))
    if cuts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    strip = [decoders.Strip(" ", 1, 0)] if model.adds_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    controls = [model.pieces[i].text for i in model.ids_of(PieceType.CONTROL, PieceType.UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    return tokenizer


def _check(model: SentencePieceModel) -> None:
    if model.model_type not in (UNIGRAM, BPE):
        raise ValueError("its model type is neither BPE nor Unigram")
    if model.blank_is_suffix or not model.escapes_blanks:
        raise ValueError(
            "it treats blanks in a way (treat_whitespace_as_suffix, escape_whitespaces) that is not supported"
        )
    if model.ids_of(PieceType.UNUSED):
        raise ValueError("it has unused pieces, which are not supported")
    texts = [piece.text for piece in model.pieces]
    if len(set(texts)) < len(texts):
        raise ValueError("it has a piece twice")
    if len(model.ids_of(PieceType.UNKNOWN)) != 1:
        raise ValueError("it must have one unknown piece")


def _bpe(model: SentencePieceModel, has_symbols: bool) -> Any:
    """Pieces are made in the order of their scores; of two equal scores the lower id goes first."""
    vocabulary = {piece.text: token_id for token_id, piece in enumerate(model.pieces)}
    normal = [model.pieces[token_id] for token_id in model.ids_of(PieceType.NORMAL)]
    made = [piece.text for piece in sorted(normal, key=lambda piece: -piece.score)]
    return models.BPE(
        vocab=vocabulary,
        merges=all_merges(made, frozenset(made)),
        unk_token=model.pieces[model.ids_of(PieceType.UNKNOWN)[0]].text,
        fuse_unk=True,
        byte_fallback=_has_all_bytes(model),
        ignore_merges=has_symbols,  # merges do not make symbols
    )


def _unigram(model: SentencePieceModel) -> Any:
    check_unigrams(piece.text for piece in model.pieces)
    counted = model.ids_of(PieceType.NORMAL, PieceType.USER_DEFINED)
    highest = max((model.pieces[token_id].score for token_id in counted), default=0.0)
    pieces = [(piece.text, _score(piece, highest)) for piece in model.pieces]
    [unknown] = model.ids_of(PieceType.UNKNOWN)
    return models.Unigram(pieces, unk_id=unknown, byte_fallback=_has_all_bytes(model))


def _score(piece: Piece, highest: float) -> float:
    """A user-defined symbol beats any pieces of its bytes; the scores of other types do not matter."""
    if piece.type == PieceType.USER_DEFINED:
        return len(piece.text.encode()) * highest - 0.1
    return piece.score if piece.type == PieceType.NORMAL else 0.0


def _has_all_bytes(model: SentencePieceModel) -> bool:
    """True for byte fallback. Raises: ValueError if there are pieces for some bytes only."""
    found = {model.pieces[token_id].text for token_id in model.ids_of(PieceType.BYTE)}
    if found and found != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise ValueError("it has pieces for some bytes, but not for all")
    return bool(found)


def _normalizer(model: SentencePieceModel, blank_everywhere: bool) -> Any:
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.removes_extra_blanks:
        # In this order: searching many blanks at the end takes time with the square of blanks elsewhere.
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
    if model.adds_dummy_prefix and blank_everywhere:
        steps.append(normalizers.Prepend(BLANK))
    steps.append(normalizers.Replace(" ", BLANK))
    return normalizers.Sequence(steps)


def _check_symbols(symbols: list[str], model: SentencePieceModel) -> None:
    """SentencePiece does not normalise user-defined symbols; the library would."""
    if not model.charsmap:
        return
    charsmap = normalizers.Precompiled(model.charsmap)
    changed = [symbol for symbol in symbols if charsmap.normalize_str(symbol) != symbol]
    if changed:
        raise ValueError(f"its normaliser changes its own symbol {changed[0]!r}, which is not supported")
