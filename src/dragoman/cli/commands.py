"""Lists the commands. Their modules are imported only when needed, so that `--help` is fast.

The module of a command has its usage, its options and its run; heavy imports are in functions, or the run is in NAME_run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FAILED, USAGE_ERROR = 1, 2
INTERRUPTED = 130  # the usual exit code after Ctrl-C
_COLUMN = 40  # of a command's purpose


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """The place of a command. `words`: its arguments in the usage line. `module`: has its `COMMAND`, "" = `main` itself,
    with the options of a server. `flags`: its other flags, with their help.
    """

    words: str
    summary: str
    module: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)


COMMANDS: Mapping[str, CommandPlace] = {
    "serve": CommandPlace("[MODEL] [options]", "load a model and answer clients"),
    "chat": CommandPlace("[MODEL | URL [PROMPT]] [options]", "a conversation in the terminal, or the answer to PROMPT",
        "terminal.chat"),
    "complete": CommandPlace("[MODEL | URL] [PROMPT] [options]", "go on with a text", "terminal.complete"),
    "batch": CommandPlace("IN.jsonl OUT.jsonl [--model MODEL | --url URL] [options]",
        "answer a file of requests (OpenAI's batch format), resumably", "batch"),
    "bench": CommandPlace("URL [options]", "how fast a server answers, this one or another, under load",
        "bench"),
    "pull": CommandPlace("ORG/NAME[@REVISION]", "bring a model of the hub to this machine", "pull"),
    "models": CommandPlace("[rm NAME]", "list the models on this machine, or remove one", "models"),
    "config": CommandPlace("[MODEL] [options]", "print what was resolved and from where",
        flags={"--docs": "print docs/options.md"}),
    "plan": CommandPlace("[MODEL] --rate R --prompt N --output M [options]", "how many replicas that needs, by simulation",
        "plan"),
    "eval": CommandPlace("[MODEL_DIR] --text FILE [--against MODEL_DIR] [options]",
        "perplexity, and how far a model is from another one", "eval"),
    "compress": CommandPlace("MODEL_DIR OUT [--text FILE] [options]", "write a checkpoint with weights of 4 or 8 bits",
        "compress"),
    "warm": CommandPlace("MODEL FILE... --prefix-store-gb N [options]", "compute beginnings of prompts before anybody asks",
        "warm"),
    "store": CommandPlace("[list | verify | trim --to-gb N | empty] [--prefix-store-dir DIR]",
        "the prompts that servers keep on disk", "store"),
    "explain": CommandPlace("--request FILE [--url URL | MODEL]", "what would be done with a call, without doing it",
        "explain"),
    "selftest": CommandPlace("[MODEL] [options]", "whether the model computes here as it should",
        "selftest"),
    "doctor": CommandPlace("[MODEL] [options]", "what would run here and how fast, what is wrong, and how to mend it",
        "doctor"),
    "completion": CommandPlace("bash|zsh|fish", "a script by which a shell completes these commands",
        "completion"),
}  # fmt: skip
"""In the order of `--help`."""


def overview() -> str:
    lines = []
    for name, place in COMMANDS.items():
        for words, summary in ((place.words, place.summary), *place.flags.items()):
            usage = f"dragoman {name} {words}"
            lines += [f"{usage:<{_COLUMN}}{summary}"] if len(usage) < _COLUMN else [usage, " " * _COLUMN + summary]
    return "\n       ".join([*lines, "dragoman --version"])
