"""The configuration of a model that is loaded while the server runs, only from the operator's model store.

Calls are not trusted: links and `..` are resolved before a path is compared with the store. A call may set only options
that are open to it (`open_to`), and none that the command line sets. Called by `host` on worker threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dragoman.config.archives import archive_stem, is_archive
from dragoman.config.entries import ModelEntry, store_entries
from dragoman.config.models_dir import models_in
from dragoman.config.names import find_options
from dragoman.config.option import Option
from dragoman.config.resolve import Config, ConfigError, resolve
from dragoman.config.server_options import PER_MODEL, ServerSettings
from dragoman.config.several import archive_cache, process_wide_conflicts, unpacked, with_notes
from dragoman.config.sources import Given, read_environment
from dragoman.files.model_texts import is_gguf

CALL = "this call"

# Options of the command line that concern only its own model.
_OF_ONE_MODEL = frozenset({"name", "model_id", "revision"})

_NO_STORE = (
    "models can be loaded at run time only from a model store; start the server with --model-store DIRECTORY "
    "or --models-dir DIRECTORY"
)


class NotStored(ConfigError):
    """The model store has no model of that name or path."""


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The operator's model store, and the common sources of its models' configurations.

    `root` None = every call is refused. `process`: the configuration with the options of the whole server. `is_named`:
    any call may name its models, a few levels deep.
    """

    root: Path | None
    process: Config
    command_line: Sequence[Given]
    variables: Mapping[str, str]
    demo_dir: Path
    is_named: bool = False

    def entries(self) -> list[ModelEntry]:
        if self.root is None:
            return []
        return models_in(self.root) if self.is_named else store_entries(self.root, "the model store")

    def named(self, name: str) -> ModelEntry:
        """The directory or archive of that name. Raises: NotStored, ConfigError if links lead out of the store."""
        for entry in self.entries():
            if name == entry.name or (name == entry.directory.name and not self.is_named):
                return replace(self.entry(str(entry.directory.absolute())), name=entry.name)
        raise NotStored([f"Model or workflow not found: {name}; the model store holds no {name}"])

    def entry(self, url: str, name: str = "", version: str = "") -> ModelEntry:
        """The entry that `url` names in the store. Raises: NotStored; ConfigError if `url` names anything else."""
        if self.root is None:
            raise ConfigError([_NO_STORE])
        _check_name("model name", name)
        _check_name("version", version)
        path = self._resolved(url)
        if not path.is_dir() and not is_archive(path) and not is_gguf(path):
            raise NotStored([f"url={url} ({CALL}): the model store holds no directory or archive there"])
        stem = archive_stem(path) if is_archive(path) else ""
        return ModelEntry(path, CALL, name or stem, version)

    def config(self, entry: ModelEntry, options: Mapping[str, str]) -> Config:
        call = [Given(name, name, text, CALL) for name, text in options.items()]
        problems = [problem for given in call if (problem := _refusal(given))]
        if problems:
            raise ConfigError(problems)
        ready = unpacked(entry, archive_cache(self.process.model.cache_dir, self.variables))
        shared = [given for given in self.command_line if not _targets(given) & _OF_ONE_MODEL]
        names = {given.name for given in read_environment(self.variables) if "name" in _targets(given)}
        environ = {name: text for name, text in self.variables.items() if name not in names}
        config = resolve(shared, environ, self.demo_dir, ready, call)
        if problems := process_wide_conflicts(self.process, config):
            raise ConfigError(problems)
        return with_notes(config)

    def _resolved(self, url: str) -> Path:
        """The path without links and `..`. Raises: ConfigError unless it lies in the store."""
        assert self.root is not None  # `entry` has checked this
        root = self.root.resolve()
        outside = ConfigError(
            [f"url={url} ({CALL}): must be the path of a model in the model store; no other is loaded"]
        )
        try:
            path = (root / _path_text(url)).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a null byte, links in a circle
            raise outside from error
        is_model = path == root and any(entry.directory == self.root for entry in self.entries())
        if not is_model and (path == root or not path.is_relative_to(root)):
            raise outside
        return path


def _path_text(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() != "file":
        raise ConfigError(
            [f"url={url} ({CALL}): {scheme}:// is not supported, as nothing is downloaded; "
             "must be the path of a model in the model store"]
        )  # fmt: skip
    if not separator:
        if not url.strip():
            raise ConfigError([f"url ({CALL}): must not be empty; it is the path of a model in the model store"])
        return url
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError([f"url={url} ({CALL}): must be a path of this machine, as in file:///path"])
    return unquote(parts.path)


def _check_name(what: str, name: str) -> None:
    if name and (not name.isprintable() or len(name) > 256 or len(name.replace(",", " ").split()) != 1):
        raise ConfigError([f"{what} {name!r} ({CALL}): must be one word of at most 256 characters without commas"])


def _targets(given: Given) -> set[str]:
    return {match.target.name for match in find_options(given) if isinstance(match.target, Option)}


def _refusal(given: Given) -> str:
    """The reason why a call may not set this; "" if it may, or for unknown names, which `resolve` reports."""
    found = [match.target for match in find_options(given)]
    closed = [target for target in found if isinstance(target, Option) and target.row.open_to != "load"]
    return f"{given.name} ({CALL}): only the operator can set it, {_how_to_set(closed[0])}" if closed else ""


def _how_to_set(option: Option) -> str:
    names = " or ".join(name for name in (option.flag, option.variable) if name)
    is_one_for_all = option.group is ServerSettings and option.name not in PER_MODEL
    elsewhere = (
        "" if is_one_for_all or not option.key else f", or with {option.key} in the model's own serving.properties"
    )
    return f"with {names} when the server starts{elsewhere}"
