"""`dragoman doctor` as a user runs it, and the model that it is asked about."""

from __future__ import annotations

import io
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import doctor, main
from dragoman.cli.doctor import DoctorArguments
from dragoman.cli.subcommand import Console
from dragoman.config.resolve import demo_model_dir
from dragoman.tools.doctor.machine import Machine


@pytest.fixture
def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


def report(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def texts(told: dict[str, Any], level: str) -> list[str]:
    return [one["text"] for one in told["findings"] if one["level"] == level]


def test_this_machine_serves_the_bundled_model(
    tmp_path: Path, free_port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = report(capsys, "--port", free_port, "--cache-dir", str(tmp_path), "--dtype", "f32")
    assert (code, told["can_serve"], texts(told, "problem")) == (0, True, [])
    assert {"processor", "memory", "disk", "software", "port", "model", "findings", "can_serve"} == told.keys()
    model = told["model"]
    assert (model["name"], model["context"], model["weights_type"]) == ("demo", 2048, "f32")
    weights = sum(path.stat().st_size for path in demo_model_dir().glob("*.safetensors"))
    assert weights / 2 < model["weights_bytes"] < 4 * weights
    assert model["cached_tokens"] >= model["context"]
    assert told["disk"]["caches"][0]["path"] == str(tmp_path)
    assert told["software"]["packages"]["openvino"]


def test_the_table_names_every_part(free_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", free_port]) == 0
    out = capsys.readouterr().out
    for part in ("processor", "memory", "disk", "software", "port", "model"):
        assert f"\n{part} " in f"\n{out}"
    assert "a server would start (0 problems" in out


def test_a_busy_port_ends_it_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, told = report(capsys, "--port", str(taken.getsockname()[1]))
    assert (code, told["can_serve"], told["port"]["is_free"]) == (1, False, False)


def test_a_model_that_is_not_there_is_a_problem_beside_which_all_else_is_told(
    tmp_path: Path, free_port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = report(capsys, str(tmp_path), "--port", free_port)
    assert code == 1
    assert any("there is no model in" in text for text in texts(told, "problem"))
    code, told = report(capsys, str(tmp_path / "none"), "--port", free_port, "--dtype", "int3")
    assert code == 1
    assert any(text.startswith("--dtype=int3 (command line): must be one of") for text in texts(told, "problem"))
    assert told["processor"]["name"]


def large_model(directory: Path, num_layers: int) -> Path:
    """A Llama whose files say that it is large; they take no room, and hold nothing."""
    directory.mkdir()
    hidden, rows = 4096, 14336
    config = json.loads((demo_model_dir() / "config.json").read_text(encoding="utf-8"))
    config |= {
        "hidden_size": hidden, "intermediate_size": rows, "num_hidden_layers": num_layers, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "tokenizer.json").write_text("{}", encoding="utf-8")
    shapes = {"model.embed_tokens.weight": (32000, hidden), "model.norm.weight": (hidden,)}
    for i in range(num_layers):
        name = f"model.layers.{i}"
        shapes |= {f"{name}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (hidden, hidden) for part in "qo"}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (1024, hidden) for part in "kv"}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (rows, hidden) for part in ("gate", "up")}
        shapes[f"{name}.mlp.down_proj.weight"] = (hidden, rows)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    encoded = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.truncate(8 + len(encoded) + end)  # a hole
    return directory


def examined(model: Path, available_kb: int, root: Path, port: str) -> tuple[int, dict[str, Any]]:
    """What is said of the model on a machine with so much memory."""
    for name, text in (
        ("meminfo", f"MemTotal: {available_kb} kB\nMemAvailable: {available_kb} kB\n"),
        ("cpuinfo", "processor : 0\nmodel name : Fake\nflags : sse4_2 avx2 avx512f avx512_vnni\n"),
    ):
        path = root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    out = io.StringIO()
    asked = DoctorArguments((str(model), "--port", port), json=True)
    code = doctor.run(None, asked, Console({"HOME": str(root)}, out, out), Machine(root))
    return code, json.loads(out.getvalue())


def test_with_2_gb_of_memory_a_large_model_is_refused_with_both_numbers(tmp_path: Path, free_port: str) -> None:
    model = large_model(tmp_path / "large", 16)
    code, told = examined(model, 2_000_000, tmp_path / "small", free_port)
    assert code == 1
    [problem] = texts(told, "problem")
    assert problem.startswith("model large does not fit into memory: it needs ")
    assert problem.endswith("1953 MiB are available")
    code, told = examined(model, 64_000_000, tmp_path / "roomy", free_port)
    assert (code, texts(told, "problem")) == (0, [])
    model_facts = told["model"]
    assert 3.5e9 < model_facts["weights_bytes"] < 4.5e9, "3.6 billion weights of a byte"
    assert model_facts["context"] == 8192
    speed, bandwidth = model_facts["estimated_tokens_per_s"], told["memory"]["bytes_per_s"]
    assert 0 < speed["from"] < speed["to"] < bandwidth / model_facts["weights_bytes"]


def test_a_wrong_value_of_its_own_option_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json=perhaps"]) == 2
    assert capsys.readouterr().err.startswith("dragoman: --json=perhaps (command line): must be ")
    assert main(["doctor", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: dragoman doctor [MODEL] [options]")
