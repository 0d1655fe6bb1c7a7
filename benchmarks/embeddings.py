"""Measures how fast texts are embedded: ours over HTTP, llama.cpp's server, and sentence-transformers, in one run.

Does: write a model with random weights in a real size, start who is installed, send each the same texts in turns, print
texts/s and tokens/s of each, the ratio to ours, and whether the vectors are the same; a last JSON line. Does not: install
(`benchmarks.serving.peers` does). The machine must be idle otherwise. Run by hand:

    python -m benchmarks.serving.peers install llama.cpp sentence-transformers
    python -m benchmarks.embeddings --shape bge-small bge-base

Servers get the texts from `--clients` clients at once, `--batch` texts in a call; the library gets them all in one call, in
batches of 32, which it sorts by length itself: it has no HTTP to pay for. Each is measured in several rounds, while the
others are paused, and the median counts.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.embedding_model import GGUF_KINDS, SHAPES, EncoderShape, texts, write_gguf, write_model
from benchmarks.serving.peers import DEFAULT_ROOT, dragoman_server, llamacpp_server, python_of
from benchmarks.serving.processes import JsonWorker, Server, ServerProcess

NUM_SPECIAL = 2  # tokens around a text
KINDS: dict[str, tuple[int, int]] = {"short": (8, 32), "mixed": (8, 300), "long": (200, 500)}
"""Of texts: the fewest and the most words."""

Embed = Callable[[Sequence[str]], tuple[float, list[float]]]
"""The seconds that texts took, and the beginning of the first one's vector."""


@dataclass(slots=True)
class Peer:
    """One who embeds. `seconds`: of each round, by kind of texts."""

    name: str
    process: Any
    embed: Embed
    seconds: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, list[float]] = field(default_factory=dict)


def over_http(server: Server, clients: int, batch: int) -> Embed:
    """Sends texts to a server that speaks OpenAI's embeddings, `batch` in a call, from `clients` clients at once."""

    def embed(given: Sequence[str]) -> tuple[float, list[float]]:
        calls = [list(given[start : start + batch]) for start in range(0, len(given), batch)]
        bodies = [json.dumps({"model": "bench", "input": call, "encoding_format": "float"}).encode() for call in calls]
        begin_s = perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            answers = list(pool.map(lambda part: _send(server.port, part), _shares(bodies, clients)))
        seconds = perf_counter() - begin_s
        first: list[float] = json.loads(answers[0])["data"][0]["embedding"][:8]
        return seconds, first

    return embed


def _shares(bodies: Sequence[bytes], clients: int) -> list[list[bytes]]:
    return [list(bodies[client::clients]) for client in range(min(clients, len(bodies)))]


def _send(port: int, bodies: Sequence[bytes]) -> bytes:
    """The first of the answers to these bodies, one after the other over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    answers = []
    for body in bodies:
        connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        response = connection.getresponse()
        answers.append(response.read())
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {answers[-1][:300]!r}")
    connection.close()
    return answers[0]


def by_library(worker: JsonWorker) -> Embed:
    """Has sentence-transformers embed the texts."""

    def embed(given: Sequence[str]) -> tuple[float, list[float]]:
        answer = worker.ask({"texts": list(given), "batch_size": 32})
        return answer["seconds"], answer["first"]

    return embed


def start_all(given: argparse.Namespace, directory: Path, shape: EncoderShape, stack: ExitStack) -> list[Peer]:
    """Ours in each of the asked types, and every peer that is installed; all paused."""
    peers: list[Peer] = []

    def serve(server: Server | None) -> None:
        if server is None:
            return
        process = stack.enter_context(ServerProcess(server, given.root / "logs"))
        process.pause()
        peers.append(Peer(server.name, process, over_http(server, given.clients, given.batch)))

    for dtype in given.dtype:
        serve(dragoman_server(directory, directory / "graphs", "--dtype", dtype, name=f"dragoman {dtype}"))
    for kind in GGUF_KINDS:
        if (given.root / "llama.cpp").exists():
            file = directory / f"model-{kind}.gguf"
            gguf = file if file.exists() else write_gguf(directory, shape, kind)
            more = ("--embedding", "--pooling", "cls", "-ub", "2048", "-b", "2048", "--alias", "bench")
            serve(llamacpp_server(given.root, gguf, given.clients, 512, *more))
    python = python_of(given.root, "sentence-transformers")
    if python.exists():
        for dtype in ("float32", "bfloat16"):
            script = str(Path(__file__).with_name("sentence_worker.py"))
            name = f"sentence-transformers {dtype}"
            worker = stack.enter_context(
                JsonWorker(name, [str(python), script, str(directory), dtype], given.root / "logs")
            )
            worker.pause()
            peers.append(Peer(name, worker, by_library(worker)))
    return peers


def measure(peers: Sequence[Peer], given: argparse.Namespace) -> None:
    """Each in turn, in each round, with each kind of texts; the first round does not count."""
    for kind in given.kinds:
        fewest, most = KINDS[kind]
        lengths = np.random.RandomState(1).randint(fewest, most + 1, size=given.texts).tolist()
        asked = texts(lengths)
        for number in range(given.rounds + 1):
            for peer in peers:
                with peer.process.awake():
                    seconds, first = peer.embed(asked)
                peer.first[kind] = first
                if number:
                    peer.seconds.setdefault(kind, []).append(seconds)
        num_tokens = sum(lengths) + NUM_SPECIAL * len(lengths)
        _tell(peers, kind, len(asked), num_tokens)


def _tell(peers: Sequence[Peer], kind: str, num_texts: int, num_tokens: int) -> None:
    best = min(median(peer.seconds[kind]) for peer in peers if peer.name.startswith("dragoman"))
    sys.stdout.write(f"\n{kind} texts, {num_tokens / num_texts:.0f} tokens each\n")
    for peer in peers:
        seconds = median(peer.seconds[kind])
        same = float(np.abs(np.array(peer.first[kind]) - np.array(peers[0].first[kind])).max())
        sys.stdout.write(
            f"  {peer.name:34} {num_texts / seconds:8.1f} texts/s {num_tokens / seconds:9.0f} tokens/s"
            f"   ours is {seconds / best:5.2f} times as fast   differs by {same:.4f}\n"
        )
    sys.stdout.flush()


def report(peers: Sequence[Peer], shape: str, given: argparse.Namespace) -> dict[str, Any]:
    """What is written as JSON: for each kind of texts, the ratio of ours to the fastest other."""
    told: dict[str, Any] = {"shape": shape, "clients": given.clients, "batch": given.batch}
    for kind in given.kinds:
        times = {peer.name: median(peer.seconds[kind]) for peer in peers}
        ours = min(seconds for name, seconds in times.items() if name.startswith("dragoman"))
        others = [seconds for name, seconds in times.items() if not name.startswith("dragoman")]
        told[kind] = {
            "texts_per_s": {name: round(given.texts / seconds, 2) for name, seconds in times.items()},
            "ratio_to_best_peer": round(min(others) / ours, 3) if others else None,
        }
    return told


def main() -> None:
    """Measure every shape that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["bge-small"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--dtype", nargs="+", default=["int8", "bf16", "f32"])
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4, help="texts in a call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT)
    given = parser.parse_args()
    reports = []
    for name in given.shape:
        shape = SHAPES[name]
        directory = given.root / "models" / f"embedding-{name}"
        if not (directory / "tokenizer.json").exists():
            write_model(directory, shape)
        with ExitStack() as stack:
            peers = start_all(given, directory, shape, stack)
            sys.stdout.write(f"{name}, {os.cpu_count()} cores: {', '.join(peer.name for peer in peers)}\n")
            measure(peers, given)
            reports.append(report(peers, name, given))
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
