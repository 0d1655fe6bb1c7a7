"""Who is compared: our server with and without speculation, llama.cpp's server and OpenVINO GenAI with their own lookups.

Does: write the model that copies, start who is installed, ask each in its own way. Does not: decide what is asked, or judge.
Called by `__main__`, on its thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from benchmarks.serving.model import BenchShape
from benchmarks.serving.peers import dragoman_server, llamacpp_server, python_of
from benchmarks.serving.processes import JsonWorker, Server, ServerProcess
from benchmarks.serving.turns import say
from benchmarks.speculation.asking import Asker, Phase, Request
from benchmarks.speculation.copier import write_copier, write_copier_gguf
from benchmarks.speculation.copier_texts import mind, write_tokenizer
from benchmarks.speculation.tasks import Turn

MOST_STREAMS = 32
SLOT_TOKENS = 1024  # of a stream at llama.cpp: its longest prompt and answer
LLAMACPP, GENAI = "llama.cpp", "GenAI"
GENAI_LOOKUP = ("5", "3")  # guesses per step and longest n-gram: the defaults of its model server


class Asks(Protocol):
    """Asks somebody."""

    def prepare(self, requests: Sequence[Request]) -> None:
        """Have the prompts computed. Raises: LoadFailed, ProcessFailed."""
        ...

    def run(self, requests: Sequence[Request]) -> Phase:
        """Ask all at once. Raises: LoadFailed, ProcessFailed."""
        ...


@dataclass(slots=True)
class Contender:
    """One who answers. `failure`: why it takes part no longer, "" if it does."""

    name: str
    process: ServerProcess | JsonWorker
    asks: Asks
    failure: str = ""
    phases: dict[tuple[str, int], list[Phase]] = field(default_factory=dict)


class GenaiAsker:
    """Asks the worker of OpenVINO GenAI: prompts of token ids, no grammar."""

    def __init__(self, worker: JsonWorker) -> None:
        self._worker = worker

    def prepare(self, requests: Sequence[Request]) -> None:
        """See `Asks`."""
        self.run([replace(request, turn=Turn(1)) for request in requests])

    def run(self, requests: Sequence[Request]) -> Phase:
        """See `Asks`."""
        asked = [{"prompt": list(request.prompt), "max_tokens": request.turn.max_tokens} for request in requests]
        found = self._worker.ask({"requests": asked})
        answers = [tuple(answer) for answer in found["answers"]]
        return Phase(found["seconds"], sum(map(len, answers)), list(answers))


def built_copier(directory: Path, num_layers: int, needs_gguf: bool) -> Path:
    """The model that copies, written if it is not there; returns its directory."""
    shape = BenchShape(num_layers=num_layers)
    if not (directory / "tokenizer.json").exists():
        say("writing the model that copies")
        write_copier(directory, shape, mind())
        write_tokenizer(directory)
    if needs_gguf and not gguf_of(directory).exists():
        say("writing it as GGUF")
        write_copier_gguf(directory, shape, mind())
    return directory


def gguf_of(directory: Path) -> Path:
    """Where the model that copies is as GGUF."""
    return directory / "model-Q8_0.gguf"


def speller(directory: Path) -> Tokenizer:
    """What turns the peers' token ids into the text that our server sends."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def start_own(stack: ExitStack, directory: Path, scratch: Path, mode: str, dtype: str) -> Contender:
    """Our server with `--speculation mode`. Raises: ProcessFailed."""
    arguments = ("--speculation", mode, "--dtype", dtype, "--kv-cache-gb", "1", "--max-num-seqs", str(MOST_STREAMS))
    server = dragoman_server(directory, scratch / "graphs", *arguments, name=f"dragoman {mode}")
    return _serve(stack, server, mode, scratch)


def both_in_one(contender: Contender) -> list[Contender]:
    """Our server asked without guesses, and with them: the same process, so that none is quicker than the other.

    Neither sees what the other has asked, in the caches of prefixes or among the texts that were seen before.
    """
    process = contender.process
    assert isinstance(process, ServerProcess)
    off, on = ({"cache_salt": "off", "num_assistant_tokens": 0}, {"cache_salt": "on"})
    server = process.server
    return [
        Contender("off", process, Asker(server.url, server.form, off)),
        Contender(contender.name, process, Asker(server.url, server.form, on)),
    ]


def start_llamacpp(stack: ExitStack, root: Path, directory: Path, scratch: Path, arguments: str) -> Contender | None:
    """llama.cpp's server with its own lookup; None if it is not installed. Raises: ProcessFailed."""
    server = llamacpp_server(root, gguf_of(directory), MOST_STREAMS, SLOT_TOKENS, *arguments.split())
    return _serve(stack, server, LLAMACPP, scratch) if server else None


def start_genai(stack: ExitStack, root: Path, directory: Path, scratch: Path) -> Contender | None:
    """OpenVINO GenAI's pipeline with prompt lookup; None if it is not installed. Raises: ProcessFailed."""
    python = python_of(root, "genai")
    if not python.exists():
        return None
    say(f"starting {GENAI}")
    command = [str(python), "-m", "benchmarks.speculation.genai_worker", str(gguf_of(directory)), *GENAI_LOOKUP]
    worker = stack.enter_context(JsonWorker(GENAI, command, scratch / "logs"))
    worker.pause()
    return Contender(GENAI, worker, GenaiAsker(worker))


def _serve(stack: ExitStack, server: Server, name: str, scratch: Path) -> Contender:
    say(f"starting {server.name}")
    process = stack.enter_context(ServerProcess(server, scratch / "logs"))
    process.pause()
    return Contender(name, process, Asker(server.url, server.form))
