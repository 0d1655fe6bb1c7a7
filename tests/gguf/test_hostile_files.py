"""Files that are well-formed and say what no model says: each is refused in a line that names the file, and soon."""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.errors import ModelError
from dragoman.gguf.files import read_gguf
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.gguf.test_tokenizers import byte_level
from tests.support.family_checkpoint import read_case
from tests.support.gguf_parts import ARRAY, TEXT, Parts, Tensor, array, split, text, texts
from tests.support.gguf_tokenizer import tokenizer_metadata
from tests.support.gguf_writer import write_gguf

LONGEST_S = 5.0  # of computing: a busy machine may take longer
F32, F64, I8, U32, I32, BOOL, U64, I64 = 6, 12, 1, 4, 5, 7, 10, 11
NAN = struct.pack("<f", float("nan"))

# Families whose configs are made by rules of their own, between them of every kind.
FAMILIES = (
    "llama_default",
    "bloom",
    "cohere2",
    "deepseek_v2",
    "granite",
    "mpt_storywriter",
    "olmo3",
)

VALUES: dict[str, tuple[int, bytes]] = {
    "nothing": (0, b"\0"),
    "less than nothing": (I8, b"\xff"),
    "the largest number": (U64, b"\xff" * 8),
    "no number": (F32, NAN),
    "an endless number": (F64, struct.pack("<d", float("-inf"))),
    "yes": (BOOL, b"\1"),
    "a text": (TEXT, text("x\ny" * 3000)),
    "an empty text": (TEXT, text("")),
    "an empty list": (ARRAY, array(U32, 0, b"")),
    "unlike numbers": (ARRAY, array(I64, 2, struct.pack("<qq", 1, -(2**63)))),
    "lists of what is no number": (ARRAY, array(F32, 1, NAN)),
    "yes and no": (ARRAY, array(BOOL, 2, b"\0\1")),
    "texts": (ARRAY, texts(["a", b"\xff"])),
}


@cache
def parts_of(family: str) -> Parts:
    """A small model of that family with a tokenizer."""
    keys = tokenizer_metadata(byte_level("gpt-2"), "gpt2", "gpt-2", eos=2)
    with tempfile.TemporaryDirectory() as directory:
        return split(write_gguf(family, read_case(family), Path(directory), tokenizer=keys).read_bytes())


def refusal(parts: Parts, directory: Path, use: Callable[[Path], object] | None = None) -> str | None:
    """What a file is refused with, None if it is taken. Fails unless that is one line with its name, and comes soon."""
    path = directory / "model.gguf"
    path.write_bytes(parts.written())
    uses = [use] if use is not None else [lambda path: memory_needs(path, RollingOptions()), load_tokenizer]
    begin_s = time.process_time()
    for each in uses:
        try:
            each(path)
        except ModelError as error:
            message = str(error)
        except ValueError as error:  # tokenizer.json, as it was made from the metadata, in the library's own words
            message = str(error)
            assert "tokenizer.json cannot be used" in message
        else:
            continue
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < 3000
        assert time.process_time() - begin_s < LONGEST_S
        return message
    assert time.process_time() - begin_s < LONGEST_S
    return None


def test_the_parts_are_the_file(tmp_path: Path) -> None:
    for family in FAMILIES:
        assert refusal(parts_of(family), tmp_path) is None, family


@pytest.mark.parametrize("family", FAMILIES)
def test_any_key_may_hold_anything(family: str, tmp_path: Path) -> None:
    """Of the architecture's keys; those of the tokenizer are the same in all."""
    parts = parts_of(family)
    names = [key.name.decode() for key in parts.keys if not key.name.startswith(b"tokenizer.")]
    taken = [
        f"{name} is {what}"
        for name in names
        for what, (kind, value) in VALUES.items()
        if refusal(parts.with_key(name, kind, value), tmp_path, lambda path: memory_needs(path, RollingOptions()))
        is None
    ]
    assert len(taken) < len(names) * len(VALUES) / 2


def test_any_key_of_the_tokenizer_may_hold_anything_or_be_missing(tmp_path: Path) -> None:
    parts = parts_of("llama_default")
    for key in parts.keys:
        name = key.name.decode()
        if name.startswith("tokenizer."):
            for kind, value in VALUES.values():
                refusal(parts.with_key(name, kind, value), tmp_path, load_tokenizer)
            refusal(parts.without_key(name), tmp_path, load_tokenizer)


def hostile() -> Iterator[tuple[str, Parts, str]]:
    """What is wrong, the file, and words of its refusal."""
    parts = parts_of("llama_default")
    first, second, *others = sorted(parts.tensors, key=lambda tensor: tensor.offset)

    def changed(*tensors: Tensor) -> Parts:
        return replace(parts, tensors=(*tensors, *others))

    yield "one tensor in another", changed(first, replace(second, offset=first.offset)), "overlap at byte"
    yield "the end of one in the next", changed(replace(first, offset=first.offset + 32), second), "overlap at byte"
    yield "two of one name", changed(first, replace(second, name=first.name)), "twice"
    yield "a tensor behind the file", changed(first, replace(second, offset=2**63)), "ends at byte"
    yield "a name that is no text", changed(first, replace(second, name=b"\xff")), "is not a readable GGUF file"
    yield "a name of lines", changed(first, replace(second, name=b"a\nb\r\0")), "tensor"
    for kind in ("gpt2", "llama", "t5"):
        spoken = parts.with_key("tokenizer.ggml.model", TEXT, text(kind))
        long = spoken.with_key("tokenizer.ggml.tokens", ARRAY, texts(["a", "b" * 300_000]))
        yield f"a token of 300 KB, {kind}", long, "300000 in one token, allowed"
        many = spoken.with_key("tokenizer.ggml.tokens", ARRAY, texts(["c" * 1000] * 17_000))
        yield f"17 MB of tokens, {kind}", many, "17000000 characters"
        scored = spoken.with_key("tokenizer.ggml.scores", ARRAY, array(F32, 1, NAN))
        scored = scored.with_key("tokenizer.ggml.tokens", ARRAY, texts(["a"])).without_key("tokenizer.ggml.token_type")
        yield f"no score, {kind}", scored, "scores is a list, allowed: finite numbers"
    tangled = scored_pairs(["a" * length for length in range(1, 1025)])
    yield "tokens of each other", tangled, "can be merged in too many ways, up to 'aaa"
    yield "a token that is no text", parts.with_key("tokenizer.ggml.tokens", ARRAY, texts([b"\xff"])), "not UTF-8"


def test_what_no_model_has_is_refused_by_name(tmp_path: Path) -> None:
    for what, parts, words in hostile():
        message = refusal(parts, tmp_path)
        assert message is not None, what
        assert words in message, what


def scored_pairs(tokens: list[str]) -> Parts:
    """The model with that vocabulary, as SentencePiece has it."""
    parts = parts_of("llama_default").with_key("tokenizer.ggml.model", TEXT, text("llama"))
    for name in ("token_type", "scores", "merges", "eos_token_id"):
        parts = parts.without_key(f"tokenizer.ggml.{name}")
    return parts.with_key("tokenizer.ggml.tokens", ARRAY, texts(tokens))


def test_long_tokens_take_no_time(tmp_path: Path) -> None:
    """Every cut of them may be one of two others."""
    tokens = [f"{number:04}" + "a" * 1020 for number in range(500)] + ["a" * length for length in range(500, 1020)]
    assert refusal(scored_pairs(tokens), tmp_path, load_tokenizer) is None


def test_tensors_that_touch_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(parts_of("llama_default").written())
    tensors = sorted(read_gguf(path).tensors.values(), key=lambda tensor: tensor.begin)
    assert any(one.begin + one.size == other.begin for one, other in pairwise(tensors))
