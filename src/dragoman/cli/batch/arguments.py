"""The arguments and options of `dragoman batch`; all other options are the server's, for the model that answers.

Does: read them off the command line, judge them, list them for `--help`. Does not: read the server's options. Called
by `main`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.command_options import SOURCE, CommandOption, as_url, options_text, read_options
from dragoman.config.kinds import Integer, Switch, Text

MAX_CONCURRENCY = 4096  # as many sequences as an engine runs

OPTIONS = (
    CommandOption("model", Text("MODEL"), "a model directory, a GGUF file, or a model of the hub [the bundled one]"),
    CommandOption("url", Text("URL"), "ask the server there instead of loading a model [none]"),
    CommandOption("concurrency", Integer(1, MAX_CONCURRENCY), "requests that run at once [twice max_num_seqs]"),
    CommandOption("retry_errors", Switch(), "ask again what was answered with an error", False),
)

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
    """What a batch is asked for. `url` None = a model that is loaded here; `concurrency` None = as fills its engine."""

    requests: Path
    answers: Path
    url: str | None
    concurrency: int | None
    retry_errors: bool


def read_batch_arguments(words: Sequence[str]) -> tuple[BatchArguments | None, list[str], list[str]]:
    """(What is asked for, None if something is wrong; the server's words; one line for each problem)."""
    _, values, others, problems = read_options(OPTIONS, words)
    places = [word for word in others[:2] if not word.startswith("-")]
    server = others[len(places) :]
    if len(places) != 2:
        problems.append("needs two files first, IN.jsonl with the requests and OUT.jsonl for the answers")
    elif Path(places[0]).resolve() == Path(places[1]).resolve():
        problems.append(f"{places[1]} ({SOURCE}): must be another file than the one with the requests")
    url, model = values["url"], values["model"]
    if url is not None and model is not None:
        problems.append(f"--model={model} ({SOURCE}): is not for --url: the server there has its own models")
    if url is not None and server:
        problems.append(f"{server[0]} ({SOURCE}): is not for --url: the server there has its own options")
    if problems:
        return None, [], problems
    if model is not None:
        server = [str(model), *server]
    concurrency = values["concurrency"]
    asked = BatchArguments(
        requests=Path(places[0]),
        answers=Path(places[1]),
        url=None if url is None else as_url(str(url)),
        concurrency=concurrency if isinstance(concurrency, int) else None,
        retry_errors=bool(values["retry_errors"]),
    )
    return asked, server, []


def batch_help() -> str:
    """How it is used, and the options, a line each."""
    return _USAGE + options_text(OPTIONS)
