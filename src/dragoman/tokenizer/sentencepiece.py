"""Reads a SentencePiece model (BPE or Unigram), and translates it for the `tokenizers` library.

Two things differ. Of two cuts with equal scores Unigram may choose the other one. Rules of the normaliser for a part of
several joined characters (a letter under three accents) are not applied to that part. Source: sentencepiece_model.proto
of SentencePiece; the encoding page of Protocol Buffers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.tokenizer.merges import all_merges
from dragoman.tokenizer.soundness import check_charsmap, check_unigrams

BLANK = "▁"
_BYTE_PIECE = "(?<=<0x[0-9A-F])[0-9A-F](?=>)"  # cuts texts that look like a byte's piece

Field: TypeAlias = int | bytes


class PieceType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


UNIGRAM, BPE = 1, 2  # the model types of language models


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    type: PieceType


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The contents of a SentencePiece file. `charsmap`: the normaliser's rules in its own form, b"" = none."""

    pieces: tuple[Piece, ...]
    model_type: int = UNIGRAM
    charsmap: bytes = b""
    adds_dummy_prefix: bool = True
    removes_extra_blanks: bool = True
    escapes_blanks: bool = True
    blank_is_suffix: bool = False

    def ids_of(self, *types: PieceType) -> list[int]:
        return [token_id for token_id, piece in enumerate(self.pieces) if piece.type in types]


def read_model(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, Field] = {}
    normalizer: dict[int, Field] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_message(value)))
        elif number == 2:
            trainer = _message(value)
        elif number == 3:
            normalizer = _message(value)
    if not pieces:
        raise ValueError("it holds no pieces")
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=_number(trainer, 3, UNIGRAM),
        charsmap=_bytes(normalizer, 2),
        adds_dummy_prefix=bool(_number(normalizer, 3, 1)),
        removes_extra_blanks=bool(_number(normalizer, 4, 1)),
        escapes_blanks=bool(_number(normalizer, 5, 1)),
        blank_is_suffix=bool(_number(trainer, 24, 0)),
    )


def _piece(fields: dict[int, Field]) -> Piece:
    score = fields.get(2, b"\0\0\0\0")
    if not isinstance(score, bytes) or len(score) != 4:
        raise ValueError("a piece has a score that is not a number")
    return Piece(
        _bytes(fields, 1).decode("utf-8"),
        struct.unpack("<f", score)[0],
        PieceType(_number(fields, 3, PieceType.NORMAL)),
    )


def _message(value: Field) -> dict[int, Field]:
    if not isinstance(value, bytes):
        raise ValueError("a message is expected where a number is")
    return dict(_fields(value))


def _number(fields: dict[int, Field], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not a number")
    return value


def _bytes(fields: dict[int, Field], number: int) -> bytes:
    value = fields.get(number, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is not a text")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Field numbers and values: numbers for varints, else the bytes. Raises: ValueError."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {wire}")
        if size > len(data) - position:
            raise ValueError(f"field {number} ends beyond the file's end")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number does not end")


# --- the tokenizer ----------------------------------------------------------------------------------------------------


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
