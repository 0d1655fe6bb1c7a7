"""Whatever stands in the files of a quantised checkpoint, it loads or is refused in one line, soon, and with little memory.

A tiny checkpoint in some layout is changed in one place: an entry of the header, a tensor's name, type or shape, its bytes,
a key of quantization_config. What is true of all checkpoints is in test_mutated_checkpoints.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import ModelError, ModelOptions, load_model
from tests.support.little_memory import little_memory, read_all
from tests.support.packed_layouts import LAYOUTS
from tests.support.packers import write_pair
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tiers import examples

SMALL = RandomShape(
    "small", seed=9, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_size=16, vocab_size=64
)
FILES = ("awq", "gptq, any order", "w4a16, any order", "w8a8, not symmetric", "fp8 in blocks")
WEIGHTS = "model.safetensors"

LONGEST_S = 20.0  # of computing: a load takes a third of a second, a billion of anything more

few = settings(max_examples=examples(30))
Header = dict[str, Any]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    """config.json and weights of each layout."""
    found = {}
    for layout in FILES:
        directory = tmp_path_factory.mktemp("original")
        source = write_checkpoint(SMALL, directory / "source")
        packed = write_pair(source, directory, *LAYOUTS[layout]).packed
        found[layout] = ((packed / "config.json").read_bytes(), (packed / WEIGHTS).read_bytes())
    return found


@contextmanager
def files(config: bytes, weights: bytes) -> Iterator[Path]:
    """A directory with these files."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "config.json").write_bytes(config)
        (directory / WEIGHTS).write_bytes(weights)
        yield directory


def refusal(config: bytes, weights: bytes) -> str | None:
    """What such a checkpoint is refused with, None if it loads."""
    message = None
    begin = time.process_time()
    with files(config, weights) as directory:
        for use in (
            lambda: memory_needs(directory, RollingOptions()),
            lambda: load_model(directory, ModelOptions()),
            lambda: load_model(directory, ModelOptions("f32")),
        ):
            try:
                use()
            except ModelError as error:
                message = str(error)
                assert message.isprintable()
                assert 10 < len(message) < 3000
    assert time.process_time() - begin < LONGEST_S
    return message


def split(weights: bytes) -> tuple[Header, bytes]:
    """The header of a file, and the bytes behind it."""
    (size,) = struct.unpack("<Q", weights[:8])
    return json.loads(weights[8 : 8 + size]), weights[8 + size :]


def whole(header: Header, data: bytes) -> bytes:
    """The file of a header and the bytes behind it."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TYPES = (
    "BOOL",
    "U8",
    "I8",
    "I16",
    "I32",
    "U32",
    "I64",
    "F16",
    "BF16",
    "F32",
    "F64",
    "F8_E4M3",
    "F8_E5M2",
    "F8_E8M0",
    "F4",
    "X9",
)
numbers: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, 2, 3, 7, 8, 31, 33, 2**16, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, -1, 1.5, None, "8", [], 10**30]
)


@st.composite
def changed_entry(draw: st.DrawFn, header: Header) -> Header:
    """The header with a change to what it says of a tensor."""
    names = sorted(name for name in header if name != "__metadata__")
    name = draw(st.sampled_from(names))
    entry = dict(header[name])
    kind = draw(st.sampled_from(["type", "shape", "offsets", "exchange", "split", "rename", "drop", "twin", "absurd"]))
    changed = dict(header)
    if kind == "type":
        entry["dtype"] = draw(st.sampled_from(TYPES))
    elif kind == "shape":
        entry["shape"] = draw(st.lists(numbers, max_size=4))
    elif kind == "offsets":
        entry["data_offsets"] = draw(st.lists(numbers, max_size=3))
    elif kind == "exchange":
        other = draw(st.sampled_from(names))
        entry, changed[other] = dict(header[other]), dict(header[name])
    elif kind == "split":  # the same bytes, other dimensions
        size = int(np.prod(entry["shape"]))
        parts = [part for part in (1, 2, 4, 8, 16, 32, 64) if size % part == 0]
        part = draw(st.sampled_from(parts))
        entry["shape"] = [part, size // part]
    elif kind == "absurd":
        entry = draw(st.sampled_from([None, [], 3, "x", {}, {"dtype": "F32"}]))
    changed[name] = entry
    if kind in ("rename", "drop"):
        del changed[name]
    if kind in ("rename", "twin"):
        changed[name + draw(st.sampled_from(["_", "_scale", ".g_idx", "\n"]))] = header[name]
    return changed


@pytest.mark.parametrize("layout", FILES)
def test_they_load_as_they_are(layout: str, originals: dict[str, tuple[bytes, bytes]]) -> None:
    config, weights = originals[layout]
    assert refusal(config, weights) is None
    assert refusal(config, whole(*split(weights))) is None


@few
@given(data=st.data(), layout=st.sampled_from(FILES))
def test_a_header_may_say_anything(originals: dict[str, tuple[bytes, bytes]], data: st.DataObject, layout: str) -> None:
    config, weights = originals[layout]
    header, tensors = split(weights)
    refusal(config, whole(data.draw(changed_entry(header)), tensors))


@settings(max_examples=examples(200))
@given(
    data=st.data(),
    layout=st.sampled_from(FILES),
    length=st.none() | st.integers(0, 2**64 - 1),
    kept=st.sampled_from([1.0, 1.0]) | st.floats(0, 1),
)
def test_a_header_costs_no_more_than_the_file(
    originals: dict[str, tuple[bytes, bytes]], data: st.DataObject, layout: str, length: int | None, kept: float
) -> None:
    """Reading what a file says of itself, and opening it, allocates at most twice its size."""
    config, weights = originals[layout]
    header, tensors = split(weights)
    spoiled = whole(data.draw(changed_entry(header)), tensors)
    spoiled = (spoiled if length is None else struct.pack("<Q", length) + spoiled[8:])[: int(kept * len(spoiled))]
    with files(config, spoiled) as directory, little_memory(directory):
        message = read_all(directory)
    assert message is None or message.isprintable()


@few
@given(data=st.data(), layout=st.sampled_from(FILES))
def test_integers_may_have_any_bytes(
    originals: dict[str, tuple[bytes, bytes]], data: st.DataObject, layout: str
) -> None:
    """Groups of columns that do not exist, shapes that are not true, zero points and scales of any kind."""
    config, weights = originals[layout]
    header, tensors = split(weights)
    name = data.draw(st.sampled_from(sorted(name for name in header if name != "__metadata__")))
    begin, end = header[name]["data_offsets"]
    filling = data.draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x80", b"\x01\0\0\0"]))
    spoiled = bytearray(tensors)
    spoiled[begin:end] = (filling * (end - begin))[: end - begin]
    refusal(config, whole(header, bytes(spoiled)))


KEYS = (
    "bits",
    "group_size",
    "quant_method",
    "version",
    "sym",
    "desc_act",
    "zero_point",
    "format",
    "config_groups",
    "ignore",
)
WEIGHT_KEYS = ("num_bits", "group_size", "strategy", "symmetric", "type", "block_structure", "dynamic", "actorder")
absurd = st.one_of(
    numbers,
    st.sampled_from(
        [True, False, {}, "gemm", "gptq", "awq", "fp8", "channel", "tensor", "block", "float", 4, 16, 32, 64, 128]
    ),
)


@few
@given(st.sampled_from(FILES), st.sampled_from((*KEYS, "weight_block_size")), absurd, st.sampled_from(WEIGHT_KEYS))
@example("awq", "group_size", 2**62, "type")
@example("gptq, any order", "bits", 8, "type")
def test_a_description_may_say_anything(
    originals: dict[str, tuple[bytes, bytes]], layout: str, key: str, value: Any, weight_key: str
) -> None:
    config, weights = originals[layout]
    raw = json.loads(config)
    described = raw["quantization_config"]
    if "config_groups" in described and key not in ("quant_method", "format", "config_groups", "ignore"):
        described["config_groups"]["group_0"]["weights"][weight_key] = value
    else:
        described[key] = value
    refusal(json.dumps(raw).encode(), weights)


@pytest.mark.parametrize(
    ("layout", "change", "words"),
    [
        (
            "awq",
            {".scales": None},
            r"no tensor 'model.layers.0.mlp.down_proj.scales', which the quantised matrix needs",
        ),
        ("awq", {".qzeros": None}, r"no tensor '.*.qzeros', which"),
        ("awq", {".qweight": "F32"}, r"down_proj.qweight' has elements of type F32, allowed: I32"),
        ("gptq, any order", {".g_idx": "F32"}, r"g_idx' has elements of type F32, allowed: I32, I64"),
        ("w4a16, any order", {".weight_scale": None}, r"no tensor '.*.weight_scale', which"),
        ("w8a8, not symmetric", {".weight_scale": None}, r"has elements of type I8, but no '.*weight_scale'"),
        ("w8a8, not symmetric", {".weight_zero_point": None}, r"no tensor '.*.weight_zero_point' of type I8"),
        ("fp8 in blocks", {".weight_scale_inv": None}, r"has elements of type F8_E4M3, but no '.*weight_scale'"),
        ("fp8 in blocks", {".weight_scale_inv": "I32"}, r"weight_scale_inv' has elements of type I32, allowed: F64"),
    ],
)
def test_what_is_wrong_with_a_matrix_is_named(
    originals: dict[str, tuple[bytes, bytes]], layout: str, change: dict[str, str | None], words: str
) -> None:
    config, weights = originals[layout]
    header, tensors = split(weights)
    ((ending, type_name),) = change.items()
    name = next(name for name in sorted(header) if name.endswith("down_proj" + ending))
    if type_name is None:
        entry = header.pop(name)
        header[name.replace("down_proj", "other")] = entry  # as every byte must belong to a tensor
    else:
        header[name]["dtype"] = type_name
    message = refusal(config, whole(header, tensors))
    assert message is not None
    assert pytest.raises(ModelError, match=words).matches(ModelError(message))
