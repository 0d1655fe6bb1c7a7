"""Finds models in the hub's cache on this machine: `models--ORG--NAME/snapshots/COMMIT`, links into `blobs`, and
`refs`.

Does not write, or import the library. Source: huggingface_hub's page on its cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from dragoman.hub.files import CONFIG, INDEX, gguf_type
from dragoman.hub.names import HubModel

_OF_TEXTS = "openvino_language_model"
_SEEING = (_OF_TEXTS, "openvino_text_embeddings_model", "openvino_vision_embeddings_model")
_ALSO_SEEING = {"phi3_v": ("openvino_vision_projection_model",)}  # model type -> further graphs

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FOLDER = re.compile(r"models--(?P<org>.+?)--(?P<name>.+)")


def is_commit(revision: str) -> bool:
    """True for a full commit hash, whose meaning never changes."""
    return _COMMIT.fullmatch(revision) is not None


def repo_folder(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def repo_in_cache(folder: Path) -> str | None:
    """The repository (ORG/NAME) of a folder in the cache, None for other folders."""
    match = _FOLDER.fullmatch(folder.name)
    return f"{match['org']}/{match['name']}" if match else None


def served_snapshot(folder: Path) -> Path | None:
    """The snapshot for a repository's bare name: main's, else the newest; None if it is incomplete."""
    commit = _read_reference(folder / "refs" / "main")
    snapshots = sorted(folder.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
    found = folder / "snapshots" / commit if commit else next(reversed(snapshots), None)
    if found is None or not found.is_dir():
        return None
    return found if not missing(found) or next(found.glob("*.gguf"), None) is not None else None


def repo_of(snapshot: Path) -> str | None:
    """The repository (ORG/NAME) of a snapshot directory, None for other directories."""
    return repo_in_cache(snapshot.parent.parent) if snapshot.parent.name == "snapshots" else None


def cached_snapshot(cache: Path, model: HubModel) -> Path | None:
    """The directory of that revision, complete or not; None if it does not exist."""
    folder = repo_folder(cache, model.repo)
    commit = model.revision if is_commit(model.revision) else _read_reference(folder / "refs" / model.revision)
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def _read_reference(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return text if is_commit(text) else ""


def missing(snapshot: Path, gguf: str = "") -> str:
    """The needed files that a snapshot lacks, in words, "" = complete. Weights are downloaded last, so they tell."""
    if gguf:
        return "" if gguf_file(snapshot, gguf) else f"a GGUF file of type {gguf}"
    if graphs := graph_files(snapshot):
        return next((name for name in graphs if not (snapshot / name).is_file()), "")
    if not (snapshot / CONFIG).is_file():
        return CONFIG
    if (snapshot / "model.safetensors").is_file():
        return ""
    if not (snapshot / INDEX).is_file():
        return "" if any(snapshot.glob("*.safetensors")) else "*.safetensors"
    return next((name for name in _shards(snapshot / INDEX) if not (snapshot / name).is_file()), "")


def graph_files(snapshot: Path) -> tuple[str, ...]:
    """The files of the model in OpenVINO's form, present or not; none if it has another form.

    For a multimodal model, the files of its text graph and of the graphs behind it.
    """
    if (snapshot / "openvino_model.xml").is_file():
        return ("openvino_model.bin",)
    if not (snapshot / f"{_OF_TEXTS}.xml").is_file():
        return ()
    parts = (*_SEEING, *_ALSO_SEEING.get(_model_type(snapshot), ()))
    return tuple(f"{part}.{end}" for part in parts for end in ("bin", "xml"))


def _model_type(snapshot: Path) -> str:
    try:
        return str(json.loads((snapshot / CONFIG).read_text(encoding="utf-8")).get("model_type"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""


def gguf_file(snapshot: Path, gguf: str) -> Path | None:
    """The GGUF file of that quantisation, or the first of a split one; None if a part is missing."""
    found = sorted(path for path in snapshot.rglob("*.gguf") if gguf_type(path.name) == gguf.upper() and path.is_file())
    split = re.search(r"-00001-of-(\d{5})\.gguf$", found[0].name) if found else None
    return None if not found or (split and len(found) != int(split[1])) else found[0]


def _shards(index: Path) -> Iterator[str]:
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        yield from sorted({str(name) for name in listed.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield INDEX + " that can be read"
