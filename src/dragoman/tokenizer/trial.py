"""Tries a tokenizer in a process of its own, which the kernel ends if it takes too much.

Does: encode a text that exercises the patterns, within bounds on time and memory. Does not: look at the
vocabulary, which such a process would take as long to load as the server. `try_parts` is called by `soundness`, at load
time; the process runs the other half of this file, which therefore imports none of our modules.
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

MAX_CPU_S = 1.0  # honest tokenizers take a tenth of it
MAX_BYTES = 512 << 20  # beyond what the process takes at its start
_MAX_WAIT_S = 60.0  # where the processors are busy

_RUN = 30_000  # characters of one kind, for patterns that take time with the square of them
_MOST_WORDS = 300  # of what a process says of a failure


class Refused(Exception):
    """The tokenizer takes more time or memory than there is, or fails."""


def try_parts(parts: Mapping[str, Any]) -> None:
    """Encode with these parts of a tokenizer.json. Raises: Refused, saying why."""
    command = [sys.executable, "-P", __file__]  # not its own folder, which holds modules called as libraries are
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
    """Encode with the parts from the standard input, in as much memory and time as there is."""
    parts = json.loads(sys.stdin.buffer.read())
    tokenizers = importlib.import_module("tokenizers")
    with open("/proc/self/statm", "rb") as statm:
        now_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # by which the kernel ends the process
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
    except BaseException as error:  # the library's panics are of this kind
        sys.stdout.write(f"it fails: {' '.join(str(error).split())[:_MOST_WORDS]}")
        sys.stdout.flush()
        sys.exit(1)


def _probe(parts: Any) -> Iterator[str]:
    """Text of all kinds: what the patterns name, ASCII, runs of one character."""
    yield from (text * 16 for text in _texts(parts))
    yield "".join(map(chr, range(1, 127)))
    for character in "aA1 \n.-_é漢😀\u0301":
        yield character * _RUN


def _texts(part: Any) -> Iterator[str]:
    """The short texts in the parts, at any depth."""
    children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for child in children:
        if isinstance(child, str) and len(child) <= 64:
            yield child
        else:
            yield from _texts(child)


if __name__ == "__main__":
    main()
