"""A GGUF file is served as a directory is: found, named, weighed, kept, and answering with the same words."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from dragoman.config.resolve import Config, ConfigError, demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.gguf.files import read_gguf
from dragoman.llm import LLM
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.fingerprint import model_fingerprint
from dragoman.models.profile import kernel_profile
from dragoman.models.sources.base import PackedMatrix
from dragoman.models.stored.opening import stored_weights
from tests.support.family_checkpoint import read_case
from tests.support.family_logits import error_on_prompt, logits_of
from tests.support.gguf_tokenizer import read_tokenizer, tokenizer_metadata
from tests.support.gguf_writer import Writing, write_gguf, write_tensors

EXACT = ModelOptions("f32")
CASE = "llama_llama3"


def small(directory: Path, type_name: str = "F32", **options: object) -> Path:
    return write_gguf(CASE, read_case(CASE), directory, type_name, **options)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a GGUF file of F32."""
    source, directory = demo_model_dir(), tmp_path_factory.mktemp("demo")
    config = json.loads((source / "config.json").read_text())
    tensors = {
        name: np.asarray(value, dtype=np.float32) for name, value in load_file(source / "model.safetensors").items()
    }
    template = json.loads((source / "tokenizer_config.json").read_text())["chat_template"]
    keys = tokenizer_metadata(read_tokenizer(source), "gpt2", "seed-coder", eos=2, eot=0) | {"chat_template": template}
    return write_tensors(config, tensors, directory / "demo.gguf", "F32", Writing(tokenizer=keys))


def test_it_answers_as_the_directory_does(demo: Path) -> None:
    conversation = [{"role": "user", "content": "What is a river?"}]
    answers = []
    for model in (str(demo), None):
        with LLM(model, dtype="f32", max_num_seqs=2, max_model_len=256) as llm:
            (text,) = llm.generate(["Once upon a time"], max_tokens=12)
            answers.append((text.sequences[0].text, llm.chat(conversation, max_tokens=24).sequences[0].text))
    assert answers[0] == answers[1]


def test_the_file_gives_the_served_name(tmp_path: Path) -> None:
    path = tmp_path / "my-model-Q4_0.gguf"
    shutil.copy(small(tmp_path / "source"), path)
    assert _resolved(path).name == "my-model-Q4_0"
    part = tmp_path / "big-00002-of-00003.gguf"
    shutil.copy(path, part)
    assert _resolved(part).name == "big"
    with pytest.raises(ConfigError, match=r"must be a directory on this machine that holds a model, or a GGUF file"):
        _resolved(tmp_path / "missing.gguf")


def _resolved(path: Path) -> Config:
    return resolve([Given("--model-id", "model_id", str(path), "command line")], {}, demo_model_dir())


def test_a_directory_with_one_model_is_that_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = small(tmp_path / "source")
    directory = tmp_path / "model"
    directory.mkdir()
    shutil.copy(path, directory)
    shutil.copy(path, directory / "mmproj-model-f16.gguf")
    with caplog.at_level(logging.WARNING):
        loaded = load_model(directory, EXACT)
    assert error_on_prompt(loaded, CASE, 90) < 1e-4
    assert "mmproj-model-f16.gguf general.architecture is 'llama', allowed: 'clip'" in caplog.text


def test_of_several_models_one_must_be_named(tmp_path: Path) -> None:
    path = small(tmp_path)
    shutil.copy(path, tmp_path / "other.gguf")
    with pytest.raises(
        ModelError, match=rf"holds 2 GGUF models, allowed: one, or name its file: {path.name}, other.gguf"
    ):
        load_model(tmp_path, EXACT)


def test_split_files_are_one_model(tmp_path: Path) -> None:
    small(tmp_path, split_max_tensors=8)
    shutil.rmtree(tmp_path / "checkpoint")
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    for named in (parts[-1], tmp_path):
        assert error_on_prompt(load_model(named, EXACT), CASE, 90) < 1e-4
    parts[1].unlink()
    with pytest.raises(ModelError, match=f"{parts[1].name} does not exist, one of the {len(parts)} files"):
        load_model(parts[0], EXACT)


def test_a_file_that_is_one_of_several_is_not_taken_for_a_whole_model(tmp_path: Path) -> None:
    small(tmp_path, split_max_tensors=8)
    first = next(iter(sorted(tmp_path.glob("*.gguf")))).rename(tmp_path / "first.gguf")
    with pytest.raises(ModelError, match=r"first.gguf is one of \d files, of which 1 exist"):
        load_model(first, EXACT)


def test_what_it_will_take_follows_from_how_it_is_stored(tmp_path: Path) -> None:
    """Packed matrices take what their file takes of them."""
    types, is_kept = ("F16", "Q8_0", "Q4_0"), kernel_profile(ModelOptions()).kernels == "own"
    needs = {name: memory_needs(small(tmp_path / name, name), RollingOptions()).weights for name in types}
    assert needs["Q4_0"] < needs["Q8_0"]
    assert 0.9 < needs["F16"] / needs["Q8_0"] / (2 if is_kept else 1) < 1.1  # else it is compressed to 8 bits


@pytest.mark.parametrize(("type_name", "bits"), [("Q8_0", 8), ("Q4_0", 4)])
def test_q8_and_q4_stay_as_they_are(type_name: str, bits: int, tmp_path: Path) -> None:
    """Whatever is done to a file's rows, their integers and scales are the file's."""
    path = small(tmp_path, type_name)
    values = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    shape = tuple(read_case(CASE)["tensors"]["model.layers.0.mlp.gate_proj.weight"])
    weights = stored_weights(path)
    with weights.open() as source:
        matrix = source.tensor("model.layers.0.mlp.gate_proj.weight", shape)
        assert isinstance(matrix, PackedMatrix)
        assert (matrix.bits, matrix.group_size, weights.smallest_group) == (bits, 32, 32)
        found = values["blk.0.ffn_gate.weight"]
        assert np.array_equal(matrix.unpacked(), gguf.quants.dequantize(found.data, found.tensor_type))


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0"])
def test_packed_matrices_run_in_a_compressed_graph(type_name: str, tmp_path: Path) -> None:
    """Beside their own values in f32, what is lost is what arithmetic in bf16 and activations in int8 lose."""
    path = small(tmp_path, type_name)
    token_ids = [(37 * index) % 290 for index in range(64)]
    exact, packed = (logits_of(load_model(path, ModelOptions(kind)), token_ids) for kind in ("f32", "int8"))
    assert float(np.sqrt(np.mean((packed - exact) ** 2) / np.mean(exact**2))) < 0.1


def test_a_second_start_maps_the_kept_graph_of_the_same_file(tmp_path: Path) -> None:
    path, options = small(tmp_path), ModelOptions("f32", cache_dir=tmp_path)
    assert [load_model(path, options).from_cache for _ in range(2)] == [False, True]
    (kept,) = tmp_path.glob("*.blob")
    assert kept.name.startswith(path.stem)


@pytest.mark.skipif(
    kernel_profile(ModelOptions()).kernels != "own", reason="OpenVINO's kernels have weights of their own"
)
def test_a_file_whose_values_are_kept_is_its_own_source(tmp_path: Path) -> None:
    """Rows are packed at each start, whose file is read as a kept one would be: nothing is written."""
    path, cache = small(tmp_path, "Q4_0"), tmp_path / "cache"
    starts = [load_model(path, ModelOptions(cache_dir=cache)) for _ in range(2)]
    assert [start.from_cache for start in starts] == [False, False]
    assert not cache.exists()
    asked = [load_model(path, ModelOptions("int4", asks_for_type=True, cache_dir=cache)) for _ in range(2)]
    assert [start.from_cache for start in asked] == [False, True]


def test_the_start_says_what_storing_anew_costs(tmp_path: Path) -> None:
    path = small(tmp_path, "Q5_0", random_blocks=True)
    (said,) = load_model(path, ModelOptions("int8", asks_for_type=True)).facts.departures
    assert said.startswith("Q5_0 weights are computed and stored anew as int8, which rounds them a second time")
    assert load_model(path, EXACT).facts.departures == ()
    assert load_model(small(tmp_path, "Q8_0"), ModelOptions("int8")).facts.departures == ()


def test_fingerprints_tell_files_apart(tmp_path: Path) -> None:
    assert model_fingerprint(small(tmp_path)) != model_fingerprint(small(tmp_path, "Q8_0"))


def test_a_tensor_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf("qwen3", read_case("qwen3"), tmp_path)
    plain = tmp_path / "plain.gguf"
    data = path.read_bytes().replace(b"blk.1.attn_q_norm.weight", b"blk.1.attn_x_norm.weight")
    plain.write_bytes(data)
    with pytest.raises(ModelError, match=r"has no tensor 'model.layers.1.self_attn.q_norm.weight'"):
        load_model(plain, EXACT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama.attention.scale": 0.5}, "unknown metadata for this architecture: llama.attention.scale"),
        ({"llama.attention.causal": False}, "unknown metadata for this architecture: llama.attention.causal"),
        ({"llama.rope.scaling.type": "of-tomorrow"}, "rope.scaling.type is 'of-tomorrow', allowed: none, linear"),
        ({"llama.block_count": "three"}, "llama.block_count is 'three', allowed: a finite number"),
        ({"llama.block_count": None}, "config.json has no num_hidden_layers"),
        ({"llama.attention.head_count": [4, 2, 4]}, "attention.head_count is a list, allowed: the same value"),
        ({"general.type": "mmproj"}, "is the vision part of a model"),
    ],
)
def test_metadata_is_read_or_refused_by_name(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(small(tmp_path, changes=changes), EXACT)


def test_headers_are_read_once_for_a_file_and_again_for_a_changed_one(tmp_path: Path) -> None:
    path = small(tmp_path)
    first = read_gguf(path)
    assert read_gguf(path) is first
    shutil.copy(small(tmp_path / "other", "Q8_0"), path)
    assert {tensor.type_name for tensor in read_gguf(path).tensors.values()} == {"F32", "Q8_0"}
