"""Hashes a model's files: samples of them for clients that compare answers, all bytes for caches of exactly these weights.

Called by the composition root and the engine's factory, once per model. Digests of unchanged files are remembered.
"""

from __future__ import annotations

import hashlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from dragoman import __version__
from dragoman.files.ownership import open_own, own_directory
from dragoman.gguf.files import files_that_see, gguf_files

_SAMPLE_BYTES = 1 << 20
_NUM_CHARACTERS = 10
_WEIGHTS = ("*.safetensors", "*.gguf", "openvino_*.xml", "openvino_*.bin")


def model_fingerprint(model_dir: Path, *settings: str) -> str:
    """`fp_` and ten hexadecimal digits; the same for the same files, settings and release on any machine."""
    digest = hashlib.sha256("\0".join((__version__, *settings)).encode())
    for path in sorted([*weight_files(model_dir), model_dir / "config.json"]):
        if path.is_file():
            digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(_sample(path))
    return f"fp_{digest.hexdigest()[:_NUM_CHARACTERS]}"


def weight_files(model_dir: Path) -> list[Path]:
    files = (*gguf_files(model_dir), *files_that_see(model_dir)) if model_dir.is_file() else ()
    return sorted([*files, *(path for pattern in _WEIGHTS for path in model_dir.glob(pattern))])


def _sample(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(_SAMPLE_BYTES)
        file.seek(max(len(begin), size - _SAMPLE_BYTES))
        return begin + file.read()


logger = logging.getLogger(__name__)

_PIECE = 32 << 20  # bytes that one thread reads and hashes
_MAX_THREADS = 8
_MEMO = "contents.json"
_MOST_REMEMBERED = 4096  # files
_READ_TOO = ("config.json", "preprocessor_config.json", "processor_config.json", "openvino_config.json")
_Memo = dict[str, tuple[list[int], str]]  # path -> the system's facts of the file, digest


def contents_digest(model_dir: Path, memo_dir: Path | None) -> str:
    """A digest of all bytes that decide the numbers. `memo_dir`: remembers digests of files. Raises: OSError."""
    files = [path.resolve() for path in weight_files(model_dir)]
    files += [path.resolve() for name in _READ_TOO if (path := model_dir / name).is_file()]
    memo = _Remembered(memo_dir)
    whole = blake2b(digest_size=16)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as pool:
        for path in files:
            whole.update(bytes.fromhex(memo.digest(path, pool)))
    memo.save()
    return whole.hexdigest()


class _Remembered:
    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._is_changed = False
        self._known: _Memo = {}
        if directory is not None:
            with suppress(OSError, msgspec.MsgspecError), open_own(directory / _MEMO) as file:
                self._known = msgspec.json.decode(file.read(), type=_Memo)

    def digest(self, path: Path, pool: ThreadPoolExecutor) -> str:
        facts = _facts(path)
        known = self._known.get(str(path))
        if known is not None and known[0] == facts:
            return known[1]
        digest = _hashed(path, facts[2], pool)
        self._known.pop(str(path), None)
        if _facts(path) == facts:  # otherwise it was written meanwhile
            self._known[str(path)] = facts, digest
            self._is_changed = True
        return digest

    def save(self) -> None:
        if self._directory is None or not self._is_changed:
            return
        kept = dict(list(self._known.items())[-_MOST_REMEMBERED:])
        try:
            own_directory(self._directory)
            part = self._directory / f"{_MEMO}.{os.getpid()}"
            part.write_bytes(msgspec.json.encode(kept))
            part.replace(self._directory / _MEMO)
        except OSError as error:
            logger.warning("digests of weights cannot be remembered: %s", error)


def _facts(path: Path) -> list[int]:
    """Facts that change when a file does; the last one also if a program sets the others back."""
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _hashed(path: Path, size: int, pool: ThreadPoolExecutor) -> str:
    whole = blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:

        def piece(begin: int) -> bytes:
            return blake2b(_read_at(file, begin), digest_size=32).digest()

        for digest in pool.map(piece, range(0, size, _PIECE)):
            whole.update(digest)
    return whole.hexdigest()


def _read_at(file: Any, begin: int) -> bytes:
    parts: list[bytes] = []
    end = begin + _PIECE
    while begin < end and (part := os.pread(file.fileno(), end - begin, begin)):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)
