"""Builds the wheel, and checks it as somebody has it who installs it: what is in it, how large it is, that it serves.

Run: `python scripts/check_wheel.py` from the repository's root (`make wheel` does). It builds an sdist and from that the
wheel, installs the wheel into a fresh virtual environment of the Python that runs this (or of `--python PATH`), at the
versions of constraints.txt, and there, outside of the repository, asks for the version and serves the bundled model once.
Prints a line for each thing that was checked and for each problem, and exits 1 if there is one. The wheel stays in dist/.
pip fetches what the build needs, and the runtime's dependencies.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

DIST, PACKAGE = Path("dist"), Path("src") / "dragoman"
MAX_WHEEL_BYTES = 40_000_000  # of which the two bundled models are 26
MAX_INSTALLED_BYTES = (
    420_000_000  # with all that is installed beside it, OpenVINO's 180 million among it: docs/install.md
)
REQUIRED = (
    "dragoman/py.typed",
    "dragoman/config/foreign_options.toml",
    *(f"dragoman/{model}/{name}" for model in ("demo_model", "demo_vision_model") for name in
      ("config.json", "model.safetensors", "tokenizer.json")),
)  # fmt: skip
START_S, ANSWER_S, STOP_S = 120, 60, 60

# What native/build.py puts into the package: the library of kernels and what it was built from, or why there is none.
BUILT = {"dragoman/kernels/libdragoman.so", "dragoman/kernels/built_from.txt"}
NOT_BUILT = {"dragoman/kernels/why_not.txt"}

_READY = re.compile(r"serves .* at (https?://\S+)")


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def kept_files(root: Path = PACKAGE) -> set[str]:
    """The files of the package that git has, or would have, as the wheel names them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", str(root)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {str(Path(line).relative_to(root.parent)) for line in lines if Path(line).exists()}


def content_problems(names: Sequence[str], expected: Iterable[str]) -> Iterator[str]:
    """A line for each file that is not in the wheel and should be, or the other way round."""
    inside = {name for name in names if not re.match(r"dragoman-[^/]*\.dist-info/", name)}
    for name in sorted({*expected, *REQUIRED} - inside):
        yield f"the wheel lacks {name}"
    for name in sorted(inside - set(expected)):
        yield f"the wheel has {name}, which is no file of {PACKAGE}"


def kernel_problems(wheel: str, names: Sequence[str], *, has_compiler: bool) -> Iterator[str]:
    """A line if the wheel has no library where there is a C++ compiler, or is tagged for other machines than it is for."""
    has_library = set(names) >= BUILT
    if has_compiler and not has_library:
        yield "the wheel lacks the library of kernels, and there is a C++ compiler: `python native/build.py` tells why"
    if wheel.endswith("-none-any.whl") == has_library:
        told = "all machines, and has" if has_library else "one kind of machine, and lacks"
        yield f"{wheel} is tagged for {told} the library of kernels"


def size_problem(what: str, size: int, limit: int) -> Iterator[str]:
    """A line if that is larger than it may be; sizes in bytes."""
    if size > limit:
        yield f"{what} has {size / 1e6:.0f} MB, at most {limit / 1e6:.0f} are allowed"


def installed_bytes(environment: Path) -> int:
    """The bytes of an environment's files, without what Python compiles of them, and what links lead to."""
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.parent.name != "__pycache__")


def pip_environment() -> dict[str, str]:
    """The environment in which pip keeps to the pinned versions, and what it builds with too."""
    constraints = str(Path("constraints.txt").resolve())
    return {**os.environ, "PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}


def pip(*words: str) -> None:
    """Run pip of this Python. Raises: CalledProcessError, after pip has said why."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True, env=pip_environment())


def build() -> tuple[Path, Path]:
    """The sdist and the wheel that is built from it, both made anew in dist/."""
    for old in (*DIST.glob("dragoman-*.whl"), *DIST.glob("dragoman-*.tar.gz")):
        old.unlink()
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(DIST)], check=True, env=pip_environment(), stdout=sys.stderr
    )
    (sdist,), (wheel,) = DIST.glob("dragoman-*.tar.gz"), DIST.glob("dragoman-*.whl")
    return sdist, wheel


def sdist_problems(sdist: Path) -> Iterator[str]:
    """A line for each thing that somebody would miss who builds, or tests, from the sdist."""
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    for name in (
        "LICENSE",
        "native",
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "pyproject.toml",
        "src",
        "tests",
    ):
        if name not in tops:
            yield f"the sdist lacks {name}"


def install(wheel: Path, python: str, place: Path) -> Path:
    """Install the wheel, and what it depends on, into a new environment at `place`; where its programs are."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
    programs = place / "bin"
    pip("--python", str(programs / "python"), "install", str(wheel))
    return programs


def instruction_set(programs: Path, folder: str) -> str:
    """The instructions that the installed library of kernels uses. Raises: CalledProcessError if it cannot be loaded."""
    code = "from dragoman.kernels.native import library; print(library().instruction_set)"
    command = [str(programs / "python"), "-c", code]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def served_answer(programs: Path, folder: Path) -> str:
    """What the bundled model answers when the installed program serves it from `folder`, and then ends as it should."""
    command = [str(programs / "dragoman"), "serve", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    watch = signal.signal(signal.SIGALRM, lambda *_: process.kill())  # a server that hangs ends the loop below
    signal.alarm(START_S)
    try:
        for line in process.stdout:
            said.append(line)
            if ready := _READY.search(line):
                break
        else:
            raise SystemExit("the installed program does not serve:\n" + "".join(said))
        body = {"messages": [{"role": "user", "content": "What is a river?"}], "max_tokens": 16, "model": "demo"}
        request = urllib.request.Request(
            f"{ready[1]}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
        process.terminate()
        if code := process.wait(timeout=STOP_S):
            raise SystemExit(f"the installed program ended with {code} when it was asked to end")
        return str(text)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, watch)
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def installed_problems(wheel: Path, python: str) -> Iterator[str]:
    """A line for each problem of the installed program; prints what it found besides."""
    with tempfile.TemporaryDirectory() as folder:
        programs = install(wheel, python, Path(folder) / "environment")
        size = installed_bytes(Path(folder) / "environment")
        tell(f"installed: {size / 1e6:.0f} MB with everything that it needs, without bytecode")
        yield from size_problem("the environment", size, MAX_INSTALLED_BYTES)
        version = subprocess.run(
            [programs / "dragoman", "--version"], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()
        tell(f"dragoman --version: {version}")
        if version.split() != ["dragoman", wheel.name.split("-")[1]]:
            yield f"dragoman --version says {version!r}, the wheel is {wheel.name}"
        if not wheel.name.endswith("-none-any.whl"):
            tell(f"the library of kernels computes with {instruction_set(programs, folder)}")
        text = served_answer(programs, Path(folder))
        tell(f"the bundled model answered: {text!r}")
        if not text.strip():
            yield "the bundled model answered nothing"


def main(words: Sequence[str]) -> int:
    """Build, check, install and run; the exit code."""
    parser = argparse.ArgumentParser(description="Build the wheel, install it in a fresh environment, and try it.")
    parser.add_argument("--python", default=sys.executable, help="the Python to install it for; this one by default")
    python = parser.parse_args(words).python
    sdist, wheel = build()
    names = ZipFile(wheel).namelist()
    tell(f"{wheel}: {wheel.stat().st_size / 1e6:.0f} MB, {len(names)} files")
    problems = [
        *content_problems([name for name in names if name not in BUILT | NOT_BUILT], kept_files()),
        *kernel_problems(wheel.name, names, has_compiler=any(map(shutil.which, ("c++", "g++", "clang++")))),
        *size_problem("the wheel", wheel.stat().st_size, MAX_WHEEL_BYTES),
        *sdist_problems(sdist),
        *installed_problems(wheel, python),
    ]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
