"""Names the file of a kept graph after all that the graph was made from. Called by the loader, once per start."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import openvino as ov

from dragoman.files.model_texts import model_name, model_text
from dragoman.kernels.native import library
from dragoman.models.profile import KernelProfile


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
    told = ".tower" if part.startswith("tower") else ".adapters" if part else ""
    return f"{model_name(model_dir)}-{profile.weights.stored_type}{told}-{_digest(wanted)}-{_digest(made_from)}.blob"


@cache
def own_code() -> str | None:
    try:
        digests = [
            code_digest(resources.files(package))
            for package in ("dragoman.models", "dragoman.gguf", "dragoman.kernels")
        ]
        return None if None in digests else _digest(digests)
    except OSError:
        return None


def code_digest(package: Traversable) -> str | None:
    """A digest of a package's modules, compiled or not, in a directory or a zip file. Raises: OSError."""
    modules = [(name, hashlib.sha256(contents).hexdigest()) for name, contents in _modules(package, "")]
    return _digest(modules) if modules else None


def _modules(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":  # comes and goes beside the sources
                yield from _modules(entry, f"{name}/")
        elif entry.name.endswith((".py", ".pyc")):
            yield name, entry.read_bytes()


def _digest(facts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
