"""Keeps compiled graphs and packed weights in files for later starts, which map them: servers share their pages.

A name tells all that a file was made from. A seal of checksums proves that no byte has changed; it does not withstand an
attacker. Called by the loader, once per start, on any thread; other processes may do the same in the same directory.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import cycle
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import openvino as ov
import xxhash
from openvino import opset13 as ops

from dragoman.files.model_texts import model_name, model_text
from dragoman.files.ownership import open_own
from dragoman.files.unfinished import scratch_directory
from dragoman.kernels.native import Memory, library, of_file
from dragoman.models.blocks.attention import paged_attention
from dragoman.models.blocks.step import BlockTables, cache_parameter
from dragoman.models.facts import AttentionFacts, ModelFacts
from dragoman.models.profile import KernelProfile
from dragoman.models.storage.constants import WeightMemory

logger = logging.getLogger(__name__)

_ATTENTION = ov.DiscreteTypeInfo("PagedAttentionExtension", "extension")
_HEADER_LIMIT = 4096  # bytes within which OpenVINO's line about its version ends
_COUNT_BYTES = 8  # of the size of the index behind weights

T = TypeVar("T")
Build = Callable[[WeightMemory], T]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PART_BYTES = 16 << 20  # a graph's description is smaller, and lies within the last part
_DIGEST_BYTES = 8
_MARK = b"\ndragoman seal 1\n"
_NUM_WORKERS = min(4, os.cpu_count() or 1)  # a few read as fast as the memory can be read


# --- names ------------------------------------------------------------------------------------------------------------


def kept_name(
    model_dir: Path, files: Sequence[Path], profile: KernelProfile, properties: dict[str, Any], part: str = ""
) -> str | None:
    """The name of the file that holds the graph, or the packed weights, of exactly these files and options.

    `files`: the model's weights. `part`: which of several graphs. The name ends in two digests, of what is asked for
    and of what it is made from: of files that differ only in the last one, the older is of no use. None if the code
    cannot be read.
    """
    code = own_code()
    if code is None:
        return None
    is_graph = profile.kernels != "own"  # otherwise packed weights, which all runtimes share
    how = [properties, asdict(profile)] if is_graph else [asdict(profile.weights)]
    wanted = [str(model_dir.resolve()), *how, part]
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    config = model_text(model_dir, "config.json")
    made_from = [code, ov.__version__, stamps, config, library().digest if profile.kernels == "own" else None]
    kind = ".tower" if part.startswith("tower") else ".adapters" if part else ""
    stem = f"{model_name(model_dir)}-{profile.weights.stored_type}{kind}"
    return f"{stem}-{_text_digest(wanted)}-{_text_digest(made_from)}.blob"


@cache
def own_code() -> str | None:
    try:
        digests = [
            code_digest(resources.files(package))
            for package in ("dragoman.models", "dragoman.gguf", "dragoman.kernels")
        ]
        return None if None in digests else _text_digest(digests)
    except OSError:
        return None


def code_digest(package: Traversable) -> str | None:
    """A digest of a package's modules, compiled or not, in a directory or a zip file. Raises: OSError."""
    modules = [(name, hashlib.sha256(contents).hexdigest()) for name, contents in _modules(package, "")]
    return _text_digest(modules) if modules else None


def _modules(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":  # comes and goes beside the sources
                yield from _modules(entry, f"{name}/")
        elif entry.name.endswith((".py", ".pyc")):
            yield name, entry.read_bytes()


def _text_digest(facts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


# --- compiled graphs: the plugin's file forgets sizes of heads, so an extension supplies them -------------------------


def compile_and_keep(
    core: Any, graph: Any, properties: dict[str, Any], target: Path, facts: ModelFacts
) -> tuple[Any, Any]:
    """The compiled graph, kept in `target`, and the mapping of that file; without a mapping if it cannot be kept.

    The compiled graph is mapped at once, so that its stored weights are pages of a file. Once the kernels have packed
    them the system can take the pages back.
    """
    try:
        with scratch_directory(target.parent) as unfinished:
            compiled = core.compile_model(graph, "CPU", {**properties, "CACHE_DIR": str(unfinished)})
            is_kept = _move_written(unfinished, target)
    except (OSError, RuntimeError) as error:
        warn_not_kept(target, error)
        return core.compile_model(graph, "CPU", properties), None
    return (map_kept(core, target, properties, facts, is_new=True) if is_kept else None) or (compiled, None)


def _move_written(unfinished: Path, target: Path) -> bool:
    written = next(unfinished.glob("*.blob"), None)  # the plugin chooses the name
    if written is None or not written.stat().st_size:  # it does not tell when it cannot write
        warn_not_kept(target, "it could not be written, is the disk full?")
        return False
    try:
        put_kept(written, target)
        return True
    except OSError as error:
        warn_not_kept(target, error)
        return False


def map_kept(
    core: Any,
    path: Path,
    properties: dict[str, Any],
    facts: ModelFacts,
    *,
    is_new: bool = False,
    progress: Callable[[float], None] = lambda fraction: None,
) -> tuple[Any, Any] | None:
    """The compiled graph of `path` and the mapping that must live as long as the graph; None if it cannot be used.

    Every byte has been checked when it returns, unless this process has just sealed them (`is_new`). The graph's
    description is at the file's ends, which are checked first: the runtime trusts what it reads. Checksums do not
    prove the author, so a file that another user can have written is not used. `progress` gets the fraction that has
    been checked.
    """
    try:
        with open_own(path) as file:  # mapped for copying: the runtime takes no read-only memory; nothing writes
            mapping = np.memmap(file, dtype=np.uint8, mode="c")
        with SealedBytes(mapping) as sealed:
            if not is_new:
                sealed.begin_check()
            graph = ov.Tensor(sealed.contents[_header_size(mapping) :], shared_memory=True)
            if facts.attention_layers:
                core.add_extension(_extension(_ATTENTION, _attention_placeholder, facts.attention_layers.values()))
            compiled = core.import_model(graph, "CPU", properties)
            sealed.finish_check(progress)
            return compiled, mapping
    except (OSError, RuntimeError, ValueError) as error:
        logger.warning("the kept graph %s cannot be used and is made anew: %s", path, reason(error))
        return None


def _header_size(mapping: Any) -> int:
    """Bytes of OpenVINO's line about its version. Raises: ValueError if there is none."""
    return int(mapping[:_HEADER_LIMIT].tobytes().index(b"\n")) + 1


def _extension(kind: Any, make: Callable[[Any], Any], shapes: Iterable[Any]) -> Any:
    """An extension that makes an operation's nodes, in the order of the layers, when the runtime reads a graph."""
    shapes = list(shapes)
    left = cycle(shapes)

    class Operation(ov.Op):  # type: ignore[misc]  # the package has no type information
        @staticmethod
        def get_type_info() -> Any:
            return kind

        def __new__(cls) -> Any:
            return make(next(left))

    extension = ov.OpExtension(Operation)
    left = cycle(shapes)
    return extension


def _attention_placeholder(facts: AttentionFacts) -> Any:
    def parameter(dtype: ov.Type, *dimensions: int) -> Any:
        return ops.parameter(ov.PartialShape(list(dimensions)), dtype).output(0)

    widths = (facts.query_width, facts.key_width, facts.value_width)
    qkv = [parameter(ov.Type.f32, -1, width) for width in widths]
    past_lens, begins, indices, indices_begins = (parameter(ov.Type.i32, -1) for _ in range(4))
    caches = (cache_parameter("key_cache"), cache_parameter("value_cache"))
    tables = BlockTables(past_lens, indices, indices_begins)
    return paged_attention(qkv, caches, tables, (begins, parameter(ov.Type.i32)), facts).get_node()


# --- packed weights: asked for in the same order at every start, so sizes tell that a file fits -----------------------


class WrittenWeights(WeightMemory):
    """Memory of a new file, which `finish` makes whole; of this process where the disk has no room."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._places: list[tuple[int, int]] | None = []
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def _new(self, num_bytes: int) -> Memory:
        if self._places is None:
            return super()._new(num_bytes)
        begin = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            # Asked for now: memory of a file that has no room on the disk ends the process when it is written.
            os.posix_fallocate(self._descriptor, begin, num_bytes)
            memory = of_file(self._descriptor, begin, num_bytes, is_written=True)
        except OSError as error:
            logger.warning("the packed weights cannot be kept in %s: %s", self._path.parent.parent, error.strerror)
            self._places = None
            return super()._new(num_bytes)
        self._places.append((begin, num_bytes))
        self._end = begin + num_bytes
        return memory

    def finish(self) -> bool:
        """Write the index behind the weights; False if some of them are not in the file. Raises: OSError."""
        if self._places is None:
            return False
        index = json.dumps(self._places).encode()
        os.pwrite(self._descriptor, index + len(index).to_bytes(_COUNT_BYTES, "little"), self._end)
        return True


class KeptWeights(WeightMemory):
    """Memory that an earlier start has written into a sealed file, checked on threads meanwhile. A context manager."""

    is_filled = True

    def __init__(self, path: Path) -> None:
        """Raises: OSError, also if another user can have written the file; ValueError if it is not a file of weights."""
        super().__init__()
        with open_own(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ValueError("it is empty")
            self._whole = of_file(file.fileno(), 0, size, is_written=False)
        self._sealed = SealedBytes(self._whole.data)
        contents = self._sealed.contents
        size = int.from_bytes(contents[-_COUNT_BYTES:].tobytes(), "little")
        index: Any = json.loads(contents[-size - _COUNT_BYTES : -_COUNT_BYTES].tobytes())
        self._places = iter(index)

    def __enter__(self) -> Self:
        self._sealed.__enter__()
        self._sealed.begin_check()
        return self

    def __exit__(self, *error: object) -> None:
        self._sealed.__exit__(*error)

    def _new(self, num_bytes: int) -> Memory:
        begin, size = next(self._places, (0, -1))
        if size != num_bytes:
            raise ValueError("it holds other matrices")
        return self._whole.part(begin, size, is_filled=True)

    def finish_check(self, progress: Callable[[float], None]) -> None:
        self._sealed.finish_check(progress)


def built(kept: Path | None, build: Build[T], checked: Callable[[float], None]) -> tuple[T, bool]:
    """The result of `build` over memory for weights; True if the weights are an earlier start's.

    `kept`: the file that holds them, or will. `checked`: gets the fraction that has been checked. A file that is
    damaged or does not fit is made again; if none can be made, a warning says so. Raises: what `build` does.
    """
    if kept is None:
        return build(WeightMemory()), False
    if kept.exists():
        try:
            with KeptWeights(kept) as memory:
                made = build(memory)
                memory.finish_check(checked)
            note_use(kept)
            return made, True
        except (OSError, ValueError) as error:
            logger.warning(
                "the kept weights %s cannot be used and are made anew: %s", kept, str(error)
            )  # not the error, which holds on to what was built
    try:
        with scratch_directory(kept.parent) as unfinished, WrittenWeights(unfinished / "weights") as written:
            made = build(written)
            _put(written, unfinished / "weights", kept)
            return made, False
    except OSError as error:
        warn_not_kept(kept, error)
    return build(WeightMemory()), False


def _put(written: WrittenWeights, path: Path, kept: Path) -> None:
    try:
        if written.finish():
            put_kept(path, kept)
    except OSError as error:
        warn_not_kept(kept, error)


# --- places: files are bounded together, least recently used first ----------------------------------------------------


def put_kept(written: Path, target: Path) -> None:
    """Seal a file and move it to its place. Raises: OSError. Older files that differ only behind the last hyphen go."""
    append_seal(written)
    written.replace(target)
    for superseded in target.parent.glob(glob.escape(target.name.rpartition("-")[0]) + "-*.blob"):
        if superseded != target:
            superseded.unlink(missing_ok=True)


def reason(error: Exception | str) -> str:
    """The error's words on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def warn_not_kept(target: Path, error: Exception | str) -> None:
    logger.warning("what this start made cannot be kept in %s: %s", target.parent, reason(error))


def note_use(kept: Path) -> None:
    with suppress(OSError):  # in a read-only directory, where nothing is removed either
        os.utime(kept)


def bound_kept(directory: Path, most_bytes: float, newest: Path) -> None:
    """Remove graphs until only `newest` is left, or all take at most `most_bytes`, and half of what else were free."""
    found = []
    for path in directory.glob("*.blob"):
        with suppress(OSError):  # removed meanwhile
            facts = path.stat()
            found.append((facts.st_mtime_ns, facts.st_size, path))
    total = sum(size for _, size, _ in found)
    most_bytes = min(most_bytes, (shutil.disk_usage(directory).free + total) / 2)
    for _, size, path in sorted(found):
        if total <= most_bytes:
            return
        if path != newest:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("the kept graph %s cannot be removed: %s", path, error.strerror)
                continue
            logger.info(
                "the kept graph %s was removed: all take more than --cache-max-gb or half of the disk",
                path.name,
            )
            total -= size


# --- seals: checking them needs no interpreter ------------------------------------------------------------------------


class SealError(ValueError):
    pass


def append_seal(path: Path) -> None:
    contents = np.memmap(path, dtype=np.uint8, mode="r")
    with ThreadPoolExecutor(_NUM_WORKERS) as pool:
        digests = b"".join(pool.map(_digest, _parts(contents)))
    mode = path.stat().st_mode
    path.chmod(mode | stat.S_IWUSR)  # the plugin's files are for reading only
    with path.open("ab") as file:
        file.write(_seal(digests, contents.size))
    path.chmod(mode & ~(stat.S_IWGRP | stat.S_IWOTH))


class SealedBytes:
    """The bytes of a sealed file. Use in a `with` block around `begin_check` and `finish_check`."""

    def __init__(self, data: Bytes) -> None:
        """`data` is the whole file. Raises: SealError if it does not end in a whole seal."""
        self.contents, digests = _split(data)
        self._parts = list(_parts(self.contents))
        self._digests = [digests[i : i + _DIGEST_BYTES] for i in range(0, len(digests), _DIGEST_BYTES)]
        self._pool = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="check-seal")
        self._checks: list[Future[bool]] = []

    def __enter__(self) -> SealedBytes:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin_check(self) -> None:
        """Check the first and the last part, and go on with the others on threads. Raises: SealError."""
        last = len(self._parts) - 1
        self._checks = [self._pool.submit(self._is_unchanged, index) for index in (0, last, *range(1, last))]
        self._wait(2)

    def finish_check(self, progress: Callable[[float], None] = lambda fraction: None) -> None:
        for count in range(1, len(self._checks) + 1):
            self._wait(count, count - 1)
            progress(count / len(self._checks))

    def _wait(self, num_checks: int, first: int = 0) -> None:
        if not all(check.result() for check in self._checks[first:num_checks]):
            raise SealError("its bytes have changed since it was written")

    def _is_unchanged(self, index: int) -> bool:
        return _digest(self._parts[index]) == self._digests[index]


def _split(data: Bytes) -> tuple[Bytes, bytes]:
    tail = _DIGEST_BYTES + 8 + len(_MARK)  # digest of the digests and the size; size; mark
    size = int.from_bytes(data[-len(_MARK) - 8 : -len(_MARK)].tobytes(), "little")
    begin = data.size - tail - -(-size // PART_BYTES) * _DIGEST_BYTES
    digests = data[begin : data.size - tail].tobytes() if begin == size else b""
    if not size or begin != size or data[begin:].tobytes() != _seal(digests, size):
        raise SealError("it does not end in a seal")
    return data[:size], digests


def _seal(digests: bytes, size: int) -> bytes:
    facts = digests + size.to_bytes(8, "little")
    return digests + xxhash.xxh3_64_digest(facts) + size.to_bytes(8, "little") + _MARK


def _parts(contents: Bytes) -> Iterator[Bytes]:
    return (contents[begin : begin + PART_BYTES] for begin in range(0, contents.size, PART_BYTES))


def _digest(part: Bytes) -> bytes:
    digest: bytes = xxhash.xxh3_64_digest(part.data)
    return digest
