"""Builds the library of kernels, where there is a C++ compiler, and puts it into the package.

Run: `python native/build.py` after a change of the sources, with a Python that has the package openvino. Installing runs it,
too (hatch_build.py). It needs cmake and a C++ compiler: CXX, or else c++, g++ or clang++. A library that was built from the
same sources by the same compiler for the same OpenVINO stays. Where there is no compiler, or it fails, a file in the package
says why there is no library, and the exit code is 0: dragoman then computes with OpenVINO's kernels. `make check-native`
runs the native tests, `make check-native-arm` those for Arm's processors under emulation.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
PLACE = NATIVE.parent / "src" / "dragoman" / "kernels"
PRESENCE = PLACE / "presence.py"  # which reads what is put beside it
LIBRARY, STAMP, WHY_NOT = "libdragoman.so", "built_from.txt", "why_not.txt"
_COMPILERS = ("c++", "g++", "clang++")

_ARM_COMPILER, _ARM_EMULATOR, _ARM_ROOT = "aarch64-linux-gnu-g++", "qemu-aarch64-static", "/usr/aarch64-linux-gnu"
_ARM_PROCESSORS = {"max": "i8mm", "cortex-a76": "neon", "cortex-a72": "plain"}  # and the kernels that each is to choose


def compiler() -> str | None:
    """The C++ compiler, None if there is none: CXX if that is set, else the first that is found."""
    asked = shlex.split(os.environ.get("CXX", ""))
    return next((path for name in asked[:1] or _COMPILERS if (path := shutil.which(name))), None)


def configuring(build_dir: Path, *words: str) -> list[str]:
    """The command that configures a build in that directory."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    return ["cmake", "-S", str(NATIVE), "-B", str(build_dir), *generator, *words]


def building(build_dir: Path) -> list[str]:
    """The command that builds what was configured."""
    return ["cmake", "--build", str(build_dir), "--parallel"]


def run(command: list[str]) -> None:
    """Run it; its output is shown only if it fails. Raises: RuntimeError with the line of the output that tells the most."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        sys.stderr.write(done.stdout)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        told = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
        raise RuntimeError(f"{shlex.join(command[:2])} failed: {told}")


def build(build_dir: Path) -> Path:
    """The library for this Python's package openvino, built in that directory. Raises: RuntimeError if it cannot be."""
    spec = find_spec("openvino")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package openvino is not installed")
    configs = Path(spec.origin).parent / "cmake"
    run(configuring(build_dir, f"-DOpenVINO_DIR={configs}", f"-DTBB_DIR={configs}"))
    run(building(build_dir))
    return build_dir / LIBRARY


def native_tests(folder: str, *words: str) -> Path:
    """The native tests, built there with sanitizers, warnings being errors. Raises: RuntimeError if they cannot be."""
    build_dir = NATIVE.parent / "build" / folder
    flags = [f"-DDRAGOMAN_{name}=ON" for name in ("TESTS", "STRICT", "SANITIZE")]
    run(configuring(build_dir, *flags, *words))
    run(building(build_dir))
    return build_dir / "native_tests"


def check() -> int:
    """Run the native tests; the exit code."""
    return subprocess.run([native_tests("native-tests")], check=False).returncode


def check_arm() -> int:
    """Run the native tests on emulated Arm processors, each of which is to choose its kernels; the exit code."""
    missing = [name for name in (_ARM_COMPILER, _ARM_EMULATOR) if shutil.which(name) is None]
    if missing:
        sys.stderr.write(
            f"not checked: {' and '.join(missing)} not found (Debian: g++-aarch64-linux-gnu, qemu-user-static)\n"
        )
        return 1
    target = {"SYSTEM_NAME": "Linux", "SYSTEM_PROCESSOR": "aarch64", "CXX_COMPILER": _ARM_COMPILER}
    tests = native_tests("native-tests-arm", *(f"-DCMAKE_{name}={value}" for name, value in target.items()))
    is_right = True
    for processor, kernels in _ARM_PROCESSORS.items():
        command = [_ARM_EMULATOR, "-L", _ARM_ROOT, "-cpu", processor, str(tests)]
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # which the emulator cannot
        environment.pop("DRAGOMAN_KERNELS_ISA", None)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        sys.stdout.write(f"{processor}, for which {kernels} is right: {done.stdout}")
        is_right = is_right and done.returncode == 0 and f"{kernels}: 0 failures" in done.stdout.splitlines()
    return 0 if is_right else 1


def built_from(path: str) -> str:
    """Digests of all that the library is made from with that compiler and of its sources, and its OpenVINO's version."""
    openvino = version("openvino") if find_spec("openvino") else "none"
    told = subprocess.run([path, "--version"], capture_output=True, check=False).stdout
    sources = runpy.run_path(str(PRESENCE))["sources_digest"](NATIVE)
    facts = [platform.machine().encode(), path.encode(), told, openvino.encode(), sources.encode()]
    digest = hashlib.sha256(b"\0".join(hashlib.sha256(fact).digest() for fact in facts)).hexdigest()
    return f"{digest} {sources} {openvino}"


def put(name: str, contents: bytes) -> None:
    """Write a file of the package in one go: servers may have the old one open."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=PLACE, delete=False) as file:
        file.write(contents)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(PLACE / name)


def place() -> str:
    """Bring the package's library up to date; "" or why there is none."""
    path = compiler()
    if path is None:
        return "built without a C++ compiler"
    wanted = built_from(path)
    stamp = PLACE / STAMP
    if (PLACE / LIBRARY).is_file() and stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
        return ""
    try:
        with tempfile.TemporaryDirectory() as folder:
            put(LIBRARY, build(Path(folder)).read_bytes())
        put(STAMP, wanted.encode("ascii"))
    except (RuntimeError, OSError) as error:
        return f"not built: {error}"
    return ""


def main() -> int:
    """Build, and tell; the exit code."""
    parser = argparse.ArgumentParser(description="Build the library of kernels into src/dragoman/kernels.")
    checks = {"here": check, "arm": check_arm}
    told = "only build and run the native tests, with sanitizers; arm: for Arm's processors, under emulation"
    parser.add_argument("--check", nargs="?", const="here", choices=checks, help=told)
    if asked := parser.parse_args().check:
        return checks[asked]()
    why_not = place()
    try:
        for name in (LIBRARY, STAMP) if why_not else (WHY_NOT,):
            (PLACE / name).unlink(missing_ok=True)
        if why_not:
            put(WHY_NOT, why_not.encode())
    except OSError as error:  # installed from sources that this user may not change
        why_not = f"not built: {error}"
    if why_not:
        sys.stderr.write(f"no kernels of dragoman's own: {why_not}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
