"""`dragoman serve` as an operator runs it: the real command, the demo model, signals, files, mistakes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.cli.serve import failure_policy
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.host.recovery import FailurePolicy
from tests.support.server_process import ServerProcess, serve


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo model with files of an operator."""
    directory = tmp_path_factory.mktemp("models") / "own-model"
    shutil.copytree(demo_model_dir(), directory)
    (directory / "serving.properties").write_text(
        "engine=Python\noption.tgi_compat=true\noption.max_model_len=128\noption.tensor_parallel_degree=4\n",
        encoding="utf-8",
    )
    (directory / "keys").write_text("first-key\nsecond-key\n", encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def server(model_dir: Path) -> Iterator[ServerProcess]:
    keys = str(model_dir / "keys")
    environ = {"OPTION_MAX_MODEL_LEN": "64", "OPTION_MAX_BEST_OF": "2", "API_KEY": "third-key", "HF_TOKEN": ""}
    with serve(str(model_dir), "--api-key-file", keys, "--kv-cache-gb", "0.01", environ=environ) as running:
        yield running


def call(server: ServerProcess, path: str, body: object, key: str = "first-key") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.base_url}{path}", json=body, headers=headers, timeout=60)


def test_the_files_options_act_and_precede_variables(server: ServerProcess) -> None:
    answer = call(server, "/invocations", {"inputs": "Hello", "parameters": {"max_new_tokens": 3}})
    assert answer.status_code == 200
    assert isinstance(answer.json(), list), "tgi_compat makes it a list"
    models = httpx.get(f"{server.base_url}/v1/models", headers={"Authorization": "Bearer first-key"}, timeout=60).json()
    assert models["data"][0]["max_model_len"] == 128


def test_a_variable_acts_without_an_option_in_the_file(server: ServerProcess) -> None:
    answer = call(server, "/v1/completions", {"model": "own-model", "prompt": "Hi", "n": 3})
    assert answer.status_code == 400
    assert "2" in answer.json()["error"]["message"]


def test_the_cache_has_the_requested_size(server: ServerProcess) -> None:
    samples = server.metrics("first-key")
    bytes_per_block = 32 * 2 * 2 * 64 * 2 * 6  # tokens, keys and values, heads, head size, bf16, layers
    assert samples["dragoman_kv_blocks"] <= 0.01 * 1024**3 / bytes_per_block * 2  # u8 or bf16, never f32
    assert samples["dragoman_kv_blocks"] >= 1


@pytest.mark.parametrize("key", ["first-key", "second-key", "third-key"])
def test_every_key_is_accepted(server: ServerProcess, key: str) -> None:
    assert call(server, "/v1/completions", {"prompt": "Hi", "max_tokens": 1}, key).status_code == 200


def test_calls_without_a_key_are_refused(server: ServerProcess) -> None:
    assert call(server, "/v1/completions", {"prompt": "Hi"}, "wrong").status_code == 401


def test_options_without_effect_are_reported_once(server: ServerProcess) -> None:
    notes = [line for line in server.output if "note:" in line]
    assert len(notes) == 1
    assert "option.tensor_parallel_degree=4" in notes[0]
    assert "line 4): no effect here; the model runs on the CPU" in notes[0]


def test_loading_stages_are_plain_lines_before_the_banner(server: ServerProcess) -> None:
    text = "".join(server.output)
    assert "\x1b" not in text
    assert text.index("  own-model: compiling: ") < text.index("serves own-model at http://127.0.0.1:")


def test_the_line_to_copy_works(server: ServerProcess) -> None:
    found = re.search(r"\n  (curl .*\\\n.*)\n", "".join(server.output))
    assert found is not None
    command = found[1].replace("YOUR_KEY", "first-key").replace("curl ", "curl -s -f ", 1)
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert '"choices"' in result.stdout


def test_a_server_can_start_without_a_model(tmp_path: Path) -> None:
    with serve("--load-models", "NONE", "--model-store", str(tmp_path)) as running:
        assert "serves no model yet" in "".join(running.output)
        assert str(tmp_path) in "".join(running.output)
        assert httpx.get(f"{running.base_url}/ping", timeout=60).status_code == 200
        assert httpx.get(f"{running.base_url}/health", timeout=60).status_code == 200
        answer = httpx.post(f"{running.base_url}/v1/completions", json={"prompt": "Hi"}, timeout=60)
        assert answer.status_code == 404
        assert "no model is loaded" in answer.json()["error"]["message"]
        assert running.terminate() == 0


@pytest.mark.varies("a start of the real server, a completion over HTTP, and how a signal ends it")
def test_lmis_own_command_line_serves_a_packed_model(tmp_path: Path) -> None:
    """`-f` with LMI's config.properties, and a store with an archive.

    SIGINT ends it cleanly.
    """
    (tmp_path / "store").mkdir()
    with tarfile.open(tmp_path / "store" / "packed.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(demo_model_dir(), ".")
    (tmp_path / "config.properties").write_text(
        f"model_store={tmp_path}/store\nload_models=ALL\nmax_request_size=100\noption.max_model_len=64\n"
        "number_of_netty_threads=2\n",
        encoding="utf-8",
    )
    cache = ("--cache-dir", str(tmp_path / "cache"))
    with serve("-f", str(tmp_path / "config.properties"), *cache, environ={"HF_TOKEN": ""}) as running:
        [model] = httpx.get(f"{running.base_url}/models", timeout=60).json()["models"]
        assert model["modelName"] == "packed"
        body = {"inputs": "Hello", "parameters": {"max_new_tokens": 2}}
        assert httpx.post(f"{running.base_url}/predictions/packed", json=body, timeout=60).status_code == 200
        body["inputs"] = "Hello" * 20
        assert httpx.post(f"{running.base_url}/predictions/packed", json=body, timeout=60).status_code == 413
        notes = [line for line in running.output if "note:" in line]
        assert len(notes) == 1
        assert f"number_of_netty_threads=2 ({tmp_path}/config.properties line 5): no effect here" in notes[0]
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(timeout=60) == 0
    assert "Traceback" not in "".join(running.output)


def failing(*words: str) -> str:
    """The errors of a command that cannot serve; it ends by itself, with an error code and without a traceback."""
    result = subprocess.run(
        [sys.executable, "-m", "dragoman", "serve", "--port", "0", *words],
        env=dict(os.environ), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


@pytest.mark.varies("the exit code, and an error of the system in its own words")
def test_a_taken_port_gives_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = failing("--port", str(port)).splitlines()[-1]
    assert message == (
        f"dragoman: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "--port takes another one (0: any that is free), `dragoman doctor` tells who has it"
    )


@pytest.mark.full("as the length that does not fit below; test_first_mistakes.py has the message")
def test_a_directory_without_a_model_gives_one_line(tmp_path: Path) -> None:
    assert f"{tmp_path} is not a model: there is neither config.json nor a GGUF file in it" in failing(str(tmp_path))


def test_an_option_that_does_not_fit_the_model_gives_one_line() -> None:
    message = failing("--max-model-len", "999999")
    assert "--max-model-len=999999 (command line): must be at most 2048, the model's context length" in message


def test_options_set_the_reaction_to_a_dead_engine(tmp_path: Path) -> None:
    line = "--on-engine-failure restart-then-exit --max-engine-restarts 5 --engine-restart-window 60"
    assert failure_policy(resolve(read_arguments(line.split()).givens, {}, tmp_path)) == FailurePolicy(
        "restart-then-exit", 5, 60.0
    )
    assert failure_policy(resolve([], {}, tmp_path)) == FailurePolicy()
