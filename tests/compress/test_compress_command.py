"""`dragoman compress` on the bundled model: what is written, and what it loses."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from demo.corpus.mix import sample_document
from dragoman.cli import main
from dragoman.config.resolve import demo_model_dir
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.storage.groups import quantize_groups
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tools.compress import checkpoint
from dragoman.tools.compress.checkpoint import packed_tensors
from dragoman.tools.evaluate import cut_text, evaluate
from tests.support.packed_checkpoint import PackedCheckpoint, unpack
from tests.support.tiers import everything, examples

DEMO = demo_model_dir()


def corpus(number: int, num_documents: int) -> str:
    stream = Random(number)
    documents = ["".join(part for part, _ in sample_document(stream)) for _ in range(num_documents)]
    return "<|endoftext|>".join(documents)


@pytest.fixture(scope="module")
def reference() -> LoadedModel:
    return load_model(DEMO, ModelOptions("f32"))


def divergence(loaded: LoadedModel, reference: LoadedModel) -> float:
    tokens = load_tokenizer(DEMO).encode(corpus(1, examples(60)), add_special_tokens=False)
    found = evaluate(loaded, cut_text(tokens, 256, None), lambda _stage, _fraction: None, reference).divergence_mean
    assert found is not None
    return found


@pytest.mark.full("how much less calibration loses; that its factors cancel is asked below")
def test_calibrated_weights_lose_less_than_others(
    reference: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(corpus(2, 150))
    assert main(["compress", str(DEMO), str(tmp_path / "calibrated"), "--text", str(text), "--window", "256"]) == 0
    assert "42 matrices in 4 bits, " in capsys.readouterr().out
    assert main(["compress", str(DEMO), str(tmp_path / "plain")]) == 0
    lost = {
        name: divergence(PackedCheckpoint(tmp_path / name).load(ModelOptions("f32")), reference)
        for name in ("calibrated", "plain")
    }
    assert 0 < lost["calibrated"] < lost["plain"]
    # int4 while loading has its values at 8 bits
    assert divergence(load_model(DEMO, ModelOptions("int4")), reference) < lost["plain"]


def test_with_eight_bits_hardly_anything_is_lost_so_factors_cancel(reference: LoadedModel, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(corpus(2, examples(10)))
    skipped = [] if everything() else ["--skip", r"layers\.[1-9]"]
    assert main(["compress", str(DEMO), str(tmp_path / "out"), "--text", str(text), "--bits", "8", *skipped]) == 0
    assert divergence(PackedCheckpoint(tmp_path / "out").load(ModelOptions("f32")), reference) < 0.001


def test_what_is_written_says_what_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["compress", str(DEMO), str(out), "--skip", r"layers\.0\.", "--group-size", "64"]) == 0
    written = json.loads((out / "config.json").read_text())
    quantization = written.pop("quantization_config")
    assert written == json.loads((DEMO / "config.json").read_text())
    assert (quantization["quant_method"], quantization["format"]) == ("compressed-tensors", "pack-quantized")
    weights = quantization["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["symmetric"], weights["group_size"]) == (4, False, 64)
    assert "lm_head" in quantization["ignore"]
    assert "model.layers.0.mlp.down_proj" in quantization["ignore"]
    assert "model.layers.1.mlp.down_proj" not in quantization["ignore"]
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (DEMO / name).read_bytes()
    source = PackedCheckpoint(out)
    assert "model.layers.1.mlp.down_proj.weight" in source
    assert not list(out.parent.glob(".out-*"))


@pytest.mark.parametrize("bits", [4, 8])
def test_values_are_packed_the_first_in_the_lowest_bits(bits: int) -> None:
    matrix = quantize_groups(
        np.random.RandomState(0).standard_normal((5, 64)).astype(np.float32), bits=bits, group_size=32
    )
    tensors = packed_tensors("m", matrix, bits)
    packed, zero_points = tensors["m.weight_packed"], tensors["m.weight_zero_point"]
    count = 32 // bits
    assert (packed.dtype, packed.shape, zero_points.shape) == (np.int32, (5, 64 // count), (-(-5 // count), 2))
    first = int(packed[0, 0]) & 0xFFFFFFFF
    assert [first >> (bits * place) & ((1 << bits) - 1) for place in range(count)] == matrix.values[
        0, 0, :count
    ].tolist()
    assert int(zero_points[0, 1]) & ((1 << bits) - 1) == matrix.zero_points[0, 1, 0]
    assert np.array_equal(unpack(packed, 64, bits), matrix.values.reshape(5, 64))


def test_shards_have_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_SHARD_BYTES", 1 << 20)
    assert main(["compress", str(DEMO), str(tmp_path / "out")]) == 0
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert len(files) > 2


def test_a_compression_that_ends_early_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_file", stop)
    assert main(["compress", str(DEMO), str(tmp_path / "out")]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["{demo}"], 2, "needs two directories"),
        (["{demo}", "{there}"], 1, "there: must be a directory that does not exist yet"),
        (["{demo}", "{there}/a/b"], 1, "must be a new directory inside an existing one"),
        (["{demo}", "{there}/out", "--text", "nowhere.txt"], 1, "--text=nowhere.txt (command line): must be a file"),
        (["{demo}", "{there}/out", "--bits", "3"], 2, "--bits=3 (command line): must be one of 4, 8"),
        (["{demo}", "{there}/out", "--skip", "("], 2, "--skip=( (command line): must be a regular expression"),
        (["{demo}", "{there}/out", "--skp=1"], 2, "--skp (command line): unknown option; the nearest one is --skip"),
        (["{demo}", "{there}/out", "--skip", "layers"], 1, "there is no matrix to compress"),
        (["{packed}", "{there}/out"], 1, "config.json has a quantization_config"),
    ],
)
def test_what_cannot_be_compressed_is_one_line(
    words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    (tmp_path / "there").mkdir()
    config = json.loads((DEMO / "config.json").read_text()) | {"quantization_config": {"quant_method": "awq"}}
    (packed / "config.json").write_text(json.dumps(config))
    places = {"demo": DEMO, "there": tmp_path / "there", "packed": packed}
    assert main(["compress", *(word.format(**places) for word in words)]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dragoman:")]
    assert len(lines) == 1
    assert told in lines[0]
    assert list((tmp_path / "there").iterdir()) == []


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("MODEL_DIR OUT", "--text", "--bits", "--group-size", "--tokens", "--skip"))
