"""Lists and removes the models on this machine: in the hub's cache, and as kept graphs. Called by the command line."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime
from typing import Any

from dragoman.hub.cache import graph_files, missing, repo_folder
from dragoman.hub.files import CONFIG, gguf_type
from dragoman.hub.names import HubError

BUNDLED, HUB, KEPT = "bundled", "hub", "kept graph"
ARCHIVE = "unpacked archive"
STORED_TYPES = ("f32", "f16", "bf16", "int8", "int4", "int8_symmetric")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One model. `size` in bytes. `missing`: missing files, "" = none. `used`: a kept graph's last use, in local time."""

    name: str
    kind: str
    size: int
    family: str = ""
    format: str = ""
    missing: str = ""
    path: str = ""
    used: str = ""


def bundled_models(directories: Mapping[str, Path]) -> list[LocalModel]:
    return [_described(name, BUNDLED, directory, _tree_size(directory)) for name, directory in directories.items()]


def hub_models(cache: Path) -> list[LocalModel]:
    """The models in the hub's cache, one for each revision; [] without a cache."""
    found: list[LocalModel] = []
    for repo in sorted(_scan(cache), key=lambda repo: str(repo.repo_id)):
        if repo.repo_type != "model":
            continue
        for revision in sorted(repo.revisions, key=lambda entry: str(entry.commit_hash)):
            names = sorted(revision.refs) or [revision.commit_hash[:12]]
            name = repo.repo_id if names == ["main"] else f"{repo.repo_id}@{names[0]}"
            found.append(_described(name, HUB, revision.snapshot_path, revision.size_on_disk))
        if not repo.revisions:  # a download without a complete file
            found.append(
                LocalModel(repo.repo_id, HUB, _tree_size(repo.repo_path), missing="all", path=str(repo.repo_path))
            )
    return found


def kept_models(cache_dir: Path, hub: Sequence[LocalModel] = ()) -> list[LocalModel]:
    by_commit = {Path(model.path).name: model.name for model in hub}
    found = []
    for path in sorted(cache_dir.glob("*.blob")) if cache_dir.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            facts = path.stat()
            directory, form = _name_and_form(path)
            used = strftime("%Y-%m-%d %H:%M", localtime(facts.st_mtime))
            found.append(
                LocalModel(
                    by_commit.get(directory, directory), KEPT, facts.st_size, "", form, path=str(path), used=used
                )
            )
    archives = cache_dir / "archives"
    for path in sorted(archives.iterdir()) if archives.is_dir() else ():
        if path.is_dir() and not path.name.startswith("."):
            found.append(_described(path.name.rpartition("-")[0], ARCHIVE, _inner(path), _tree_size(path)))
    return found


def _name_and_form(path: Path) -> tuple[str, str]:
    """The model and the graph's form, from a file name of `models.kept_files`; four digits tell graphs apart."""
    parts = path.stem.rsplit("-", 3)
    if len(parts) == 4 and parts[1].partition(".")[0] in STORED_TYPES:
        return parts[0], f"{parts[1].replace('.', ', ')} #{parts[2][:4]}"
    return path.stem.rsplit("-", 2)[0], f"#{path.stem.rsplit('-', 2)[-2][:4]}"


def remove_hub_model(cache: Path, name: str, commit: str = "") -> int:
    """Remove a repository, or one of its commits, from the hub's cache. Returns the freed bytes. Raises: HubError."""
    for repo in _scan(cache):
        if repo.repo_type == "model" and repo.repo_id == name:
            commits = [revision.commit_hash for revision in repo.revisions if commit in ("", revision.commit_hash)]
            if commits:
                from huggingface_hub import scan_cache_dir

                strategy = scan_cache_dir(cache).delete_revisions(*commits)
                strategy.execute()
            freed = int(strategy.expected_freed_size) if commits else 0
            if not commit or len(commits) == len(repo.revisions):
                freed += _remove_rest(repo_folder(cache, name))
            return freed
    raise HubError(f"{name}: not in the hub's cache, {cache}")


def _remove_rest(folder: Path) -> int:
    size = _tree_size(folder) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _scan(cache: Path) -> list[Any]:
    if not cache.is_dir():
        return []
    from huggingface_hub import scan_cache_dir

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    info = scan_cache_dir(cache)
    known = {repo.repo_path for repo in info.repos}
    broken = [path for path in cache.glob("models--*--*") if path.is_dir() and path not in known]
    return [*info.repos, *(_Broken(path) for path in broken)]


class _Broken:
    """A folder of the cache without a complete file, which the library cannot read."""

    repo_type = "model"
    revisions: frozenset[Any] = frozenset()

    def __init__(self, path: Path) -> None:
        self.repo_path = path
        self.repo_id = path.name.removeprefix("models--").replace("--", "/", 1)


def _described(name: str, kind: str, directory: Path, size: int) -> LocalModel:
    config = _config(directory)
    ggufs = sorted(directory.rglob("*.gguf"))
    gguf = gguf_type(ggufs[0].name) if ggufs else ""
    lacking = missing(directory, gguf) if kind == HUB else ""
    family = str(config.get("model_type") or "")
    return LocalModel(name, kind, size, family, _format(directory, config, ggufs), lacking, str(directory))


def _config(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _format(directory: Path, config: Mapping[str, Any], ggufs: Sequence[Path]) -> str:
    quantised = config.get("quantization_config")
    if any(directory.glob("*.safetensors")):
        method = str(quantised.get("quant_method") or "quantised") if isinstance(quantised, dict) else ""
        return f"safetensors, {method}" if method else "safetensors"
    if graph_files(directory):
        return "OpenVINO IR"
    if ggufs:
        return "GGUF " + ", ".join(sorted({gguf_type(path.name) or "?" for path in ggufs}))
    return ""


def _inner(directory: Path) -> Path:
    """The only directory in an unpacked archive, which is then the model (see `config.archives`); else itself."""
    children = list(directory.iterdir())
    return children[0] if len(children) == 1 and children[0].is_dir() else directory


def _tree_size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
