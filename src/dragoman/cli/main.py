"""The `dragoman` command: picks the subcommand, resolves the configuration, tells what is wrong with it.

Does: `--help`, `--version`, read the words of every command. Does not: build or run anything itself.
Called by the console script and by `python -m dragoman`, on the main thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

from dragoman import __version__

if TYPE_CHECKING:  # each command imports what it needs when it runs: `--help` need not wait for the options of a server
    from dragoman.config.hub_models import FindModel
    from dragoman.config.resolve import Config
    from dragoman.config.run_time import ModelStore
    from dragoman.config.several import Resolved
    from dragoman.config.sources import Given

LEAST_PYTHON = (3, 11)  # as pyproject.toml says
USAGE_ERROR = 2  # as argument parsers and shells use it
INTERRUPTED = 130  # as shells report a process that Ctrl-C ended

_OVERVIEW = """\
dragoman: one LLM inference server that speaks LMI, OpenVINO Model Server, OpenAI, TGI and plain text at once

usage: dragoman serve [MODEL] [options]        load a model and answer clients
       dragoman chat [MODEL | URL [PROMPT]] [options]
                                               a conversation in the terminal, or the answer to PROMPT
       dragoman complete [MODEL | URL] [PROMPT] [options]
                                               go on with a text
       dragoman batch IN.jsonl OUT.jsonl [--model MODEL | --url URL] [options]
                                               answer a file of requests (OpenAI's batch format), resumably
       dragoman bench URL [options]            how fast a server answers, this one or another, under load
       dragoman pull ORG/NAME[@REVISION]       bring a model of the hub to this machine
       dragoman models [rm NAME]               list the models on this machine, or remove one
       dragoman config [MODEL] [options]       print what was resolved and from where
       dragoman config --docs                  print docs/options.md
       dragoman plan [MODEL] --rate R --prompt N --output M [options]
                                               how many replicas that needs, by simulation
       dragoman eval [MODEL_DIR] --text FILE [--against MODEL_DIR] [options]
                                               perplexity, and how far a model is from another one
       dragoman compress MODEL_DIR OUT [--text FILE] [options]
                                               write a checkpoint with weights of 4 or 8 bits
       dragoman warm MODEL FILE... --prefix-store-gb N [options]
                                               compute beginnings of prompts before anybody asks
       dragoman store [list | verify | trim --to-gb N | empty] [--prefix-store-dir DIR]
                                               the prompts that servers keep on disk
       dragoman explain --request FILE [--url URL | MODEL]
                                               what would be done with a call, without doing it
       dragoman selftest [MODEL] [options]     whether the model computes here as it should
       dragoman doctor [MODEL] [options]       what would run here and how fast, what is wrong, and how to mend it
       dragoman completion bash|zsh|fish       a script by which a shell completes these commands
       dragoman --version

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

_PLAN_USAGE = """\
usage: dragoman plan [MODEL] --rate R --prompt N --output M [options]

Says how many replicas of a server answer R requests a second of N prompt and M completion tokens each, within bounds on
latency, and what they do meanwhile: the rolling engine's scheduler is run in simulated time, over what its steps cost.
These costs are measured in a server that is started for it on this machine, which should be idle; --costs FILE keeps them,
and a file of another machine plans for that one. --costs-from FILE takes them from what a server did (`dragoman serve
--step-log FILE`). All options of `dragoman serve` may be given too, and act as they do there. See docs/scaling.md.

  dragoman plan ./my-model --rate 20 --prompt 512 --output 128 --ttft 1 --itl 0.1
  dragoman plan ./my-model --rate 20 --prompt 512 --output 128 --replicas 4 --costs costs.json
  dragoman plan ./my-model --rate 20 --prompt 512 --output 128 --costs-from steps

"""

_EVAL_USAGE = """\
usage: dragoman eval [MODEL_DIR] --text FILE [--against MODEL_DIR] [--against-dtype TYPE] [options]

Has a model read a text and tells its perplexity. With --against, or --against-dtype for the same model stored otherwise,
also how far its probabilities are from the other's: the KL divergence in nats for each token, mean and 99th percentile, and
how often both find the same token the likeliest. All options of `dragoman serve` may be given too, and act as they do there.
See docs/compression.md.

  dragoman eval ./my-model --text book.txt
  dragoman eval ./my-model --dtype int4 --against-dtype f32 --text book.txt    what int4 costs

"""

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
    """Run the command line `words` (None = the process's own); the exit code."""
    if problem := _python_problem(sys.version_info[:3]):  # of an installation it is known before; of a clone it is not
        sys.stderr.write(f"dragoman: {problem}\n")
        return 1
    arguments = list(sys.argv[1:] if words is None else words)
    command = arguments[0] if arguments else "--help"
    if command in ("--help", "-h", "help"):
        sys.stdout.write(_OVERVIEW)
        return 0
    if command in ("--version", "version"):
        sys.stdout.write(f"dragoman {__version__}\n")
        return 0
    if command in ALIASES:
        command, arguments = ALIASES[command][0], [*ALIASES[command], *arguments[1:]]
    run = _RUN.get(command)
    if run is None:
        sys.stderr.write(f"dragoman: {command}: {_unknown_command(command)}\n")
        return USAGE_ERROR
    try:
        return run(arguments[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, MemoryError, RuntimeError) as error:
        problem = _machine_problem(error)
        if not problem:
            raise
        sys.stderr.write(f"dragoman: {command}: {problem}\n")
        return 1


def _unknown_command(command: str) -> str:
    """What to do instead of a command that there is not."""
    if command in _INSTEAD:
        return f"is no command here; {_INSTEAD[command]}"
    from difflib import get_close_matches

    nearest = get_close_matches(command, COMMANDS, n=1)
    meant = f"the nearest one is {nearest[0]}; " if nearest else ""
    return f"unknown command; {meant}must be one of {', '.join(COMMANDS)}, --help, --version"


def _machine_problem(error: Exception) -> str:
    """One line on a file that cannot be read, or on memory that is not there; "" if the error is of another kind."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}; check the path, and that this user may read it"
    # The runtime's own word, and the interpreter's where a thread's stack cannot be mapped.
    if not isinstance(error, MemoryError) and not any(one in str(error) for one in ("bad_alloc", "start new thread")):
        return ""
    import resource

    most_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most_bytes == resource.RLIM_INFINITY:
        return "the memory does not suffice; serve a smaller model, or choose --dtype int4 and a smaller --kv-cache-gb"
    return f"the memory does not suffice: the process may map {most_bytes >> 20} MiB at most; raise it with ulimit -v"


def _python_problem(version: tuple[int, ...]) -> str:
    """Why this Python does not do, "" if it does."""
    if version >= LEAST_PYTHON:
        return ""
    shown, least = (".".join(map(str, number)) for number in (version, LEAST_PYTHON))
    return f"this is Python {shown} ({sys.executable}); {least} or newer is needed, as in python{least} -m venv .venv"


def _run_hub_command(command: str, words: list[str]) -> int:
    """What manages the models on this machine; the exit code."""
    from dragoman.config.sources import environment

    try:
        if command == "pull":
            from dragoman.cli.pull_command import pull

            return pull(words, environment(), sys.stdout, sys.stderr)
        from dragoman.cli.models_command import models

        return models(words, environment(), sys.stdin, sys.stdout, sys.stderr)
    except KeyboardInterrupt:
        sys.stderr.write("dragoman: stopped; what has arrived is kept\n" if command == "pull" else "\n")
        return INTERRUPTED


def _run_command(command: str, words: list[str]) -> int:
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
    try:
        read = _read(words, environ, sys.stderr, may_download=command == "serve")
    except KeyboardInterrupt:
        return INTERRUPTED
    if read is None:
        return USAGE_ERROR
    given, resolved = read
    configs = resolved.models or (resolved.process,)
    if command == "config":
        from dragoman.cli.config_command import config_text

        sys.stdout.write("\n".join(config_text(config) for config in configs))
        return 0
    for notice in dict.fromkeys(notice for config in configs for notice in config.notices):
        sys.stderr.write(f"dragoman: note: {notice}\n")
    from dragoman.config.resolve import demo_model_dir
    from dragoman.config.run_time import ModelStore

    try:
        store = ModelStore(
            resolved.store, resolved.process, given, environ, demo_model_dir(), is_named=resolved.is_named
        )
        return _serve(resolved, store)
    except KeyboardInterrupt:  # before the server's own handlers are in place
        return INTERRUPTED


def _run_plan(words: list[str]) -> int:
    """Read the options of the plan and of the server, and plan; the exit code."""
    from dragoman.cli.plan.arguments import plan_help, read_plan_arguments
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(_PLAN_USAGE + plan_help())
        return 0
    asked, server_words, problems = read_plan_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    read = _read(server_words, environment(), sys.stderr, may_download=asked is not None)
    if asked is None or read is None:
        return USAGE_ERROR
    configs = read[1].models
    if len(configs) != 1:
        sys.stderr.write("dragoman: a plan is for one model; name its directory\n")
        return USAGE_ERROR
    sys.stderr.write("".join(f"dragoman: note: {notice}\n" for notice in configs[0].notices))
    from dragoman.cli.plan.command import plan

    return plan(configs[0], server_words, asked, sys.stdout, sys.stderr)


def _run_eval(words: list[str]) -> int:
    """Read the options of the evaluation and of the server, and evaluate; the exit code."""
    from dragoman.cli.eval.arguments import eval_help, read_eval_arguments
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(_EVAL_USAGE + eval_help())
        return 0
    asked, server_words, problems = read_eval_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    read = _read(server_words, environment(), sys.stderr, may_download=asked is not None)
    if asked is None or read is None:
        return USAGE_ERROR
    configs = list(read[1].models)
    if asked.compares:
        other = [asked.against or str(configs[0].model_dir), "--dtype", asked.against_dtype or "f32"]
        found = _read(other, environment(), sys.stderr, may_download=True)
        if found is None:
            return USAGE_ERROR
        configs += found[1].models
    if len(configs) != 1 + asked.compares:
        sys.stderr.write("dragoman: an evaluation is of one model; name its directory\n")
        return USAGE_ERROR
    from dragoman.cli.eval.command import run_eval

    return run_eval(configs[0], configs[1] if asked.compares else None, asked, sys.stdout, sys.stderr)


def _run_compress(words: list[str]) -> int:
    """Read the options of the compression, and compress; the exit code."""
    from dragoman.cli.compress.arguments import compress_help, read_compress_arguments

    if "--help" in words or "-h" in words:
        sys.stdout.write(compress_help())
        return 0
    asked, problems = read_compress_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    if asked is None:
        return USAGE_ERROR
    from dragoman.cli.compress.command import run_compress

    return run_compress(asked, sys.stdout, sys.stderr)


def _run_warm(words: list[str]) -> int:
    """Read the files and the model's options, and compute the prompts; the exit code."""
    from dragoman.cli.warm.arguments import read_warm_arguments, warm_help

    if "--help" in words or "-h" in words:
        sys.stdout.write(warm_help())
        return 0
    asked, server_words, problems = read_warm_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    if asked is None:
        return USAGE_ERROR
    config = _read_one(server_words, "prompts are computed by")
    if config is None:
        return USAGE_ERROR
    from dragoman.cli.warm.command import run_warm

    return run_warm(config, asked, sys.stdout, sys.stderr)


def _run_store(words: list[str]) -> int:
    """Read what is to be done with the prompts on disk, and do it; the exit code."""
    from dragoman.cli.store.arguments import read_store_arguments, store_help
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(store_help())
        return 0
    asked, problems = read_store_arguments(words, environment())
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    if asked is None:
        return USAGE_ERROR
    from dragoman.cli.store.command import run_store

    return run_store(asked, sys.stdout, sys.stderr)


def _run_explain(words: list[str]) -> int:
    """Read the call and where to explain it, and explain it; the exit code."""
    from dragoman.cli.explain.arguments import explain_help, read_explain_arguments
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(explain_help())
        return 0
    asked, server_words, problems = read_explain_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    if asked is None:
        return USAGE_ERROR
    from dragoman.cli.explain.command import run_explain

    if asked.url is not None:
        return run_explain(None, asked, sys.stdout, sys.stderr, environment().get("DRAGOMAN_API_KEY", ""))
    read = _read(server_words, environment(), sys.stderr, may_download=True)
    if read is None:
        return USAGE_ERROR
    if len(read[1].models) != 1:
        sys.stderr.write("dragoman: a call is explained by one model; name its directory\n")
        return USAGE_ERROR
    return run_explain(read[1].models[0], asked, sys.stdout, sys.stderr)


def _run_batch(words: list[str]) -> int:
    """Read the files of the batch and who answers it, and run it; the exit code."""
    from dragoman.cli.batch.arguments import batch_help, read_batch_arguments
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(batch_help())
        return 0
    asked, server_words, problems = read_batch_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    if asked is None:
        return USAGE_ERROR
    read = None if asked.url else _read(server_words, environment(), sys.stderr, may_download=True)
    if read is None and not asked.url:
        return USAGE_ERROR
    configs = read[1].models if read is not None else ()
    if not asked.url and len(configs) != 1:
        sys.stderr.write("dragoman: a batch is answered by one model; name it with --model\n")
        return USAGE_ERROR
    from dragoman.cli.batch.command import run_batch

    key = environment().get("DRAGOMAN_API_KEY", "")
    return run_batch(configs[0] if configs else None, asked, sys.stdout, sys.stderr, key)


def _run_bench(words: list[str]) -> int:
    """Measure a server as its clients see it; the exit code."""
    from dragoman.cli.bench.command import run_bench
    from dragoman.config.sources import environment

    return run_bench(words, environment(), sys.stdout, sys.stderr)


def _run_chat(words: list[str]) -> int:
    """Read who answers and how, and hold a conversation; the exit code."""
    from dragoman.cli.terminal.arguments import chat_help, read_chat_arguments
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(chat_help())
        return 0
    asked, server_words, problems = read_chat_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    if asked is None:
        return USAGE_ERROR
    from dragoman.cli.terminal.chat.chat_command import run_chat

    if asked.target.url is not None:
        return run_chat(None, asked, environment())
    config = _read_one(server_words, "a conversation is with")
    return USAGE_ERROR if config is None else run_chat(config, asked, environment())


def _run_complete(words: list[str]) -> int:
    """Read the prompt and who goes on with it, and print that; the exit code."""
    from dragoman.cli.terminal.arguments import complete_help, read_complete_arguments
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(complete_help())
        return 0
    asked, server_words, problems = read_complete_arguments(words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in problems))
    if asked is None:
        return USAGE_ERROR
    from dragoman.cli.terminal.complete_command import run_complete

    if asked.target.url is not None:
        return run_complete(None, asked, environment())
    config = _read_one(server_words, "a text is completed by")
    return USAGE_ERROR if config is None else run_complete(config, asked, environment())


def _read_one(words: list[str], what: str) -> Config | None:
    """The configuration of the only model that the words name, or None after the problems were written."""
    from dragoman.config.sources import environment

    read = _read(words, environment(), sys.stderr, may_download=True)
    if read is None:
        return None
    if len(read[1].models) != 1:
        sys.stderr.write(f"dragoman: {what} one model; name its directory\n")
        return None
    return read[1].models[0]


def _run_completion(words: list[str]) -> int:
    """Print the script of a shell; the exit code."""
    from dragoman.cli.completion.completion_command import run_completion

    return run_completion(words, COMMANDS, sys.stdout, sys.stderr)


def _run_selftest(words: list[str]) -> int:
    """Read the options of the self-test and of the server, and test; the exit code."""
    from dragoman.cli.command_options import read_options
    from dragoman.cli.selftest.arguments import OPTIONS, selftest_help
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(selftest_help())
        return 0
    asked = read_options(OPTIONS, words)
    sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in asked.problems))
    read = None if asked.problems else _read(asked.others, environment(), sys.stderr, may_download=True)
    if read is None:
        return USAGE_ERROR
    if len(read[1].models) != 1:
        sys.stderr.write("dragoman: a self-test is of one model; name its directory\n")
        return USAGE_ERROR
    from dragoman.cli.selftest.command import run_selftest

    as_json, is_quick = bool(asked.values["json"]), bool(asked.values["quick"])
    return run_selftest(read[1].models[0], sys.stdout, sys.stderr, as_json=as_json, is_quick=is_quick)


def _run_doctor(words: list[str]) -> int:
    """Read the options of the doctor, and have this machine examined; the exit code."""
    from dragoman.cli.command_options import read_options
    from dragoman.cli.doctor.arguments import OPTIONS, doctor_help
    from dragoman.config.sources import environment

    if "--help" in words or "-h" in words:
        sys.stdout.write(doctor_help())
        return 0
    asked = read_options(OPTIONS, words)
    if asked.problems:
        sys.stderr.write("".join(f"dragoman: {problem}\n" for problem in asked.problems))
        return USAGE_ERROR
    from dragoman.cli.doctor.command import run_doctor

    return run_doctor(asked.others, environment(), sys.stdout, as_json=bool(asked.values["json"]))


def _serve(resolved: Resolved, store: ModelStore) -> int:
    """Serve until told to stop; the exit code. What is imported here takes a second: help and errors need not wait."""
    from dragoman.cli.placing import choose_cores

    problem = choose_cores(resolved.process)  # before the runtime is imported
    if problem:
        sys.stderr.write(f"dragoman: {problem}\n")
        return USAGE_ERROR
    from dragoman.cli.progress import ProgressDisplay
    from dragoman.host.cache_note import cache_note
    from dragoman.host.loading import ModelLoad, has_model, missing_tokenizer
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
        )  # others may be loaded later
    try:
        from dragoman.cli.serve import Serving, serve

        serving = Serving(resolved.process, configs, store, memory_bytes, loading)
        return serve(serving, sys.stdout, sys.stderr, display)
    finally:
        if loading is not None:
            loading.abandon()
            loading.wait()


def _read(
    words: list[str], environ: Mapping[str, str], errors: TextIO, *, may_download: bool
) -> tuple[Sequence[Given], Resolved] | None:
    """What the command line gives and the configurations, or None after the problems were written to `errors`.

    Without `may_download` a model of the hub is looked for in the cache only.
    """
    from dragoman.cli.arguments import read_arguments
    from dragoman.cli.progress import ProgressDisplay, note_to
    from dragoman.config.hub_models import with_models
    from dragoman.config.resolve import ConfigError, demo_model_dir
    from dragoman.config.several import resolve_all

    arguments = read_arguments(words)
    problems = list(arguments.problems)
    demo_dir = demo_model_dir()
    display = ProgressDisplay(errors)

    def resolved_with(find: FindModel | None) -> Resolved:
        resolved = resolve_all(arguments.givens, environ, demo_dir, find=find)
        if problems:  # of the command line's form: nothing is downloaded first
            raise ConfigError(())
        return resolved

    try:
        if may_download:
            resolved = with_models(resolved_with, demo_dir, environ, display, note_to(errors))
        else:
            resolved = resolved_with(None)
    except ConfigError as error:
        display.finish()
        problems += error.problems
    else:
        display.finish()
        return arguments.givens, resolved
    errors.write("".join(f"dragoman: {problem}\n" for problem in problems))
    return None


_RUN: Mapping[str, Callable[[list[str]], int]] = {
    "serve": partial(_run_command, "serve"),
    "chat": _run_chat,
    "complete": _run_complete,
    "batch": _run_batch,
    "bench": _run_bench,
    "pull": partial(_run_hub_command, "pull"),
    "models": partial(_run_hub_command, "models"),
    "config": partial(_run_command, "config"),
    "plan": _run_plan,
    "eval": _run_eval,
    "compress": _run_compress,
    "warm": _run_warm,
    "store": _run_store,
    "explain": _run_explain,
    "selftest": _run_selftest,
    "doctor": _run_doctor,
    "completion": _run_completion,
}
COMMANDS = tuple(_RUN)
"""Their names, in the order of `--help`."""
