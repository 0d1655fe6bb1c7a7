"""The rows' arithmetic: what they make of times, sizes and counters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.serving import bandwidth, peers, watch
from benchmarks.serving.load import Timing
from benchmarks.serving.model import block_type, stored_bytes
from benchmarks.serving.rows import (
    beside_llama_cpp,
    cold_start,
    decode,
    installed_size,
    interference,
    pressure,
    scaling,
    server_cost,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 64, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        "model.embed_tokens.weight": np.zeros((1000, 256), dtype=np.float16),
        "model.layers.0.mlp.up_proj.weight": np.zeros((512, 256), dtype=np.float16),
        "model.layers.0.input_layernorm.weight": np.zeros(256, dtype=np.float16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def test_weight_bytes_count_the_matrices_that_a_token_is_multiplied_by(model: Path) -> None:
    assert list(decode.matrix_shapes(model).values()) == [(512, 256)]
    assert decode.weight_bytes(model, "int8") == 512 * 256 + 512 * 2 * 3
    assert decode.weight_bytes(model, "int4") == 512 * 256 // 2 + 512 * 2 * 3
    assert stored_bytes("model.layers.0.self_attn.v_proj.weight", (64, 256), "int4") == 64 * (256 + 2 * 3)
    assert decode.gguf_weight_bytes(model, "Q4_0") == 512 * 256 * 18 // 32


def test_a_tied_embedding_is_also_the_output_layer(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    assert sorted(decode.matrix_shapes(model).values()) == [(512, 256), (1000, 256)]


def test_a_block_holds_keys_and_values_of_every_layer(model: Path) -> None:
    assert pressure.block_bytes(model) == 3 * 2 * 2 * 64 * 32 * 2


def test_gaps_are_told_apart_by_the_prefill_they_overlap() -> None:
    running = [Timing(0.0, [1.0, 1.1, 1.2, 2.2, 2.3]), Timing(0.0, [1.05, 1.15, 2.15])]
    quiet, busy = interference.gaps(running, begin_s=1.2, end_s=2.0)
    assert quiet == pytest.approx([100, 100, 100])
    assert busy == pytest.approx([1000, 1000])


def test_the_whole_prompt_comes_first_and_steps_that_would_hold_it_are_left_out() -> None:
    cases = interference.cases(300)
    assert list(cases) == ["prompt whole", "steps of 256", "steps of 128", "default"]
    assert cases["prompt whole"] == ("--max-step-slowdown", "0", "--max-batch-tokens", "364")
    assert cases["default"] == ()


def test_the_cost_of_the_server_is_compared_round_by_round() -> None:
    rates = ((90.0, 100.0, 10), (45.0, 50.0, 12), (99.0, 100.0, 11))
    cost = server_cost.fold([server_cost.Round(http, bare, steps, 1000) for http, bare, steps in rates])
    assert (cost.ratio, cost.ratio_min, cost.ratio_max) == (0.9, 0.9, 0.99)
    assert (cost.http_tokens_per_s, cost.kernel_tokens_per_s) == (90.0, 100.0)
    assert (cost.steps, cost.tokens) == (11, 1000)


def test_lengths_double_up_to_the_last() -> None:
    assert scaling.doubling(1, 128) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert scaling.doubling(128, 8192, factor=4) == [128, 512, 2048, 8192]
    assert scaling.doubling(1, 6) == [1, 2, 4, 6]
    assert scaling.doubling(1, 1) == [1]


def test_installed_size_adds_up_what_belongs_to_a_package(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, size in {
        "numpy/core.so": 3_000_000,
        "numpy.libs/blas.so": 2_000_000,
        "numpy-2.0.dist-info/RECORD": 1_000_000,
        "pip/pip.py": 9_000_000,
        "pip-23.dist-info/RECORD": 9_000_000,
        "six.py": 500_000,
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(bytes(size))
    os.link(packages / "numpy/core.so", packages / "numpy/same.so")
    measured = installed_size.measure(tmp_path)
    assert measured.total_mb == 6.5
    assert measured.packages_mb == {"numpy": 6.0, "six.py": 0.5}


def test_files_can_be_dropped_from_the_page_cache_without_harm(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 100_000)
    cold_start.drop_from_page_cache(iter([file]))
    assert file.read_bytes() == b"x" * 100_000


def test_rates_are_compared_in_the_same_round() -> None:
    ours = [{"one": 20.0, "many": 90.0}, {"one": 10.0, "many": 90.0}, {"one": 30.0, "many": 90.0}]
    theirs = [{"one": 10.0, "many": 30.0}, {"one": 10.0, "many": 45.0}]
    assert beside_llama_cpp.ratios(ours, theirs) == {"one": 1.5, "many": 2.5}


def test_half_of_a_files_values_and_ways_down_have_six_bits() -> None:
    down = [block_type(f"model.layers.{layer}.mlp.down_proj.weight", "Q4_K_M", 24) for layer in range(24)]
    assert [layer for layer, kind in enumerate(down) if kind == "Q6_K"] == [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]
    assert block_type("model.layers.0.mlp.up_proj.weight", "Q4_K_M", 24) == "Q4_K"
    assert block_type("lm_head.weight", "Q4_K_M", 24) == "Q6_K"
    assert block_type("lm_head.weight", "Q4_0", 24) == "Q4_0"


def test_llama_cpp_is_its_native_build_or_else_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_KERNELS_ISA", raising=False)
    file, binary = tmp_path / "model-Q4_0.gguf", peers.llamacpp_binary(tmp_path)
    wheel = peers.python_of(tmp_path, peers.LLAMACPP_WHEEL)
    for path in (file, wheel):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def program(*arguments: str) -> str | None:
        found = peers.llamacpp_server(tmp_path, file, 2, 64, *arguments)
        return None if found is None else found.command[0]

    assert (program(), program("--embeddings")) == (str(wheel), None)
    binary.parent.mkdir(parents=True)
    binary.touch()
    assert (program(), program("--embeddings")) == (str(binary), str(binary))
    monkeypatch.setenv("DRAGOMAN_KERNELS_ISA", "avx2")
    assert (program(), program("--embeddings")) == (str(wheel), str(binary))
    file.unlink()
    assert program() is None


def test_metrics_are_summed_over_models() -> None:
    text = '# HELP a b\ndragoman_steps_total{model="x"} 3.0\ndragoman_steps_total{model="y"} 4.0\nplain 1.5\n'
    assert watch.parse(text) == {"dragoman_steps_total": 7.0, "plain": 1.5}


def test_the_bandwidth_probe_finds_a_rate_that_memory_can_have() -> None:
    found = bandwidth.measure(size_bytes=2**26, repetitions=1, num_threads=1)
    assert 0.05 < found.gb_per_s < 5000
    assert found.kernel
    assert found.num_threads == 1
