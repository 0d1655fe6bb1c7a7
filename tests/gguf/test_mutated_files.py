"""Whatever stands in a GGUF file, it loads or is refused in one line; soon, and with little memory."""

from __future__ import annotations

import re
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.errors import ModelError
from dragoman.gguf.files import read_gguf
from dragoman.models import ModelOptions, load_model
from dragoman.models.stored.opening import stored_weights
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.gguf.test_tokenizers import byte_level
from tests.support.family_checkpoint import read_case
from tests.support.gguf_tokenizer import tokenizer_metadata
from tests.support.gguf_writer import write_gguf
from tests.support.little_memory import Confined, little_memory
from tests.support.tiers import examples

LONGEST_S = 10.0  # of computing
SPARE_BYTES = 1 << 20  # of the interpreter's own, whatever the file's size
LONGEST_MESSAGE = 3000

few = settings(max_examples=examples(100))

DEEPEST = 2**64 - 1
COUNTS = [0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, DEEPEST]


@cache
def whole() -> bytes:
    """A small model with a tokenizer, its matrices as Q8_0."""
    keys = tokenizer_metadata(byte_level("gpt-2"), "gpt2", "gpt-2", eos=2)
    with tempfile.TemporaryDirectory() as directory:
        return write_gguf(
            "llama_default", read_case("llama_default"), Path(directory), "Q8_0", tokenizer=keys
        ).read_bytes()


@cache
def header_bytes() -> int:
    """Where the tensors' bytes begin, about."""
    return len(whole()) - sum(-(-size // 32) * 32 for size in _sizes())


def _sizes() -> list[int]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(whole())
        return [tensor.size for tensor in read_gguf(path).tensors.values()]


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What is imported for a file is no allocation of the file's."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.gguf"
        path.write_bytes(whole())
        load_tokenizer(path)
        load_model(path, ModelOptions("f32"))


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    """A process for the files themselves: what reads them is not all written in Python."""
    with Confined() as process:
        yield process


def refusal(data: bytes, *, loads: bool = False, confined: Confined | None = None) -> str | None:
    """What a file with these bytes is refused with, None if it is taken. Fails if it takes long, or much memory."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.gguf"
        path.write_bytes(data)
        if confined is not None:
            confined.refusal(path)
        return _refusal(path, loads=loads)


def _refusal(path: Path, *, loads: bool) -> str | None:
    uses: list[Any] = [lambda: memory_needs(path, RollingOptions()), lambda: load_tokenizer(path)]
    if loads:
        uses.append(lambda: load_model(path, ModelOptions("f32")))
    message = None
    begin = time.process_time()
    for use in (lambda: read_gguf(path), *uses):
        try:
            with little_memory(path):
                use()
        except ModelError as error:
            message = str(error)
        except ValueError as error:  # the tokenizers library's own words, wrapped
            message = str(error)
            assert "tokenizer.json" in message
        if message is not None:
            assert 10 < len(message) < LONGEST_MESSAGE
            assert "\n" not in message
    assert time.process_time() - begin < LONGEST_S
    return message


def test_the_file_itself_is_taken() -> None:
    assert refusal(whole(), loads=True) is None


@few
@given(data=st.data())
def test_any_byte_of_a_header_may_be_wrong(confined: Confined, data: st.DataObject) -> None:
    changed = bytearray(whole())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, header_bytes() - 1))] ^= data.draw(st.integers(1, 255))
    refusal(bytes(changed), confined=confined)


@few
@given(data=st.data())
def test_any_number_of_a_header_may_be_absurd(confined: Confined, data: st.DataObject) -> None:
    """Eight bytes at any place become a count that no file has room for, or none."""
    changed = bytearray(whole())
    place = data.draw(st.one_of(st.sampled_from([4, 8, 16, 24]), st.integers(0, header_bytes() - 8)))
    changed[place : place + 8] = struct.pack("<Q", data.draw(st.sampled_from(COUNTS)))
    refusal(bytes(changed), confined=confined)


@few
@given(part=st.floats(0, 1, exclude_max=True))
@example(0.0)
def test_a_truncated_file_is_refused(confined: Confined, part: float) -> None:
    message = refusal(whole()[: int(len(whole()) * part)], confined=confined)
    assert message is not None
    assert "model.gguf" in message


@few
@given(content=st.binary(max_size=200), num_tensors=st.sampled_from(COUNTS), num_keys=st.sampled_from(COUNTS))
def test_a_file_of_junk_is_refused(confined: Confined, content: bytes, num_tensors: int, num_keys: int) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_keys) + content
    assert refusal(data, confined=confined) is not None


@settings(max_examples=examples(10))
@given(st.sampled_from(["Q8_0", "Q4_0", "Q4_1", "Q5_1", "IQ4_NL", "MXFP4"]), st.binary(min_size=64, max_size=64))
@example("Q8_0", b"\xff" * 64)
@example("MXFP4", b"\xff" * 64)
def test_blocks_of_any_bytes_are_numbers_or_refused(type_name: str, block: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = small(type_name, Path(directory))
        data = bytearray(path.read_bytes())
        begin = read_gguf(path).tensors["blk.0.ffn_up.weight"].begin
        data[begin : begin + len(block)] = block
        path.write_bytes(data)
        message = None
        try:
            load_model(path, ModelOptions("int8"))
        except ModelError as error:
            message = str(error)
    assert message is None or "\n" not in message


def small(type_name: str, directory: Path) -> Path:
    """A model whose matrices are of that type."""
    return write_gguf("llama_default", read_case("llama_default"), directory, type_name, random_blocks=True)


# --- files made by hand -----------------------------------------------------------------------------------------------


def text(value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def file(keys: list[bytes], tensors: list[bytes] | None = None, *, version: int = 3, rest: bytes = b"") -> bytes:
    tensors = tensors or []
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    return head + b"".join(keys) + b"".join(tensors) + rest


def tensor(name: str, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


ARRAY, TEXT, U32 = 9, 8, 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a readable GGUF file"),
        (b"GGU", "it does not begin with GGUF"),
        (b"GGML" + bytes(40), "it does not begin with GGUF"),
        (file([], version=1), "its version is 1, allowed: 2, 3"),
        (file([], version=0x03000000), "its numbers are big-endian"),
        (file([])[:10], "it ends within its header"),
        (file([key("a", U32, bytes(4)), key("a", U32, bytes(4))]), "its metadata has 'a' twice"),
        (file([key("a", 13, bytes(8))]), "metadata 'a' has type 13, allowed: 0 to 12"),
        (file([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(40))]), "is an array of type 9"),
        (file([key("a", ARRAY, struct.pack("<IQ", U32, 2**62))]), "it declares 4611686018427387904 values"),
        (file([key("a", ARRAY, struct.pack("<IQ", TEXT, 2**40))], rest=bytes(99)), "values of 'a', allowed: at most"),
        (file([key("a", ARRAY, struct.pack("<IQQ", TEXT, 1, 2**50))], rest=bytes(99)), "end beyond the file"),
        (file([key("a", TEXT, struct.pack("<Q", 2**50))]), "a text at byte 45 has 1125899906842624 bytes"),
        (file([key("general.alignment", U32, bytes(4))]), "general.alignment is 0, allowed: a power of two"),
        (file([key("general.alignment", U32, struct.pack("<I", 48))]), "general.alignment is 48"),
        (file([key("general.alignment", TEXT, text("32"))]), "general.alignment is '32'"),
        (file([], [tensor("a", [])], rest=bytes(99)), "tensor 'a' has 0 dimensions, allowed: 1 to 4"),
        (file([], [tensor("a", [1] * 5)], rest=bytes(99)), "tensor 'a' has 5 dimensions"),
        (file([], [tensor("a", [0, 4])], rest=bytes(99)), "which the file has no room for"),
        (file([], [tensor("a", [2**40, 2**40])], rest=bytes(99)), "which the file has no room for"),
        (file([], [tensor("a", [64])], rest=bytes(99)), "tensor 'a' ends at byte"),
        (file([], [tensor("a", [4], offset=2**63)], rest=bytes(99)), "tensor 'a' ends at byte"),
        (file([], [tensor("a", [4], offset=4)], rest=bytes(99)), "tensor 'a' begins at 4, allowed: multiples of 32"),
        (file([], [tensor("a", [4]), tensor("a", [4])], rest=bytes(99)), "it holds tensor 'a' twice"),
        (file([], [tensor("a", [33], kind=8)], rest=bytes(99)), "rows of 33 values, allowed for Q8_0: whole 32s"),
        (
            file([], [tensor("a", [256], kind=16)], rest=bytes(999)),
            "tensor 'a' is stored as IQ2_XXS, allowed: F32, F16",
        ),
        (file([], [tensor("a", [4], kind=28)], rest=bytes(99)), "tensor 'a' is stored as F64, allowed"),
        (file([], [tensor("a", [4], kind=999)], rest=bytes(99)), "tensor 'a' is stored as type 999, allowed"),
        (file([]), "general.architecture is '', allowed: bloom"),
        (file([key("general.architecture", TEXT, text("rwkv7"))]), "general.architecture is 'rwkv7', allowed: bloom"),
        (file([key("general.architecture", TEXT, text("clip"))]), "is the vision part of a model"),
        (file([key("general.architecture", TEXT, text("llama"))]), "has no tensor 'token_embd.weight'"),
        (file([key("general.architecture", TEXT, text(b"\xff\xfe"))]), "is not a readable GGUF file"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=_literally(words)) as caught:
        memory_needs(path, RollingOptions())
    assert str(path) in str(caught.value)


def _literally(words: str) -> str:
    return re.escape(words)


@pytest.mark.parametrize("kind", ["texts", "numbers", "keys", "tensors"])
def test_reading_a_header_takes_no_more_memory_than_twice_the_file(kind: str, tmp_path: Path) -> None:
    """Of files that are full of the smallest things there are."""
    path, count = tmp_path / "model.gguf", 9_000
    match kind:
        case "texts":
            data = file([key("a", ARRAY, struct.pack("<IQ", TEXT, 400_000) + text(b"ab") * 400_000)])
        case "numbers":
            data = file([key("a", ARRAY, struct.pack("<IQ", 0, 1 << 22) + bytes(1 << 22))])
        case "keys":
            data = file([key(f"{index:x}", 0, b"\0") for index in range(count)], rest=bytes(1 << 20))
        case _:
            data = file(
                [], [tensor(f"{index:x}", [1], offset=32 * index) for index in range(count)], rest=bytes(3 << 20)
            )
    path.write_bytes(data)
    tracemalloc.start()
    try:
        read_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(data) + SPARE_BYTES


def test_tensors_are_not_copied_before_they_are_asked_for(tmp_path: Path) -> None:
    case = read_case("llama_default")
    path = write_gguf("llama_default", case, tmp_path)
    with stored_weights(path).open() as source:
        table = source.tensor("model.embed_tokens.weight", tuple(case["tensors"]["model.embed_tokens.weight"]))
        assert not np.asarray(table).flags.owndata
