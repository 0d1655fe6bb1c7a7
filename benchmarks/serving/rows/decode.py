"""Row 2: tokens per second of one stream, against how fast memory can be read.

A lone stream reads every weight once per token, so memory bandwidth divided by the weights' bytes bounds its rate.
Does: decode int8 and int4 with our server and llama.cpp's, in turns, and probe the bandwidth beside them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safetensors import safe_open

from benchmarks.serving import bandwidth, peers
from benchmarks.serving.load import FORMS, LoadFailed, Workload, ask
from benchmarks.serving.model import stored_bytes
from benchmarks.serving.processes import Server, ServerProcess
from benchmarks.serving.results import Result
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import Contender, Metrics, failed, medians, start, take_turns
from dragoman.models.config import read_json

ROW = 2
TITLE = "Decoding one stream"

_PROMPT_TOKENS = 32
_SEEDS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Subject:
    """A server, and the bytes of weights it reads for a token."""

    server: Server
    weight_bytes: int


def measure(url: str, form: str, output_tokens: int, seed: int) -> dict[str, float]:
    """Tokens per second of one stream after its first token. Raises: LoadFailed if the request failed."""
    timing = asyncio.run(ask(url, FORMS[form], Workload(_PROMPT_TOKENS, output_tokens, seed=seed), 0))
    if timing.error:
        raise LoadFailed(timing.error)
    return {"tokens_per_s": round((output_tokens - 1) / (timing.token_times_s[-1] - timing.token_times_s[0]), 2)}


def run(settings: Settings) -> Iterator[Result]:
    """The bandwidth, then each subject's rate, its bytes per second and their share of the bandwidth."""
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        contenders: list[Contender[Metrics]] = []
        subjects = {subject.server.name: subject for subject in _subjects(settings)}
        for name, subject in subjects.items():
            process = start(stack, name, partial(ServerProcess, subject.server, settings.logs), failures)
            if process is not None:
                contenders.append(Contender(name, process, _stream(subject.server, 2 * settings.output_tokens)))
        probes = [bandwidth.measure()]  # everybody is paused
        take_turns(contenders, 1, lambda run: f"{run['tokens_per_s']:.1f} tokens/s (warm-up)")
        for contender in contenders:
            contender.runs.clear()
        take_turns(contenders, settings.rounds, lambda run: f"{run['tokens_per_s']:.1f} tokens/s")
        probes.append(bandwidth.measure())
    best = max(probes, key=lambda probe: probe.gb_per_s)
    yield Result(ROW, "memory", {"gb_per_s": best.gb_per_s, "kernel": best.kernel, "threads": best.num_threads})
    for contender in contenders:
        if contender.failure:
            failures[contender.name] = contender.failure
            continue
        size, rate = subjects[contender.name].weight_bytes, medians(contender.runs)["tokens_per_s"]
        values = {
            "tokens_per_s": rate,
            "weights_mb": round(size / 1e6, 1),
            "gb_per_s": round(size * rate / 1e9, 2),
            "share_of_bandwidth": round(size * rate / 1e9 / best.gb_per_s, 3),
            "bound_tokens_per_s": round(best.gb_per_s * 1e9 / size, 1),
        }
        yield Result(ROW, contender.name, values, {"rounds": len(contender.runs)})
    yield from failed(ROW, failures)


def _stream(server: Server, output_tokens: int) -> Callable[[], Metrics]:
    return lambda: measure(server.url, server.form, output_tokens, next(_SEEDS))


def _subjects(settings: Settings) -> Iterator[Subject]:
    if not settings.peers_only:
        for dtype in ("int8", "int4"):
            arguments = ("--dtype", dtype, "--kv-cache-gb", "1")
            name = f"dragoman ({dtype})"
            server = peers.plain_server(settings.model, settings.graphs, *arguments, name=name)
            yield Subject(server, weight_bytes(settings.model, dtype))
    if "llama.cpp" in settings.without:
        return
    for kind in ("Q8_0", "Q4_0"):
        file = settings.model / f"model-{kind}.gguf"
        found = peers.llamacpp_server(settings.peers, file, 1, 1024)
        if found is not None:
            yield Subject(found, gguf_weight_bytes(settings.model, kind))


def weight_bytes(model: Path, dtype: str) -> int:
    """Bytes of weights that our kernels read for a token: every matrix but the embedding."""
    return sum(stored_bytes(name, shape, dtype) for name, shape in matrix_shapes(model).items())


def gguf_weight_bytes(model: Path, kind: str) -> int:
    """Bytes of weights that llama.cpp reads for a token. Blocks of 32 values have one scale of two bytes."""
    block_bytes = {"Q8_0": 34, "Q4_0": 18}[kind]
    return sum(rows * columns // 32 * block_bytes for rows, columns in matrix_shapes(model).values())


def matrix_shapes(model: Path) -> dict[str, tuple[int, int]]:
    """The matrices that every token is multiplied by: with the output layer, without the embedding."""
    is_tied = bool(read_json(model / "config.json").get("tie_word_embeddings"))
    shapes = {}
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # not a mapping
                shape = tensors.get_slice(name).get_shape()
                if len(shape) == 2 and (is_tied or "embed_tokens" not in name):
                    shapes[name] = (int(shape[0]), int(shape[1]))
    return shapes
