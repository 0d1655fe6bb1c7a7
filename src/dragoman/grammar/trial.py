"""Tries a grammar in a separate process, which the kernel ends beyond its limits, as llguidance does not count all.

The compiler calls `check_cost`; the process runs the rest of this file, which therefore imports nothing from dragoman.
"""

from __future__ import annotations

import contextlib
import importlib
import resource
import subprocess
import sys

MAX_CPU_S = 5  # ordinary grammars take less than one second
MAX_BYTES = 512 << 20  # beyond the process' memory at its start
_MAX_WAIT_S = 60.0  # where the processors are busy

_NUM_BYTES = 256


class TooCostly(Exception):
    """The grammar takes more time or memory to compile than allowed."""


def check_cost(source: str) -> None:
    """Compile llguidance's input as a trial; a grammar that does not compile passes.

    Raises: TooCostly; OSError if no process can be started, TimeoutError if the processors are too busy for it.
    """
    command = [sys.executable, "-P", __file__]  # not its own folder, where a module has the name of a library
    try:
        done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=_MAX_WAIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    if done.returncode:
        raise TooCostly


class _Bytes:
    eos_token_id = _NUM_BYTES
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(_NUM_BYTES)), b"<eos>"]  # noqa: RUF012 (never changed)
    special_token_ids = [_NUM_BYTES]  # noqa: RUF012

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main() -> None:
    source = sys.stdin.buffer.read().decode()
    llguidance = importlib.import_module("llguidance")
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
    with open("/proc/self/statm", "rb") as statm:
        now_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MAX_BYTES, now_bytes + MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    with contextlib.suppress(ValueError):  # it does not compile: the next compilation reports the error
        llguidance.LLMatcher(tokenizer, source, log_level=0).compute_bitmask()


if __name__ == "__main__":
    main()
