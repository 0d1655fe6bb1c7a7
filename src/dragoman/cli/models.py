"""`dragoman models`: lists the models on this machine, and removes some. `hub.inventory` knows the caches."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dragoman.cli.arguments import SOURCE
from dragoman.cli.commands import FAILED
from dragoman.cli.subcommand import Command, Console, ReadWords, option, options_of
from dragoman.config.bundled import BUNDLED
from dragoman.config.kinds import Switch
from dragoman.config.resolve import given_options
from dragoman.config.sources import cache_home
from dragoman.hub.download import size_text
from dragoman.hub.environment import hub_environment
from dragoman.hub.inventory import LocalModel, bundled_models, hub_models, kept_models, remove_hub_model
from dragoman.hub.names import HubError
from dragoman.tools.text_table import aligned

FAILURES = (HubError, OSError)
_HEADER = ("NAME", "WHERE", "FAMILY", "FORMAT", "SIZE", "")

_USAGE = """\
usage: dragoman models [--json]
       dragoman models rm NAME [--yes]
       dragoman models rm kept [--yes]

Lists the models on this machine: those that come with dragoman, those in the hub's cache, and what dragoman keeps of
models itself, compiled graphs and unpacked archives (kept; option cache_dir says where). rm removes a model of the hub's
cache, or all that is kept; it asks before, unless --yes is given.

  dragoman models
  dragoman models rm Qwen/Qwen3-0.6B
"""


@dataclass(frozen=True, slots=True)
class ModelsArguments:
    """`name`: the model to remove, None = list the models."""

    name: str | None
    cache_dir: Path
    json: bool = option(Switch(), "print JSON instead of a table", False)
    yes: bool = option(Switch(), "rm: remove without asking", False)


def read_models(words: ReadWords) -> ModelsArguments | None:
    names = words.others
    is_removal = names[:1] == ["rm"]
    unmeant = "json" if is_removal else "yes"
    if words.values[unmeant]:
        words.problems.append(f"--{unmeant} ({SOURCE}): is for {'the list' if is_removal else 'rm'}")
    if is_removal and len(names) != 2:
        words.problems.append("models: rm needs one name, or kept")
    elif names and not is_removal:
        words.problems.append(f"models: {names[0]} is no action; rm is one")
    kept = given_options([], words.variables).path("cache_dir") or cache_home(words.variables) / "dragoman"
    name = names[1] if is_removal and len(names) > 1 else None
    return words.made(ModelsArguments, name=name, cache_dir=kept)


def run(_: object, arguments: ModelsArguments, console: Console) -> int:
    hub, kept = hub_environment(console.variables).cache, arguments.cache_dir
    on_hub = hub_models(hub)
    if arguments.name == "kept":
        return _remove_kept(kept_models(kept, on_hub), arguments, console)
    if arguments.name is not None:
        return _remove(arguments.name, on_hub, arguments, console)
    found = [*bundled_models(BUNDLED), *on_hub, *kept_models(kept, on_hub)]
    if arguments.json:
        console.stdout.write(json.dumps([asdict(model) for model in found], indent=2) + "\n")
    else:
        console.stdout.write(f"{aligned([_HEADER, *map(_row, found)])}\nhub cache: {hub}\nkept: {kept}\n")
    return 0


def _row(model: LocalModel) -> tuple[str, ...]:
    state = f"incomplete: {model.missing} is missing" if model.missing else f"used {model.used}" if model.used else ""
    return model.name, model.kind, model.family, model.format, size_text(model.size), state


def _is_confirmed(question: str, arguments: ModelsArguments, console: Console) -> bool:
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        console.stderr.write(f"dragoman: {question} Nobody can be asked here; --yes says so\n")
        return False
    console.stderr.write(f"{question} [y/N] ")
    console.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _remove(name: str, on_hub: Sequence[LocalModel], arguments: ModelsArguments, console: Console) -> int:
    """Raises: HubError if the model does not exist; OSError."""
    hub = hub_environment(console.variables).cache
    repo, _, revision = name.partition("@")
    found = [
        model
        for model in on_hub
        if name in (model.name, model.name.partition("@")[0], f"{repo}@{Path(model.path).name}")
    ]
    if not found:
        raise HubError(f"{name}: not in the hub's cache, {hub}; `dragoman models` lists what is there")
    listed = ", ".join(model.name for model in found)
    size = size_text(sum(model.size for model in found))
    if not _is_confirmed(f"Remove {listed} ({size}) from {hub}?", arguments, console):
        return FAILED
    freed = remove_hub_model(hub, repo, Path(found[0].path).name if revision else "")
    for kept in kept_models(arguments.cache_dir, found):
        if kept.name in {model.name for model in found}:
            Path(kept.path).unlink(missing_ok=True)
            freed += kept.size
    console.stdout.write(f"removed {listed}, {size_text(freed)}\n")
    return 0


def _remove_kept(found: Sequence[LocalModel], arguments: ModelsArguments, console: Console) -> int:
    if not found:
        console.stdout.write(f"nothing is kept in {arguments.cache_dir}\n")
        return 0
    size = size_text(sum(model.size for model in found))
    listed = f"{len(found)} kept graphs and archives"
    if not _is_confirmed(f"Remove {listed} ({size}) from {arguments.cache_dir}?", arguments, console):
        return FAILED
    for model in found:
        if model.path.endswith(".blob"):
            Path(model.path).unlink(missing_ok=True)
    shutil.rmtree(arguments.cache_dir / "archives", ignore_errors=True)
    console.stdout.write(f"removed {listed}, {size}\n")
    return 0


COMMAND = Command(_USAGE, options_of(ModelsArguments), read_models, "dragoman.cli.models", words=("rm",))
