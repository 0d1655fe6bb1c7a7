"""Servers of other projects on the demo model, for the tests that have one behind dragoman. docs/testing.md tells how.

Does: start what environment variables name, on a free port, and wait until it answers. Does not: install anything.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dragoman.config.resolve import demo_model_dir

OURS_GENERATED = "dragoman_generation_tokens_total"
PATIENCE_S = 300.0
NUM_SLOTS = 8


@dataclass(frozen=True, eq=False)
class OtherServer:
    """A server of another project. `variables`: what has to be set for it; `command`: how it is started on a port.

    `generated`: the sample of its metrics that counts the tokens it has generated.
    """

    name: str
    variables: tuple[str, ...]
    command: Callable[[int, int], Sequence[str]]  # (port, tokens of a sequence)
    environ: Mapping[str, str]
    generated: str

    @property
    def is_there(self) -> bool:
        """Whether the environment names it."""
        return all(os.environ.get(name) for name in self.variables)

    @property
    def reason(self) -> str:
        """What has to be done before it can be tested with."""
        return f"needs {' and '.join(self.variables)} (docs/testing.md)"

    @contextmanager
    def running(self, max_model_len: int) -> Iterator[str]:
        """The address of one that is ready, for sequences of so many tokens; it ends with the block."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                self.command(port, max_model_len),
                stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **self.environ},
            )  # fmt: skip
            try:
                _wait(f"http://127.0.0.1:{port}", process)
                yield f"http://127.0.0.1:{port}"
            except AssertionError as error:
                log.seek(0)
                error.add_note(log.read()[-4000:])
                raise
            finally:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return once it answers."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert process.poll() is None, "it has ended"
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)  # between two questions, not for something to have happened
    raise AssertionError("it does not answer")


def sample_of(url: str, name: str) -> float:
    """The sample of that name in the metrics of the server at a base URL, of all labels together."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def _llama_cpp(port: int, max_model_len: int) -> Sequence[str]:
    words = [
        "--host",
        "127.0.0.1",
        "--alias",
        "demo",
        "--threads",
        "1",
        "--no-webui",
        "--metrics",
        "--cache-type-k",
        "f32",
        "--cache-type-v",
        "f32",
    ]
    size = ["--parallel", str(NUM_SLOTS), "--ctx-size", str(NUM_SLOTS * max_model_len), "--port", str(port)]
    binary, model = os.environ["DRAGOMAN_TEST_LLAMA_SERVER"], os.environ["DRAGOMAN_TEST_LLAMA_GGUF"]
    return [binary, "--model", model, *words, *size]


def _vllm(port: int, max_model_len: int) -> Sequence[str]:
    words = "--host 127.0.0.1 --served-model-name demo --dtype float32 --enforce-eager --enable-prompt-tokens-details"
    return [
        os.environ["DRAGOMAN_TEST_VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server", *words.split(),
        "--model", str(demo_model_dir()), "--port", str(port), "--max-model-len", str(max_model_len),
    ]  # fmt: skip


LLAMA_CPP = OtherServer(
    "llama.cpp",
    ("DRAGOMAN_TEST_LLAMA_SERVER", "DRAGOMAN_TEST_LLAMA_GGUF"),
    _llama_cpp,
    {},
    "llamacpp:tokens_predicted_total",
)
VLLM = OtherServer(
    "vLLM",
    ("DRAGOMAN_TEST_VLLM_PYTHON",),
    _vllm,
    {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""},
    "vllm:generation_tokens_total",
)
OTHERS = (LLAMA_CPP, VLLM)
