"""`dragoman doctor`: examines this machine for the server. `tools.doctor` examines.

All options but its own are the server's, whose effect it reports. Called by `main`, on the main thread. Modules over the
runtime are imported last, as the runtime may be broken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.cli.arguments import read_arguments
from dragoman.cli.commands import FAILED
from dragoman.cli.subcommand import Command, Console, ReadWords, option, options_of
from dragoman.config.kinds import Switch
from dragoman.config.resolve import Config, ConfigError, demo_model_dir
from dragoman.config.several import Resolved, resolve_all
from dragoman.config.sources import cache_home
from dragoman.hub.environment import hub_environment
from dragoman.tools.doctor.examine import Question, ToldModel, examine
from dragoman.tools.doctor.findings import prevents_serving, report_json, report_text
from dragoman.tools.doctor.machine import Cache, Machine

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080  # the default if options cannot be resolved


_USAGE = """\
usage: dragoman doctor [MODEL] [options]

Examines this machine in a few seconds: what its processor can do, how many cores and how much memory there are and how fast
it is, where models are kept and how fast that is read, versions, the port; then what MODEL would be here: how it is stored,
the memory it takes, an estimate of its speed. What is wrong is told with how to mend it. Nothing is loaded or downloaded.
All options of `dragoman serve` may be given too. The exit code is 1 if a server would not start. See docs/doctor.md.

  dragoman doctor
  dragoman doctor ./my-model --dtype int4 --port 9000
  dragoman doctor --json
"""


@dataclass(frozen=True, slots=True)
class DoctorArguments:
    """`server_words`: the server's options, which may be wrong."""

    server_words: tuple[str, ...]
    json: bool = option(Switch(), "print JSON instead of a table", False)


def read_doctor(words: ReadWords) -> DoctorArguments | None:
    return words.made(DoctorArguments, server_words=(*words.others, *words.flags))


def run(_: object, arguments: DoctorArguments, console: Console, machine: Machine | None = None) -> int:
    """Print the report. Returns the exit code: 0, or 1 if a server would not start. `machine`: replaced in tests."""
    environ = console.variables
    resolved, problem = _resolved(arguments.server_words, environ)
    config = None if resolved is None else resolved.process
    server = None if config is None else config.server
    sections = examine(
        Question(
            host=DEFAULT_HOST if server is None else server.host,
            port=DEFAULT_PORT if server is None else server.port,
            caches=_caches(config, environ),
            tell_model=lambda available: _tell(resolved, problem, available),
            is_offline=hub_environment(environ).is_offline,
            machine=machine or Machine(),
        )
    )
    console.stdout.write((report_json if arguments.json else report_text)(sections))
    return FAILED if prevents_serving(sections) else 0


def _resolved(words: Sequence[str], environ: Mapping[str, str]) -> tuple[Resolved | None, str]:
    """The configurations of the options, or None and the problem."""
    arguments = read_arguments(words)
    try:
        if arguments.problems:
            raise ConfigError(arguments.problems)
        return resolve_all(arguments.givens, environ, demo_model_dir()), ""
    except ConfigError as error:
        return None, str(error)


def _caches(config: Config | None, environ: Mapping[str, str]) -> tuple[Cache, ...]:
    graphs = (config.model.cache_dir if config is not None else None) or cache_home(environ) / "dragoman"
    return (
        Cache(
            "graphs",
            graphs,
            "built models",
            "each start builds its model anew, which takes several times longer",
            "serve with --cache-dir on a disk that can be written (in a container: a volume)",
        ),
        Cache(
            "hub",
            hub_environment(environ).cache,
            "models of the hub",
            "models that are not there yet cannot be downloaded",
            "set HF_HUB_CACHE to a directory that can be written, or pass a model's directory",
        ),
    )


def _tell(resolved: Resolved | None, problem: str, available: int) -> ToldModel:
    """The facts of the model, or the problem with it, without loading it. `available`: bytes of memory."""
    if resolved is None:
        return ToldModel("could not be resolved", problem)
    if len(resolved.models) != 1:
        return ToldModel(f"{len(resolved.models)} models would be served; name one of them for its memory and speed")
    try:
        from dragoman.host import loading
        from dragoman.models import ModelError
        from dragoman.tools.doctor.expected import expected_model
    except (ImportError, OSError) as error:
        return ToldModel("cannot be examined", f"the server cannot be imported: {error}")

    config = resolved.process
    where = f"{config.name} in {config.model_dir}"
    try:
        if config.engine.engine != "rolling":
            return ToldModel(f"{where}, run by the engine {config.engine.engine}, which is not examined")
        if not loading.has_model(config):
            return ToldModel(where, f"there is no model in {config.model_dir}")
        needs = loading.memory_needs(config)
        try:
            loading.check_room(config.name, needs, available)
        except ModelError as error:
            problem = str(error)
        if not loading.generates(config):
            return ToldModel(f"{where}: embeds or scores texts; needs {needs.least >> 20} MiB", problem)
        with loading.citing(config):
            return ToldModel(expected_model(config.name, loading.engine_setup(config), needs, available), problem)
    except (ConfigError, ModelError, OSError) as error:
        return ToldModel(where, str(error))


COMMAND = Command(_USAGE, options_of(DoctorArguments), read_doctor, "dragoman.cli.doctor", takes_server_options=True)
