"""The `dragoman` command: picks the subcommand, resolves the configuration, reports problems with it.

Called by the console script and by `python -m dragoman`, on the main thread. Runs nothing itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dragoman import __version__
from dragoman.cli.commands import COMMANDS, INTERRUPTED, USAGE_ERROR, CommandPlace, overview

if TYPE_CHECKING:  # commands import their needs when they run, so that `--help` is fast
    from dragoman.config.run_time import ModelStore
    from dragoman.config.several import Resolved

LEAST_PYTHON = (3, 11)  # as in pyproject.toml

_OVERVIEW = """\
dragoman: one LLM inference server that speaks LMI, OpenVINO Model Server, OpenAI, TGI and plain text at once

usage: {commands}

Each command has a `--help` with its options and examples. Some to begin with:

  dragoman serve                                          the bundled demo model, on port 8080
  dragoman serve ./my-model --dtype int4
  dragoman chat                                           talk to the demo model, without a server
  dragoman chat http://127.0.0.1:8080                     talk to a server
  dragoman complete ./my-model "Deep learning is" --temperature 0
"""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "run": ("chat",),
    "list": ("models",),
    "ls": ("models",),
    "rm": ("models", "rm"),
    "download": ("pull",),
    "start": ("serve",),
}
"""Commands as others call them."""

_INSTEAD: Mapping[str, str] = {
    "ps": "`curl http://HOST:PORT/api/ps` tells which models a server has loaded; it runs until it is stopped",
    "stop": "Ctrl-C or SIGTERM ends a server (`kill PID`, `systemctl stop dragoman`)",
    "show": "`dragoman config MODEL` and `dragoman doctor MODEL` tell what is known of a model",
    "create": "a model is a directory or a GGUF file; a serving.properties in the directory holds its options",
    "push": "models are brought from the hub and not sent there",
    "quantize": "--dtype int4 or int8 compresses while a model is loaded, `dragoman compress` writes a checkpoint",
}

_SERVE_USAGE = """\
usage: dragoman {command} [MODEL] [options]

MODEL is a Hugging Face model directory, a GGUF file, or the name of a model on the hub, as in
  dragoman serve Qwen/Qwen3-0.6B            (what is not here yet is downloaded; @REVISION behind it pins one)
  dragoman serve ./my-model --dtype int4    (a path that begins with . or / is never a model of the hub)
--load-models and --model-store serve several; without any of them, and without models in /opt/ml/model, the bundled demo
model is used (the words demo and demo-vision name the bundled models, of which demo-vision sees pictures). Options may
also stand in serving.properties in the model's directory (option.NAME=value), in the environment (OPTION_NAME=value) and,
for all models, in LMI's config.properties (--config-file); the command line goes first. A value in brackets is the default.

"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (None = the process's). Returns the exit code."""
    if problem := _python_problem(sys.version_info[:3]):  # an installation checks this; a clone does not
        sys.stderr.write(f"dragoman: {problem}\n")
        return 1
    arguments = list(sys.argv[1:] if words is None else words)
    command = arguments[0] if arguments else "--help"
    if command in ("--help", "-h", "help"):
        sys.stdout.write(_OVERVIEW.format(commands=overview()))
        return 0
    if command in ("--version", "version"):
        sys.stdout.write(f"dragoman {__version__}\n")
        return 0
    if command in ALIASES:
        command, arguments = ALIASES[command][0], [*ALIASES[command], *arguments[1:]]
    place = COMMANDS.get(command)
    if place is None:
        sys.stderr.write(f"dragoman: {command}: {_unknown_command(command)}\n")
        return USAGE_ERROR
    try:
        return _run(command, place, arguments[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, MemoryError, RuntimeError) as error:
        problem = _machine_problem(error)
        if not problem:
            raise
        sys.stderr.write(f"dragoman: {command}: {problem}\n")
        return 1


def _unknown_command(command: str) -> str:
    if command in _INSTEAD:
        return f"is no command here; {_INSTEAD[command]}"
    from difflib import get_close_matches

    nearest = get_close_matches(command, COMMANDS, n=1)
    meant = f"the nearest one is {nearest[0]}; " if nearest else ""
    return f"unknown command; {meant}must be one of {', '.join(COMMANDS)}, --help, --version"


def _machine_problem(error: Exception) -> str:
    """A line on an unreadable file or on missing memory; "" for another error."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}; check the path, and that this user may read it"
    # Messages of the runtime, and of the interpreter if a thread's stack cannot be mapped.
    if not isinstance(error, MemoryError) and not any(
        words in str(error) for words in ("bad_alloc", "start new thread")
    ):
        return ""
    import resource

    most_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most_bytes == resource.RLIM_INFINITY:
        return "the memory does not suffice; serve a smaller model, or choose --dtype int4 and a smaller --kv-cache-gb"
    return f"the memory does not suffice: the process may map {most_bytes >> 20} MiB at most; raise it with ulimit -v"


def _python_problem(version: tuple[int, ...]) -> str:
    """The reason why this Python is unsupported, "" if it is supported."""
    if version >= LEAST_PYTHON:
        return ""
    shown, least = (".".join(map(str, number)) for number in (version, LEAST_PYTHON))
    return f"this is Python {shown} ({sys.executable}); {least} or newer is needed, as in python{least} -m venv .venv"


def _run(name: str, place: CommandPlace, words: list[str]) -> int:
    if not place.module:
        return _run_server(name, words)
    from dragoman.cli.subcommand import Console, command_at, run_command
    from dragoman.config.sources import environment

    return run_command(command_at(place), words, Console(environment(), sys.stdout, sys.stderr))


def _run_server(command: str, words: list[str]) -> int:
    from dragoman.cli.server_words import config_text, read_server_words
    from dragoman.config.docs import common_help, options_help, options_page
    from dragoman.config.sources import environment

    if "--help-all" in words:
        sys.stdout.write(_SERVE_USAGE.format(command=command) + options_help() + "\n")
        return 0
    if "--help" in words or "-h" in words:
        rest = f"`dragoman {command} --help-all` lists all options, as docs/options.md does.\n"
        sys.stdout.write(_SERVE_USAGE.format(command=command) + common_help() + "\n\n" + rest)
        return 0
    if command == "config" and words == ["--docs"]:
        sys.stdout.write(options_page())
        return 0
    environ = environment()
    read = read_server_words(words, environ, sys.stderr, may_download=command == "serve")
    if read is None:
        return USAGE_ERROR
    given, resolved = read
    configs = resolved.models or (resolved.process,)
    if command == "config":
        sys.stdout.write("\n".join(config_text(config) for config in configs))
        return 0
    for notice in dict.fromkeys(notice for config in configs for notice in config.notices):
        sys.stderr.write(f"dragoman: note: {notice}\n")
    from dragoman.config.resolve import demo_model_dir
    from dragoman.config.run_time import ModelStore

    store = ModelStore(resolved.store, resolved.process, given, environ, demo_model_dir(), is_named=resolved.is_named)
    gc.disable()  # until the server is ready: looking repeatedly through the objects of a start takes a fifth of a second
    try:
        return _serve(resolved, store)
    finally:
        gc.enable()


def _serve(resolved: Resolved, store: ModelStore) -> int:
    from dragoman.cli.placing import choose_cores

    problem = choose_cores(resolved.process)  # before the runtime is imported
    if problem:
        sys.stderr.write(f"dragoman: {problem}\n")
        return USAGE_ERROR
    from dragoman.cli.progress import ProgressDisplay
    from dragoman.host.loading import ModelLoad, cache_note, has_model, missing_tokenizer
    from dragoman.host.machine import available_memory_bytes

    configs = resolved.models
    notes = dict.fromkeys(note for config in configs if (note := cache_note(config)))
    sys.stderr.write("".join(f"dragoman: note: {note}\n" for note in notes))
    display = ProgressDisplay(sys.stderr, name=configs[0].name if len(configs) == 1 else "")
    memory_bytes = available_memory_bytes()
    if (most_gb := resolved.process.server.memory_gb) is not None:
        memory_bytes = min(memory_bytes, int(most_gb * 2**30))
    # Several models are loaded one after the other, since they share the memory.
    loading = None
    if len(configs) == 1 and has_model(configs[0]) and not missing_tokenizer(configs[0].model_dir):
        loading = ModelLoad(
            configs[0], display, has_neighbours=resolved.store is not None
        )  # further models may be loaded later
    try:
        from dragoman.cli.serve import Serving, serve

        serving = Serving(resolved.process, configs, store, memory_bytes, loading)
        return serve(serving, sys.stdout, sys.stderr, display)
    finally:
        if loading is not None:
            loading.abandon()
            loading.wait()
