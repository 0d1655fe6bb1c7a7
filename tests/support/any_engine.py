"""Starts the demo model in f32 on the engine that the end-to-end suites are run on (`--engine`).

What an engine lacks is in `tests.support.differences`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.config.resolve import demo_model_dir
from tests.support.server_process import ServerProcess, serve

# Half a gibibyte holds the longest context of the model; eager: compiling would take longer than the suites.
_ON_VLLM = ("--engine", "vllm", "--kv-cache-gb", "0.5", "--enforce-eager", "true")


def write_weightless(directory: Path) -> Path:
    """The demo model without its weights, as `--engine remote` needs it; the directory."""
    for file in demo_model_dir().iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, directory / file.name)
    return directory


@contextmanager
def serve_demo(engine: str, directory: Path, *arguments: str) -> Iterator[ServerProcess]:
    """A server on that engine, whose model is called demo; behind `remote` is a second one on the built-in engine.

    It writes a line of each call. `directory`: an empty one, for files that the server needs. `arguments`: what is in front
    of the engine.
    """
    named = ("--name", "demo", "--max-num-seqs", "96", "--log-requests", "json")
    if engine == "vllm":
        with serve(
            *_ON_VLLM, *named, "--dtype", "f32", *arguments, environ={"HF_HUB_OFFLINE": "1"}, patience_s=600
        ) as running:
            yield running
        return
    # Without guesses every event of a stream has one token, as documented: how many hold depends on how long steps take.
    computing = (*named, "--dtype", "f32", "--speculation", "off")
    if engine == "rolling":
        with serve(*computing, *arguments) as running:
            yield running
        return
    with serve(*computing) as behind:
        model = str(write_weightless(directory))
        with serve(model, "--engine", "remote", "--upstream", behind.base_url, *named, *arguments) as running:
            yield running
