"""The configurations of all models of a process. Called by the command line, at start-up.

Which models, first match: 1. MODEL_DIR on the command line, or all models of OVMS's config.json in it; 2. load_models;
3. model_store; 4. the default store if it is not empty (SageMaker and LMI's containers mount models there); 5.
HF_MODEL_ID or OPTION_MODEL_ID; 6. the demo model. A named model_store also serves later loads. So does a models_dir,
whose models any call may name; without another choice, each is loaded when a call names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dragoman.config.archives import ArchiveError, is_archive, unpack
from dragoman.config.combinations import Chosen
from dragoman.config.entries import ALL, NONE, ModelEntry, parse_entry, store_entries
from dragoman.config.hub_models import FindModel
from dragoman.config.option import show
from dragoman.config.ovms import read_ovms_models
from dragoman.config.resolve import Config, ConfigError, given_options, is_from_file, resolve
from dragoman.config.server_options import PER_MODEL, ServerSettings
from dragoman.config.sources import Given, cache_home

DEFAULT_STORE = Path("/opt/ml/model")  # SageMaker's mount point, LMI's default model_store

REQUIREMENTS = "requirements.txt"  # LMI installs what it names, for the model's own code

COMMAND_LINE = "command line"
PROCESS_WIDE = tuple(field.name for field in fields(ServerSettings) if field.name not in PER_MODEL)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The models of a process. `models`: their configurations, the default first; () = none until a call needs one.

    `process`: with the process-wide options, the default model's if there is one. `store`: of models for loads at run
    time. `is_named`: any call may name its models.
    """

    process: Config
    models: tuple[Config, ...]
    store: Path | None
    is_named: bool = False


def resolve_all(
    command_line: Sequence[Given],
    environ: Mapping[str, str],
    demo_dir: Path,
    default_store: Path = DEFAULT_STORE,
    find: FindModel | None = None,
) -> Resolved:
    """The configuration of every model. `find`: finds a model of the hub; None = in its cache. Raises: ConfigError."""
    chosen = given_options(command_line, environ)
    store, is_named = _store(chosen)
    is_chosen = any(map(chosen.is_given, ("model_id", "load_models")))
    is_empty = chosen["load_models"] == (NONE,) and chosen.origins["model_id"].source != COMMAND_LINE
    if is_empty or (is_named and not is_chosen):
        return Resolved(_without_models(command_line, environ, demo_dir, store), (), store, is_named)
    models = _resolve_models(chosen, command_line, environ, demo_dir, default_store, find)
    return Resolved(models[0], models, store, is_named)


def _store(chosen: Chosen) -> tuple[Path | None, bool]:
    """The directory for loads at run time, None = none, and True if calls name its models. Raises: ConfigError."""
    store, named = chosen.path("model_store"), chosen.path("models_dir")
    if named is None:
        return store, False
    if store is not None:
        raise ConfigError([f"{chosen.cite('models_dir')}: contradicts model_store; give one of them"])
    if not named.is_dir():
        raise ConfigError([f"{chosen.cite('models_dir')}: must be an existing directory"])
    return named, True


def _without_models(
    command_line: Sequence[Given], environ: Mapping[str, str], demo_dir: Path, store: Path | None
) -> Config:
    """The options of the whole server without a model yet. Raises: ConfigError if it could never have one."""
    config = resolve(command_line, environ, demo_dir, ModelEntry(demo_dir, "the bundled demo model"))
    if store is None or not store.is_dir():
        needed = "model_store or models_dir, a directory to load models from later"
        raise ConfigError([f"{config.cite('load_models')}: needs {needed}"])
    return config


def _resolve_models(
    chosen: Chosen,
    command_line: Sequence[Given],
    environ: Mapping[str, str],
    demo_dir: Path,
    default_store: Path,
    find: FindModel | None,
) -> tuple[Config, ...]:
    entries, notices = _entries(chosen, default_store)
    if not entries:
        config = resolve(command_line, environ, demo_dir, find=find)
        return (with_notes(replace(config, notices=(*notices, *config.notices))),)
    problems: list[str] = []
    configs: list[Config] = []
    cache = archive_cache(chosen.path("cache_dir"), environ)
    for entry in entries:
        try:
            configs.append(resolve(command_line, environ, demo_dir, unpacked(entry, cache), find=find))
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    problems += conflicts(configs)
    if problems:
        raise ConfigError(problems)
    first = replace(configs[0], notices=(*notices, *configs[0].notices))
    return tuple(with_notes(config) for config in (first, *configs[1:]))


def _entries(chosen: Chosen, default_store: Path) -> tuple[Sequence[ModelEntry], Sequence[str]]:
    """The models to serve, () for a single one that `resolve` finds; and notes on options without effect."""
    listed, store, origins = chosen.words("load_models"), chosen.path("model_store"), chosen.origins
    if origins["model_id"].source == COMMAND_LINE:
        unused, named = _unused_by_directory(chosen), chosen.path("model_id")
        listing = None if named is None else read_ovms_models(named)
        if listing is None:
            return (), unused
        if listing.problems:
            raise ConfigError(listing.problems)
        return listing.entries, [*listing.notices, *unused]
    if listed and listed != (ALL,):
        source = f"{origins['load_models'].source}: {origins['load_models'].name}"
        return [parse_entry(word, source) for word in listed], ()
    if store is not None:
        return _stored(store, f"{origins['model_store'].source}: {origins['model_store'].name}"), ()
    found = store_entries(default_store, "the default model store")
    if listed and not found:
        raise ConfigError([f"{chosen.cite('load_models')}: needs model_store; {default_store} holds no model"])
    return found, ()


def archive_cache(cache_dir: Path | None, environ: Mapping[str, str]) -> Path:
    return (cache_dir or cache_home(environ) / "dragoman") / "archives"


def unpacked(entry: ModelEntry, cache: Path) -> ModelEntry:
    if not is_archive(entry.directory):
        return entry
    try:
        directory = unpack(entry.directory, cache)
    except ArchiveError as error:
        raise ConfigError([f"{error} ({entry.source})"]) from error
    source = f"{entry.source}, from {entry.directory}"
    return replace(entry, directory=directory, source=source)


def _stored(store: Path, source: str) -> Sequence[ModelEntry]:
    entries = store_entries(store, source)
    if not entries:
        why = "it is empty" if store.is_dir() else "there is no directory of that name"
        raise ConfigError([f"{store} ({source}): must be a directory that holds at least one model; {why}"])
    return entries


def _unused_by_directory(chosen: Chosen) -> Sequence[str]:
    cited = chosen.cite("load_models")
    if chosen.origins["load_models"].source == COMMAND_LINE:
        raise ConfigError([f"{cited}: contradicts MODEL_DIR; give one of them"])
    if not chosen.is_given("load_models"):
        return []
    return [f"{cited}: no effect here; the command line names a directory"]


def conflicts(configs: Sequence[Config]) -> list[str]:
    problems: list[str] = []
    taken: dict[str, Config] = {}
    for config in configs:
        for name in config.model.name:
            if name in taken:
                problems.append(
                    f"{config.directory}: the name {name} is taken by {taken[name].directory}{_hint(config)}"
                )
            taken.setdefault(name, config)
        problems += process_wide_conflicts(configs[0], config)
    return problems


def _hint(config: Config) -> str:
    origin = config.origins["name"]
    if origin.name and not is_from_file(origin, config.directory):
        return f"; {origin.name} ({origin.source}) names one model only"
    return ""


def process_wide_conflicts(first: Config, other: Config) -> list[str]:
    return [
        f"{other.cite(name)}: is one value for all models, and {first.directory} has "
        f"{show(getattr(first.server, name))}; give it on the command line or in the environment"
        for name in PROCESS_WIDE
        if is_from_file(other.origins[name], other.directory)
        and getattr(other.server, name) != getattr(first.server, name)
    ]


def with_notes(config: Config) -> Config:
    notes = [
        f"{config.cite(name)}: no effect in a model's own file; it is for the whole server"
        for name in ("load_models", "model_store", "models_dir", "config_file")
        if is_from_file(config.origins[name], config.directory)
    ]
    weights, is_given = config.model.model_id, config.origins["model_id"].source == "environment"
    if is_given and config.model_dir not in (weights, weights and config.directory / weights):
        notes.append(f"{config.cite('model_id')}: no effect on {config.name}; {config.directory} holds its own weights")
    requirements = config.directory / REQUIREMENTS
    if requirements.is_file():
        notes.append(
            f"{requirements}: no effect here; nothing is installed, the server's own environment has to have it"
        )
    return replace(config, notices=(*config.notices, *notes))
