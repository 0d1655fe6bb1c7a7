"""The arguments and options of `dragoman batch`; all others are the server's, for the model that answers.

`batch_run` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.arguments import SOURCE
from dragoman.cli.subcommand import Command, ReadWords, as_url, option, options_of
from dragoman.config.kinds import Integer, Switch, Text

MAX_CONCURRENCY = 4096  # as many sequences as an engine runs

_USAGE = """\
usage: dragoman batch IN.jsonl OUT.jsonl [--model MODEL | --url URL] [options]

Answers a file of requests in OpenAI's batch format: a JSON object on each line, with a custom_id of its own, "POST" as its
method, a url (/v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses) and the body. OUT gets a line for each
as soon as it is answered, so not in their order. What OUT holds already is not asked again: a batch that was stopped, killed
or cut off goes on with the same command. MODEL is loaded for it, with all options of `dragoman serve`; with --url a running
server answers (its key in the variable DRAGOMAN_API_KEY). The exit code is 0 if all is answered, 3 if there are errors among
the answers, 1 if the batch could not be run to its end. See docs/batch.md.

  dragoman batch requests.jsonl answers.jsonl
  dragoman batch requests.jsonl answers.jsonl --model Qwen/Qwen3-0.6B --max-num-seqs 128
  dragoman batch requests.jsonl answers.jsonl --url http://localhost:8080 --retry-errors
"""


@dataclass(frozen=True, slots=True)
class BatchArguments:
    """`url` None = a model loaded here; `concurrency` None = enough to fill its engine."""

    requests: Path
    answers: Path
    model: str | None = option(Text("MODEL"), "a model directory, a GGUF file, or a model of the hub [the bundled one]")
    url: str | None = option(Text("URL"), "ask the server there instead of loading a model [none]")
    concurrency: int | None = option(Integer(1, MAX_CONCURRENCY), "requests that run at once [twice max_num_seqs]")
    retry_errors: bool = option(Switch(), "ask again what was answered with an error", False)


def read_batch(words: ReadWords) -> BatchArguments | None:
    places, others = [Path(word) for word in words.others[:2]], words.others[2:]
    if len(places) != 2:
        words.problems.append("needs two files first, IN.jsonl with the requests and OUT.jsonl for the answers")
        return None
    if places[0].resolve() == places[1].resolve():
        words.problems.append(f"{places[1]} ({SOURCE}): must be another file than the one with the requests")
    url, model = words.values["url"], words.values["model"]
    if url is None:
        words.server_words = [*([] if model is None else [model]), *others, *words.flags]
    else:
        if model is not None:
            words.refuse("model", "is not for --url: the server there has its own models")
        words.refuse_server_words(others)
        words.values["url"] = as_url(url)
    return words.made(BatchArguments, requests=places[0], answers=places[1])


COMMAND = Command(_USAGE, options_of(BatchArguments), read_batch, "dragoman.cli.batch_run", takes_server_options=True)
