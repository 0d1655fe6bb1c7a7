"""Opens the weights of a model, in either kind of file, and lets the system read them ahead. Called once per start."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dragoman.files.model_texts import is_gguf
from dragoman.models.sources.safetensors import SafetensorsWeights

if TYPE_CHECKING:
    from dragoman.models.stored.gguf_files import GgufWeights

StoredWeights: TypeAlias = "SafetensorsWeights | GgufWeights"
"""The weights of a model, told from headers alone."""


def stored_weights(model: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> StoredWeights:
    """The weights of the model at that path. `keeps_mxfp4`: matrices of MXFP4 stay packed; else they are numbers.

    `keeps_rows`: our kernels read quantised rows of GGUF files, and MXFP4 in four bits. Raises: ModelError.
    """
    if is_gguf(model):
        from dragoman.models.stored.gguf_files import GgufWeights

        return GgufWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
    return SafetensorsWeights(model, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)


_PIECE_BYTES = 1 << 20  # advice on more at a time is cut short by the kernel (its largest read of a device)


def read_ahead(paths: Sequence[Path]) -> None:
    """Begin to bring the files into the page cache, and return at once; does nothing where they would crowd it."""
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        is_small = sum(path.stat().st_size for path in paths) < free_bytes // 2
    except (OSError, ValueError):
        return
    if is_small:  # otherwise the kernel would drop the first pages, unread, for the last
        threading.Thread(target=_advise, args=(paths,), name="read-ahead", daemon=True).start()


def _advise(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            _advise_file(path)
        except OSError:  # reading the file will tell what is wrong with it
            return


def _advise_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        for offset in range(0, size, _PIECE_BYTES):
            last = min(offset + _PIECE_BYTES, size) - 1
            if not (_is_cached(descriptor, offset) and _is_cached(descriptor, last)):
                os.posix_fadvise(descriptor, offset, _PIECE_BYTES, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


def _is_cached(descriptor: int, offset: int) -> bool:
    """False also if the system does not tell. Advice on cached pages takes the kernel as long as copying."""
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except (OSError, AttributeError):  # not now, or never: not every file system tells, nor every system
        return False
