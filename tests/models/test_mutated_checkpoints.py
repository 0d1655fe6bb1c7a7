"""Whatever stands in a checkpoint's files, it loads or is refused in one line; nothing else, soon, and with little memory.

A tiny checkpoint is changed in one place: a value of config.json, a tensor, the header of its file, the index of shards.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import ModelError, ModelOptions, load_model
from tests.support.little_memory import Confined, little_memory, read_all
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tiers import examples

SMALL = RandomShape("small", seed=5, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_size=16, bias=True)
SHARDED = RandomShape("sharded", seed=6, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, num_shards=2)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

LONGEST_S = 20.0  # of computing: a load takes a third of a second, a billion of anything more
MOST_MIB = 400  # by which the process may grow: what compiling leaves behind
LONGEST_MESSAGE = 3000

few = settings(max_examples=examples(100))


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory() -> Iterator[None]:
    """Fails if anything here made the process grow."""
    with checkpoint(SMALL) as directory:  # what is imported is no allocation of a file's
        load_model(directory, ModelOptions())
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) >> 10 < MOST_MIB


@contextmanager
def checkpoint(shape: RandomShape) -> Iterator[Path]:
    """A directory with a checkpoint to spoil."""
    with tempfile.TemporaryDirectory() as directory:
        yield write_checkpoint(shape, Path(directory))


def refusal(directory: Path) -> str | None:
    """What the directory is refused with, None if it loads. Fails if that takes long, much memory, or several lines."""
    message = None
    begin = time.process_time()
    uses: list[Callable[[], object]] = [
        lambda: memory_needs(directory, RollingOptions()),
        lambda: load_model(directory, ModelOptions()),
    ]
    for use in uses:
        try:
            with little_memory(directory):
                use()
        except ModelError as error:
            message = str(error)
            assert 10 < len(message) < LONGEST_MESSAGE
            assert message.isprintable()
    assert time.process_time() - begin < LONGEST_S
    return message


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    """A process for the files themselves: what reads them is not all written in Python."""
    with Confined() as process:
        yield process


# --- config.json ------------------------------------------------------------------------------------------------------

KEYS = sorted(
    {
        *(
            "architectures",
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        ),
        *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "max_position_embeddings"),
        *("tie_word_embeddings", "attention_bias", "mlp_bias", "eos_token_id", "torch_dtype", "rope_scaling"),
        *("rope_parameters", "quantization_config", "text_config", "model_type", "pretraining_tp", "an unknown\nkey"),
    }
)
ROPE_KEYS = [
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "alpha", "truncate"),
    *("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor"),
    *("short_factor", "long_factor", "partial_rotary_factor"),
]
RULES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su")
WHOLE_ROPE: dict[str, Any] = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}
ABSURD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, 1e-300, 1e300, -1e300, 10**9, 2**31 - 1, 2**31, 2**63, 10**400),
    *(float("nan"), float("inf"), float("-inf"), "", "silu", "9", "\ud800\n", "x" * 10_000),
    *([], [1], [None], [[]], [1.0] * 7, [1e-300] * 8, [10**400] * 8, {}, {"a": {"b": []}}, [["LlamaForCausalLM"]]),
]
values = st.one_of(
    st.sampled_from(ABSURD),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
)


def spoiled_config(change: dict[str, Any]) -> str | None:
    """What a checkpoint is refused with whose config.json has that change."""
    with checkpoint(SMALL) as directory:
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        return refusal(directory)


@few
@given(st.sampled_from(KEYS), values)
@example("num_hidden_layers", 10**9)
@example("head_dim", 2**31 - 2)
@example("max_position_embeddings", 2**31 - 1)
@example("architectures", 5)
@example("rms_norm_eps", 1e300)
@example("rms_norm_eps", 10**400)
def test_any_value_of_any_key(key: str, value: Any) -> None:
    spoiled_config({key: value})


@few
@given(st.sampled_from(RULES), st.dictionaries(st.sampled_from(ROPE_KEYS), values, min_size=1, max_size=2))
@example("yarn", {"rope_theta": 1})
@example("llama3", {"low_freq_factor": 4.0})
@example("longrope", {"original_max_position_embeddings": 1})
@example("linear", {"factor": 0})
@example("default", {"rope_theta": -10_000.0})
@example("yarn", {"beta_fast": 1e308})
def test_any_description_of_how_positions_turn(rule: str, change: dict[str, Any]) -> None:
    spoiled_config({"rope_scaling": {"rope_type": rule, **WHOLE_ROPE, **change}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers is 1000000000, allowed: an integer .* at most 1000",
        ),
        ({"num_hidden_layers": [2]}, r"num_hidden_layers is \[2\], allowed"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is NaN, allowed: a number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000.*, allowed: a number"),
        ({"rope_theta": 0}, "rope_theta is 0, allowed: a number above 0"),
        ({"head_dim": 2**31 - 2}, "2147483646 dimensions of a head .* up to 4096"),
        ({"architectures": {"a": 1}}, 'architectures {"a": 1} are not supported'),
        ({"a\nb": {}}, r"for this architecture: a\\nb \({}\)"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r'type \["yarn"\] is not supported'),
        ({"rope_scaling": {"rope_type": "yarn", "rope_theta": 1}}, "of type 'yarn' cannot be computed"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e-320}}, "frequencies that are not finite"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_absurd_value_is_refused_by_its_key(change: dict[str, Any], words: str) -> None:
    message = spoiled_config(change)
    assert message is not None
    assert pytest.raises(ModelError, match=words).matches(ModelError(message))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read as JSON"),
        ("[" * 200_000, "cannot be read as JSON"),
        ('{"architectures": ' + "[" * 900 + "]" * 900 + "}", "are not supported"),
        ('{"a": "' + "x" * (17 << 20) + '"}', "more than 16 MiB"),
        ("\x00\xff", "is not UTF-8"),
    ],
    ids=["empty", "endless nesting", "deep nesting", "too large", "not UTF-8"],
)
def test_a_config_that_is_none_is_refused(text: str, words: str) -> None:
    with checkpoint(SMALL) as directory:
        (directory / "config.json").write_bytes(text.encode("latin-1"))
        message = refusal(directory)
    assert message is not None
    assert words in message


# --- tensors ----------------------------------------------------------------------------------------------------------

Tensors = dict[str, np.ndarray[Any, Any]]
_PARTS = ["input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"]
NAMES = [
    *("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.0.self_attn.k_proj.bias"),
    *(f"model.layers.0.{part}.weight" for part in _PARTS),
]


def _drop(tensors: Tensors, name: str) -> None:
    del tensors[name]


def _rename(tensors: Tensors, name: str) -> None:
    tensors[f"{name}_"] = tensors.pop(name)


def _add(tensors: Tensors, name: str) -> None:
    tensors[f"other.{name}"] = tensors[name]


def _widen(tensors: Tensors, name: str) -> None:
    tensors[name] = np.concatenate([tensors[name], tensors[name]], axis=-1)


def _flatten(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].reshape(1, -1) if tensors[name].ndim == 1 else tensors[name].reshape(-1)


def _empty(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name][:0]


def _integers(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].astype(np.int32)


@settings(max_examples=examples(60))
@given(
    st.sampled_from(NAMES),
    st.sampled_from(
        [
            (_drop, "has no tensor"),
            (_rename, ""),  # missing or not known, whichever is seen first
            (_add, "tensors that this architecture does not know: other."),
            (_widen, "config.json implies"),
            (_flatten, "config.json implies"),
            (_empty, "config.json implies"),
            (_integers, "has elements of type I32, allowed: F64, F32, F16, BF16"),
        ]
    ),
)
def test_a_tensor_that_is_not_as_it_should_be_is_named(name: str, change: tuple[Any, str]) -> None:
    spoil, words = change
    with checkpoint(SMALL) as directory:
        tensors = dict(load_file(directory / WEIGHTS))
        spoil(tensors, name)
        save_file(tensors, directory / WEIGHTS)
        message = refusal(directory)
    assert message is not None
    assert name in message
    assert words in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("weight_type", ["int8", "int4", "f16"])
def test_numbers_that_cannot_be_stored_are_refused(value: float, weight_type: Any) -> None:
    with checkpoint(SMALL) as directory:
        tensors = dict(load_file(directory / WEIGHTS))
        tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = value
        save_file(tensors, directory / WEIGHTS)
        with pytest.raises(ModelError, match=r"a weight matrix of \[\d+, 32\] cannot be stored: it holds"):
            load_model(directory, ModelOptions(weight_type))


# --- the files --------------------------------------------------------------------------------------------------------


@few
@given(part=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(confined: Confined, part: float) -> None:
    with checkpoint(SMALL) as directory:
        data = (directory / WEIGHTS).read_bytes()
        (directory / WEIGHTS).write_bytes(data[: int(len(data) * part)])
        message = refusal(directory)
        assert confined.refusal(directory) == message
    assert message is not None
    assert WEIGHTS in message


@few
@given(place=st.integers(0, 2000), change=st.integers(1, 255))
def test_any_byte_of_a_header_may_be_wrong(confined: Confined, place: int, change: int) -> None:
    with checkpoint(SMALL) as directory:
        data = bytearray((directory / WEIGHTS).read_bytes())
        data[place] ^= change
        (directory / WEIGHTS).write_bytes(data)
        refusal(directory)
        confined.refusal(directory)


NUMBERS = [-1, 0, 1, 3, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64]


@few
@given(data=st.data())
def test_any_number_of_a_header_may_be_absurd(confined: Confined, data: st.DataObject) -> None:
    """A length of an axis, or where the bytes of a tensor begin or end, or how long the header is."""
    with checkpoint(SMALL) as directory:
        whole = (directory / WEIGHTS).read_bytes()
        size = int.from_bytes(whole[:8], "little")
        header, tensors = json.loads(whole[8 : 8 + size]), whole[8 + size :]
        entry = header[data.draw(st.sampled_from(NAMES))]
        for _ in range(data.draw(st.integers(1, 3))):
            numbers = entry[data.draw(st.sampled_from(["shape", "data_offsets"]))]
            numbers[data.draw(st.integers(0, len(numbers) - 1))] = data.draw(st.sampled_from(NUMBERS))
        text = json.dumps(header).encode()
        told = data.draw(st.sampled_from([len(text), len(text), *(number % 2**64 for number in NUMBERS)]))
        (directory / WEIGHTS).write_bytes(told.to_bytes(8, "little") + text + tensors)
        refusal(directory)
        confined.refusal(directory)


@few
@given(size=st.integers(0, 2**64 - 1), content=st.binary(max_size=200))
@example(2**63, b"")
@example(2, b"[]")
@example(4, b"null")
def test_a_file_of_junk_is_refused(confined: Confined, size: int, content: bytes) -> None:
    with checkpoint(SMALL) as directory:
        (directory / WEIGHTS).write_bytes(size.to_bytes(8, "little") + content)
        assert refusal(directory) is not None
        assert confined.refusal(directory) is not None


def full_of_tensors(count: int, num_bytes: int) -> bytes:
    """A file of the smallest tensors there are, but for one that takes the other bytes."""
    ends = [*range(1, count), num_bytes]
    header = {
        f"{index:x}": {"dtype": "U8", "shape": [end - index], "data_offsets": [index, end]}
        for index, end in enumerate(ends)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + bytes(num_bytes)


@pytest.mark.parametrize(("count", "num_bytes"), [(30_000, 30_000), (30_000, 32 << 20)])
def test_a_file_full_of_tensors_takes_no_more_than_twice_the_file(count: int, num_bytes: int) -> None:
    with checkpoint(SMALL) as directory:
        data = full_of_tensors(count, num_bytes)
        (directory / WEIGHTS).write_bytes(data)
        with little_memory(directory):
            message = read_all(directory)
        is_refused = len(data) < 32 << 20
        assert (message is not None) == is_refused
        if message is not None:
            assert re.search(r"its header has \d+ bytes, allowed: at most \d+$", message)


def test_a_header_of_a_small_file_may_tell_of_ten_thousand_tensors() -> None:
    """As those of tiny models with many experts do: it takes what it takes, which is little."""
    with checkpoint(SMALL) as directory:
        (directory / WEIGHTS).write_bytes(full_of_tensors(10_000, 10_000))
        assert read_all(directory) is None


@few
@given(values)
@example({"model.norm.weight": "../model.safetensors"})
def test_an_index_may_hold_anything(value: Any) -> None:
    with checkpoint(SHARDED) as directory:
        (directory / INDEX).write_text(json.dumps({"weight_map": value}))
        assert refusal(directory) is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "holds a list, expected a JSON object"),
        ("{}", "weight_map is null, allowed: an object of tensors and their files"),
        ('{"weight_map": []}', r"weight_map is \[\], allowed"),
        ('{"weight_map": {"a": "../config.json"}}', 'names "../config.json", allowed: files of the same directory'),
        ('{"weight_map": {"a": "/etc/passwd"}}', 'names "/etc/passwd", allowed: files of the same directory'),
        ('{"weight_map": {"a": ["x"]}}', r'names \["x"\], allowed: files'),
        ('{"weight_map": {"a": "b.safetensors"}}', "names 'b.safetensors', which does not exist"),
        ('{"weight_map": {"a": "config.json"}}', "config.json is not a readable safetensors file"),
        ('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', "has no tensor"),
    ],
)
def test_an_index_that_is_none_is_refused(text: str, words: str) -> None:
    with checkpoint(SHARDED) as directory:
        (directory / INDEX).write_text(text)
        message = refusal(directory)
    assert message is not None
    assert pytest.raises(ModelError, match=words).matches(ModelError(message))


def test_a_tensor_in_another_shard_than_the_index_says_is_found() -> None:
    with checkpoint(SHARDED) as directory:
        index = json.loads((directory / INDEX).read_text())
        first, second = sorted(set(index["weight_map"].values()))
        turned = {name: second if file == first else first for name, file in index["weight_map"].items()}
        (directory / INDEX).write_text(json.dumps({"weight_map": turned}))
        assert refusal(directory) is None


def test_a_tensor_in_two_shards_is_refused() -> None:
    with checkpoint(SHARDED) as directory:
        first, second = sorted(directory.glob("*.safetensors"))
        shutil.copy(first, second)
        message = refusal(directory)
    assert message is not None
    assert "which another file of the checkpoint holds too" in message


def test_a_file_beside_the_model_is_not_read() -> None:
    with checkpoint(SMALL) as directory:
        (directory / "adapter.safetensors").write_bytes(b"junk")
        assert refusal(directory) is None
