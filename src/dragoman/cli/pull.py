"""`dragoman pull`: downloads a model of the hub, and prints its path. `dragoman.hub` downloads."""

from __future__ import annotations

from dataclasses import replace

from dragoman.cli.arguments import SOURCE
from dragoman.cli.commands import INTERRUPTED
from dragoman.cli.progress import note_to
from dragoman.cli.subcommand import Command, CommandOption, Console, ReadWords
from dragoman.config.kinds import Text
from dragoman.hub.download import bring
from dragoman.hub.environment import hub_environment
from dragoman.hub.names import HubError, HubModel, hub_model

FAILURES = (HubError,)
_FORM = "a name on the hub, as in ORG/NAME or ORG/NAME@REVISION"

_USAGE = """\
usage: dragoman pull ORG/NAME[@REVISION] [--gguf TYPE]

Brings what a server needs of a model of the hub into the hub's cache on this machine, and prints where it is: weights as
safetensors (or in OpenVINO's form where there are no others), configuration, tokenizer and templates; never pickles. What
is there already is not downloaded again, and a download that was stopped goes on where it was.

  dragoman pull Qwen/Qwen3-0.6B
  dragoman pull Qwen/Qwen3-0.6B@main
  dragoman pull ORG/NAME-GGUF --gguf Q4_0    the file (or the parts) of that quantisation instead of safetensors
"""

_NOTES = """
Environment: HF_TOKEN (a token, for gated and private models), HF_HOME or HF_HUB_CACHE (where the cache lies),
HF_ENDPOINT (another hub), HF_HUB_OFFLINE=1 (nothing is downloaded). See docs/hub.md.
"""


class _GgufType(Text):
    """A quantisation; `words`: suggestions for shells."""

    words = ("q4_0", "q8_0", "q4_k_m")


OPTIONS = (
    CommandOption(
        "gguf", _GgufType("TYPE"), "quantisation of a GGUF file, as its name says it: Q4_0, Q8_0, Q4_K_M, ..."
    ),
)


def read_pull(words: ReadWords) -> HubModel | None:
    names = words.others
    if len(names) != 1:
        got = f"; got {' '.join(names)}" if names else ""
        words.problems.append(f"pull: needs one model, {_FORM}{got}")
        return None
    model = hub_model(names[0])
    if model is None:
        words.problems.append(f"{names[0]} ({SOURCE}): must be {_FORM}")
        return None
    return replace(model, gguf=words.values["gguf"] or model.gguf)


def run(_: object, model: HubModel, console: Console) -> int:
    try:
        path = bring(model, hub_environment(console.variables), console.display, note_to(console.stderr))
    except KeyboardInterrupt:
        console.tell("stopped; what has arrived is kept")
        return INTERRUPTED
    console.display.finish()
    console.stdout.write(f"{path}\n")
    return 0


COMMAND = Command(_USAGE, OPTIONS, read_pull, "dragoman.cli.pull", notes=_NOTES)
