"""Reads a SentencePiece model, the file tokenizer.model, with bounds checked.

Source: sentencepiece_model.proto of SentencePiece; the encoding page of Protocol Buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

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
