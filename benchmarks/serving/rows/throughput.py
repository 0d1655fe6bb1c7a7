"""Row 1: output tokens per second of many streams at once, against the peers, in turns.

Does: start every contender, pause it, wake one at a time for a closed loop of fresh random prompts. Does not: install peers;
one that is missing or dies is listed with the reason.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.serving import peers
from benchmarks.serving.load import FORMS, LoadFailed, Workload, closed_loop, summarize
from benchmarks.serving.processes import JsonWorker, Server, ServerProcess
from benchmarks.serving.results import Result, Value
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import Contender, Metrics, failed, medians, start, take_turns

ROW = 1
TITLE = "Throughput of many streams"

RUN_LIMIT_S = 1800.0  # of one run: a peer that hangs must not hold up the others for ever

_SEEDS = itertools.count(1)  # fresh prompts for every run of every contender: a prefix cache must not help


def measure(url: str, form: str, workload: Workload, clients: int, requests: int) -> dict[str, float]:
    """Tokens per second and latencies (ms) of a closed loop. Raises: LoadFailed if any request failed or it never ends."""
    loop = closed_loop(url, FORMS[form], workload, clients, requests)
    try:
        timings = asyncio.run(asyncio.wait_for(loop, RUN_LIMIT_S))
    except TimeoutError:
        raise LoadFailed(f"there was no end after {RUN_LIMIT_S:.0f} s") from None
    errors = [timing.error for timing in timings if timing.error]
    if errors:
        raise LoadFailed(f"{len(errors)} of {len(timings)} requests failed; the first: {errors[0]}")
    summary = summarize(timings, workload.output_tokens)
    return {
        "tokens_per_s": summary.output_tokens_per_s,
        "ttft_ms_p50": summary.ttft_ms_p50,
        "itl_ms_p50": summary.itl_ms_p50,
        "itl_ms_p99": summary.itl_ms_p99,
        "pieces_per_request": summary.pieces_per_request,
    }


def run(settings: Settings) -> Iterator[Result]:
    """One result per contender: medians over the rounds, and every round's rate."""
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        contenders = [*_servers(settings, stack, failures), *_genai(settings, stack, failures)]
        for contender in contenders:
            with contender.process.awake():
                _warm_up(contender, settings, failures)
        contenders = [contender for contender in contenders if contender.name not in failures]
        take_turns(contenders, settings.rounds, lambda run: f"{run['tokens_per_s']:.1f} tokens/s")
    for contender in contenders:
        if contender.failure:
            failures[contender.name] = contender.failure
            continue
        rates = [run["tokens_per_s"] for run in contender.runs]
        values: dict[str, Value] = {**medians(contender.runs), "all_rates": " ".join(f"{rate:.1f}" for rate in rates)}
        yield Result(ROW, contender.name, values, {**load_settings(settings), "rounds": len(rates)})
    yield from failed(ROW, failures)


def load_settings(settings: Settings) -> dict[str, Value]:
    """What the load was, for the record."""
    return {
        "clients": settings.clients,
        "requests": settings.requests,
        "prompt_tokens": settings.prompt_tokens,
        "output_tokens": settings.output_tokens,
        "rounds": settings.rounds,
    }


def _wanted(settings: Settings, failures: dict[str, str]) -> Iterator[Server]:
    """Every server that is installed and not left out."""
    clients = settings.clients
    if not settings.peers_only:
        arguments = ("--kv-cache-gb", "4", "--max-num-seqs", str(max(clients, 64)))
        yield peers.plain_server(settings.model, settings.graphs, *arguments, name="dragoman (int8)")
    slot_tokens = settings.prompt_tokens + settings.output_tokens + 64
    found_by_name = {
        f"llama.cpp ({kind})": peers.llamacpp_server(
            settings.peers, settings.model / f"model-{kind}.gguf", clients, slot_tokens
        )
        for kind in ("Q8_0", "Q4_0")
    }
    dtype = settings.vllm_dtype
    found_by_name[f"vLLM ({dtype})"] = peers.vllm_server(settings.peers, settings.model, settings.out / "caches", dtype)
    for name, found in found_by_name.items():
        if {name.partition(" ")[0].lower(), name.lower()} & settings.without:
            continue
        if found is None:
            failures[name] = "not installed"
        else:
            yield found


def _servers(settings: Settings, stack: ExitStack, failures: dict[str, str]) -> Iterator[Contender[Metrics]]:
    for server in list(_wanted(settings, failures)):
        process = start(stack, server.name, partial(ServerProcess, server, settings.logs), failures)
        if process is not None:
            yield Contender(server.name, process, _http_run(server, settings))


def _http_run(server: Server, settings: Settings) -> Callable[[], Metrics]:
    workload = Workload(settings.prompt_tokens, settings.output_tokens)

    def once() -> Metrics:
        fresh = replace(workload, seed=next(_SEEDS))
        return measure(server.url, server.form, fresh, settings.clients, settings.requests)

    return once


def _warm_up(contender: Contender[Metrics], settings: Settings, failures: dict[str, str]) -> None:
    """A few short requests, unmeasured: caches, threads, first allocations, kernels compiled at first use."""
    try:
        if isinstance(contender.process, ServerProcess):
            server = contender.process.server
            workload = Workload(settings.prompt_tokens, 4, seed=next(_SEEDS))
            measure(server.url, server.form, workload, min(settings.clients, 4), 1)
        else:
            contender.process.ask({**_question(settings), "clients": 4, "requests": 1, "output_tokens": 4})
    except (LoadFailed, RuntimeError) as error:
        failures[contender.name] = str(error)


def _question(settings: Settings) -> dict[str, int]:
    return {
        "clients": settings.clients,
        "requests": settings.requests,
        "prompt_tokens": settings.prompt_tokens,
        "output_tokens": settings.output_tokens,
        "seed": next(_SEEDS),
    }


def _genai(settings: Settings, stack: ExitStack, failures: dict[str, str]) -> Iterator[Contender[Metrics]]:
    """OpenVINO GenAI in a process of its own: the pipeline itself, without HTTP in its way."""
    name = "OpenVINO GenAI (Q8_0, no HTTP)"
    python, gguf = peers.python_of(settings.peers, "genai"), settings.model / "model-Q8_0.gguf"
    if "genai" in settings.without:
        return
    if not python.exists() or not gguf.exists():
        failures[name] = "not installed"
        return
    command = [str(python), "-m", "benchmarks.serving.genai_loop", str(gguf)]
    worker = start(stack, name, lambda: JsonWorker(name, command, settings.logs), failures)
    if worker is not None:
        yield Contender(name, worker, lambda: worker.ask(_question(settings)))
