"""`dragoman pull`: brings a model of the hub to this machine, so that it can be served without the network.

Does: read its words, show progress, print where the model is. Does not: download (`dragoman.hub` does). Called by `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from dragoman.cli.progress import ProgressDisplay, note_to
from dragoman.hub.download import bring
from dragoman.hub.environment import hub_environment
from dragoman.hub.errors import HubError
from dragoman.hub.names import HubModel, hub_model

FAILED, USAGE_ERROR = 1, 2
_FORM = "a name on the hub, as in ORG/NAME or ORG/NAME@REVISION"

_USAGE = """\
usage: dragoman pull ORG/NAME[@REVISION] [--gguf TYPE]

Brings what a server needs of a model of the hub into the hub's cache on this machine, and prints where it is: weights as
safetensors (or in OpenVINO's form where there are no others), configuration, tokenizer and templates; never pickles. What
is there already is not downloaded again, and a download that was stopped goes on where it was.

  dragoman pull Qwen/Qwen3-0.6B
  dragoman pull Qwen/Qwen3-0.6B@main
  dragoman pull ORG/NAME-GGUF --gguf Q4_0    the file (or the parts) of that quantisation instead of safetensors

  --gguf TYPE    quantisation of a GGUF file, as its name says it: Q4_0, Q8_0, Q4_K_M, ...

Environment: HF_TOKEN (a token, for gated and private models), HF_HOME or HF_HUB_CACHE (where the cache lies),
HF_ENDPOINT (another hub), HF_HUB_OFFLINE=1 (nothing is downloaded). See docs/hub.md.
"""


@dataclass(frozen=True, slots=True)
class _Asked:
    model: HubModel | None
    problems: Sequence[str]


def pull(words: Sequence[str], environ: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Bring the model that `words` name; the exit code: 0, 1 if that failed, 2 for a mistake in the words."""
    if "--help" in words or "-h" in words:
        stdout.write(_USAGE)
        return 0
    asked = _read(words)
    if asked.model is None or asked.problems:
        stderr.writelines(f"dragoman: {problem}\n" for problem in asked.problems)
        return USAGE_ERROR
    display = ProgressDisplay(stderr)
    try:
        path = bring(asked.model, hub_environment(environ), display, note_to(stderr))
    except HubError as error:
        display.finish()
        stderr.write(f"dragoman: {error}\n")
        return FAILED
    display.finish()
    stdout.write(f"{path}\n")
    return 0


def _read(words: Sequence[str]) -> _Asked:
    problems: list[str] = []
    names: list[str] = []
    gguf = ""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.partition("=")[0] == "--gguf":
            gguf = word.partition("=")[2] or (rest.pop(0) if rest else "")
            if not gguf or gguf.startswith("-"):
                problems.append("--gguf (command line): must be followed by a quantisation, such as Q4_0")
        elif word.startswith("-"):
            problems.append(f"{word} (command line): unknown option; `dragoman pull --help` lists the known ones")
        else:
            names.append(word)
    if len(names) != 1:
        problems.append(f"pull: needs one model, {_FORM}" + (f"; got {' '.join(names)}" if names else ""))
        return _Asked(None, problems)
    model = hub_model(names[0])
    if model is None:
        problems.append(f"{names[0]} (command line): must be {_FORM}")
    return _Asked(replace(model, gguf=gguf or model.gguf) if model else None, problems)
