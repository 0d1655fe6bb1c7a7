"""Tries a tokenizer's parts in a separate process, which the kernel ends if it takes too much.

The process runs the rest of this file, which therefore imports none of our modules.
"""

from __future__ import annotations

import importlib
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

MAX_CPU_S = 1.0  # real tokenizers take a tenth of it
MAX_BYTES = 512 << 20  # beyond the process's memory at its start
_MAX_WAIT_S = 60.0  # when the processors are busy

_RUN = 30_000  # equal characters, for patterns whose time grows with the square
_MOST_WORDS = 300  # characters of an error


class Refused(Exception):
    """The tokenizer takes more time or memory than there is, or fails."""


def try_parts(parts: Mapping[str, Any]) -> None:
    """Encode with these parts of a tokenizer.json. Raises: Refused with the reason."""
    command = [sys.executable, "-P", __file__]  # without its own folder, whose modules are named like libraries
    try:
        done = subprocess.run(
            command, input=json.dumps(parts).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=_MAX_WAIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"it could not be tried in a process of its own: {error}") from error
    if done.returncode:
        costs = f"it takes more than {MAX_CPU_S:g} s or {MAX_BYTES >> 20} MiB for a short text"
        raise Refused(done.stdout.decode("utf-8", "replace") or costs)


def main() -> None:
    parts = json.loads(sys.stdin.buffer.read())
    tokenizers = importlib.import_module("tokenizers")
    with open("/proc/self/statm", "rb") as statm:
        now_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel ends the process with it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MAX_BYTES, now_bytes + MAX_BYTES))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    empty: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "decoder": None}
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**empty, **parts, "model": model}))
        text = "".join(_probe(parts))
        tokenizer.encode_batch_fast([text], add_special_tokens=True)
        tokenizer.encode(text[-1000:], text[:1000], add_special_tokens=True)
    except BaseException as error:  # the library's panics too
        sys.stdout.write(f"it fails: {' '.join(str(error).split())[:_MOST_WORDS]}")
        sys.stdout.flush()
        sys.exit(1)


def _probe(parts: Any) -> Iterator[str]:
    """Text of all kinds: the texts in the patterns, ASCII, runs of one character."""
    yield from (text * 16 for text in _texts(parts))
    yield "".join(map(chr, range(1, 127)))
    for character in "aA1 \n.-_é漢😀\u0301":
        yield character * _RUN


def _texts(part: Any) -> Iterator[str]:
    children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for child in children:
        if isinstance(child, str) and len(child) <= 64:
            yield child
        else:
            yield from _texts(child)


if __name__ == "__main__":
    main()
