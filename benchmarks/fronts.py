"""Measures what dragoman costs in front of another server: throughput and time to first token, beside that server alone.

Does: vLLM's own server beside `--engine vllm`, and dragoman beside `--engine remote` in front of the very same process, in
turn, all others stopped meanwhile; a table of medians and one last JSON line. Does not: judge. Clients, the front and the
server share this machine's cores, so what a front computes is taken from the model; with `--apart` the server alone has half
of them, as if it were on another machine. Run by hand, on an idle machine:

    python -m benchmarks.serving.model MODEL
    python -m benchmarks.fronts --model MODEL --out DIR --vllm-python .venv-vllm/bin/python

`--vllm-python` names an environment with vLLM and dragoman, as `make test-vllm` makes it; without it only dragoman is
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path

from benchmarks.serving import peers
from benchmarks.serving.load import FORMS, LoadFailed, Summary, Workload, closed_loop, summarize
from benchmarks.serving.processes import Server, ServerProcess
from benchmarks.serving.turns import say

_DTYPES = {"bfloat16": "bf16", "float32": "f32"}  # vLLM's names, and dragoman's


@dataclass(slots=True)
class Setup:
    """Where requests go, and the processes that must be awake for it. `runs`: what was measured, by number of clients."""

    name: str
    url: str
    processes: Sequence[ServerProcess]
    runs: dict[int, list[Summary]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """A server, and dragoman in front of it."""

    bare: Setup
    fronted: Setup

    def compare(self, clients: int) -> dict[str, float]:
        """Medians over rounds: ratio of throughput (of each round's pair), what the first token takes longer in ms."""
        rounds = list(zip(self.bare.runs[clients], self.fronted.runs[clients], strict=True))
        return {
            "bare_tokens_per_s": statistics.median(bare.output_tokens_per_s for bare, _ in rounds),
            "tokens_per_s_ratio": round(
                statistics.median(front.output_tokens_per_s / bare.output_tokens_per_s for bare, front in rounds), 3
            ),
            "bare_ttft_ms": statistics.median(bare.ttft_ms_p50 for bare, _ in rounds),
            "ttft_ms_more": round(statistics.median(front.ttft_ms_p50 - bare.ttft_ms_p50 for bare, front in rounds), 1),
        }


def measure(setup: Setup, workload: Workload, clients: int, requests: int) -> Summary:
    """One closed loop, with only this set-up awake. Raises: LoadFailed, ProcessFailed."""
    with ExitStack() as stack:
        for process in setup.processes:
            stack.enter_context(process.awake())
        timings = asyncio.run(closed_loop(setup.url, FORMS["openai"], workload, clients, requests))
    summary = summarize(timings, workload.output_tokens)
    if summary.num_errors:
        raise LoadFailed(next(timing.error for timing in timings if timing.error))
    return summary


def vllm_pair(stack: ExitStack, given: argparse.Namespace) -> Pair:
    """vLLM's server and `--engine vllm`, each with a vLLM of its own."""
    dtype = peers.default_vllm_dtype()
    bare = peers.vllm_server_of(given.vllm_python, given.model, given.out, dtype)
    words = ("--engine", "vllm", "--max-model-len", "8192", "--dtype", _DTYPES[dtype])
    front = peers.dragoman_server(given.model, given.out / "graphs", *words, name="dragoman on vLLM")
    front = changed(front, command=[str(given.vllm_python), *list(front.command)[1:]], environ=bare.environ)
    return _pair(stack, given.out, bare, front, is_shared=False)


def remote_pair(stack: ExitStack, given: argparse.Namespace) -> Pair:
    """dragoman's server, and another one in front of that very process."""
    bare = peers.plain_server(given.model, given.out / "graphs", "--kv-cache-gb", "2")
    words = ("--engine", "remote", "--upstream", bare.url)
    front = peers.dragoman_server(given.model, given.out / "graphs", *words, name="dragoman on dragoman")
    if given.apart:
        mine, theirs = _halves(os.sched_getaffinity(0))
        os.sched_setaffinity(0, mine)  # the front's too, which is started from here
        bare = changed(bare, command=["taskset", "--cpu-list", ",".join(map(str, theirs)), *bare.command])
    return _pair(stack, given.out, bare, front, is_shared=True)


def _halves(cores: Collection[int]) -> tuple[list[int], list[int]]:
    """The cores in two parts. Raises: ValueError if there is a single one."""
    known = sorted(cores)
    if len(known) < 2:
        raise ValueError("--apart needs two cores")
    return known[len(known) // 2 :], known[: len(known) // 2]


def _pair(stack: ExitStack, out: Path, bare: Server, front: Server, *, is_shared: bool) -> Pair:
    """Both started and paused. `is_shared`: the front asks the bare server, which then must be awake with it."""
    say(f"starting {bare.name}")
    behind = stack.enter_context(ServerProcess(bare, out / "logs"))
    if not is_shared:
        behind.pause()
    say(f"starting {front.name}")
    before = stack.enter_context(ServerProcess(front, out / "logs"))
    behind.pause()
    before.pause()
    awake = [behind, before] if is_shared else [before]
    return Pair(Setup(bare.name, bare.url, [behind]), Setup(front.name, front.url, awake))


def compare(pair: Pair, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Both measured in turn, `rounds` times for each number of clients, the first one changing."""
    setups = (pair.bare, pair.fronted)
    seed = 0
    for clients in given.clients:
        for setup in setups:  # graphs of these batch sizes are compiled, connections opened
            measure(setup, Workload(given.prompt_tokens, 4, seed=-1), clients, 1)
        for number in range(given.rounds):
            for index in (number, number + 1):
                seed += 1
                setup = setups[index % 2]
                workload = Workload(given.prompt_tokens, given.output_tokens, seed=seed)
                summary = measure(setup, workload, clients, given.requests)
                setup.runs.setdefault(clients, []).append(summary)
                say(
                    f"{clients} clients: {setup.name}: {summary.output_tokens_per_s} tokens/s, {summary.ttft_ms_p50} ms"
                )
    return {f"{pair.fronted.name}, {clients} clients": pair.compare(clients) for clients in given.clients}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="made by benchmarks.serving.model")
    parser.add_argument("--out", type=Path, required=True, help="where logs, graphs and what vLLM compiles are kept")
    parser.add_argument("--vllm-python", type=Path, help="an environment with vLLM and dragoman")
    parser.add_argument(
        "--apart",
        action="store_true",
        help="half of the cores are the server's alone, behind --engine remote; Linux only",
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--requests", type=int, default=3, help="of each client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    given = parser.parse_args(arguments)
    if given.apart and given.vllm_python:
        parser.error("argument --apart: not with --vllm-python, which has no front of its own")
    found = {}
    for make in (remote_pair, vllm_pair) if given.vllm_python else (remote_pair,):
        with ExitStack() as stack:
            found.update(compare(make(stack, given), given))
    for name, numbers in found.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in numbers.items()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
