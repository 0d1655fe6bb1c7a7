"""Measures what long contexts and many streams cost: the engine against its own kernels, and against OpenVINO GenAI.

Does: time decode steps by context, streams and type of the cache; prompts by length, and what of them is attention; steps by
streams; steps of a model with windows, and of one without. Tables, and one last JSON line. Does not: serve. The models have
386 million random parameters in int8. Run by hand, on an otherwise idle machine, with about 8 GB of memory; each part takes
some minutes:

    python -m benchmarks.long_context
    python -m benchmarks.long_context --only decode --streams 1 --genai MODEL/model-Q8_0.gguf
    python -m benchmarks.long_context --only prompts
    python -m benchmarks.long_context --only widths
    python -m benchmarks.long_context --only windows --streams 1 8

Caches are filled with copies of a short prompt, so that nobody waits for prompts. GenAI's sequences share the blocks of one
prompt, as its prefix cache keeps them; ours only with --share-blocks. `serving.model --gguf` writes its model,
`serving.peers install genai` installs it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.long_context.decoding import SPARE_TOKENS, StepCost, decode_cost, filled_runner, loop_cost, middle
from benchmarks.long_context.filled_runner import MAX_POSITION, FilledRunner, load
from benchmarks.long_context.steps import PromptCost, prompt_cost
from benchmarks.long_context.windows import WINDOW, WindowRunner
from benchmarks.serving import peers
from benchmarks.serving.processes import JsonWorker
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import BLOCK_SIZE
from dragoman.models.profile import this_processor

PARTS = ("decode", "prompts", "widths", "windows")
_STEPS = 3  # in a row
_SHORT = (32, 32)  # tokens of prompts and of answers, where streams are many
_WIDTH_CONTEXT = 64
_GENAI_TYPES = (None, "bf16")  # the pipeline's own, and ours


class Peers:
    """GenAI's pipelines by the type of their cache; nothing where there is no model for them."""

    def __init__(self, stack: ExitStack, asked: argparse.Namespace) -> None:
        self.workers: dict[str, JsonWorker] = {}
        if asked.genai is None:
            return
        python = peers.python_of(asked.peers, "genai")
        for cache_type in _GENAI_TYPES:
            name = f"GenAI {cache_type or 'as it is'}"
            command = [str(python), "-m", "benchmarks.long_context.genai_worker", str(asked.genai)]
            worker = JsonWorker(name, [*command, *filter(None, [cache_type])], asked.peers / "logs")
            self.workers[name] = stack.enter_context(worker)
            worker.pause()

    def ask(self, **question: int) -> dict[str, float]:
        """Each one's milliseconds."""
        found = {}
        for name, worker in self.workers.items():
            with worker.awake():
                found[name] = float(worker.ask(question)["ms"])
        return found


def cache_types() -> tuple[str, str]:
    """What this machine's processor has beside u8, and u8."""
    return ("bf16" if this_processor().has_bf16 else "f16"), "u8"


def decode(asked: argparse.Namespace, others: Peers) -> Iterator[dict[str, Any]]:
    """A row for each context and number of streams."""
    runners = {kv_type: filled_runner(kv_type, asked.memory_gb, asked.layers) for kv_type in cache_types()}
    heads = "".join(f" {kv_type}: step, kernels, ms a token |" for kv_type in runners)
    _say(f"\n| streams | context |{heads} {' | '.join(others.workers)}\n|---|---|" + "---|" * len(runners))
    for streams in asked.streams:
        for context in asked.contexts:
            yield _decode_row(runners, others, streams, context, asked)
    for runner in runners.values():
        runner.close()


def _decode_row(
    runners: dict[str, FilledRunner], others: Peers, streams: int, context: int, asked: argparse.Namespace
) -> dict[str, Any]:
    found: dict[str, list[StepCost]] = {kv_type: [] for kv_type in runners}
    theirs: dict[str, list[float]] = {name: [] for name in others.workers}
    for _ in range(asked.rounds):
        for kv_type, runner in runners.items():
            found[kv_type].append(decode_cost(runner, streams, context, _STEPS, shares=asked.share_blocks))
        for name, value in others.ask(streams=streams, context=context, steps=_STEPS).items():
            theirs[name].append(value)
    costs = {kv_type: middle(each) for kv_type, each in found.items()}
    cells = "".join(
        f" {cost.step_ms:.1f}, {cost.kernels_ms:.1f}, {cost.step_ms / streams:.2f} |" for cost in costs.values()
    )
    told = {name: round(statistics.median(each), 1) for name, each in theirs.items()}
    _say(f"| {streams} | {context} |{cells} " + " | ".join(map(str, told.values())))
    ours = {kv_type: asdict(cost) for kv_type, cost in costs.items()}
    return {"streams": streams, "context": context, **ours, **told}


def prompts(asked: argparse.Namespace, others: Peers) -> Iterator[dict[str, Any]]:
    """A row for each length."""
    types = cache_types()
    num_blocks = -(-max(asked.prompts) // BLOCK_SIZE)
    runners = {kv_type: OpenVinoRunner(load(kv_type, asked.layers), num_blocks) for kv_type in types}
    _say(f"\n| prompt |{''.join(f' {kv_type}: ms a token, of it attention |' for kv_type in types)}"
         f" {' | '.join(others.workers)}\n|---|" + "---|" * len(types))  # fmt: skip
    for runner in runners.values():
        prompt_cost(runner, min(512, max(asked.prompts)))  # has kernels made
    others.ask(prompt=512)
    for length in asked.prompts:
        found: dict[str, list[PromptCost]] = {kv_type: [] for kv_type in types}
        theirs: dict[str, list[float]] = {name: [] for name in others.workers}
        for _ in range(asked.rounds if length <= 2048 else 1):
            for kv_type, runner in runners.items():
                found[kv_type].append(prompt_cost(runner, length))
            for name, value in others.ask(prompt=length).items():
                theirs[name].append(value)
        costs = {
            kv_type: sorted(each, key=lambda one: one.ms_per_token)[len(each) // 2] for kv_type, each in found.items()
        }
        told = {name: round(statistics.median(each), 3) for name, each in theirs.items()}
        cells = "".join(f" {cost.ms_per_token:.2f}, {cost.attention_ms:.2f} |" for cost in costs.values())
        _say(f"| {length} |{cells} " + " | ".join(map(str, told.values())))
        yield {"prompt": length, **{kv_type: asdict(cost) for kv_type, cost in costs.items()}, **told}
    for runner in runners.values():
        runner.close()


def widths(asked: argparse.Namespace, _others: Peers) -> Iterator[dict[str, Any]]:
    """A row for each number of streams that decode, and one for each number of requests that come at once."""
    kv_type = cache_types()[0]
    runner = filled_runner(kv_type, min(asked.memory_gb, 0.5), asked.layers)
    found: dict[int, list[StepCost]] = {streams: [] for streams in asked.widths}
    for _ in range(asked.rounds):
        for streams, costs in found.items():
            costs.append(decode_cost(runner, streams, _WIDTH_CONTEXT, _STEPS))
    runner.close()
    _say("\n| streams | step, ms | kernels, ms | tokens/s |\n|---|---|---|---|")
    for streams, costs in found.items():
        cost = middle(costs)
        _say(f"| {streams} | {cost.step_ms:.1f} | {cost.kernels_ms:.1f} | {1000 * streams / cost.step_ms:.0f} |")
        yield {"streams": streams, **asdict(cost)}
    loaded = load(kv_type, asked.layers)
    columns = (
        "requests at once",
        "tokens/s",
        "steps with prompts",
        "s",
        "that decode",
        "s",
        "rows",
        "beside kernels, s",
    )
    _say(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for requests in [streams for streams in asked.widths if streams >= 32]:
        runs = [loop_cost(loaded, requests, *_SHORT) for _ in range(asked.rounds)]
        run = sorted(runs, key=lambda one: one.tokens_per_s)[len(runs) // 2]
        _say(f"| {requests} | {run.tokens_per_s:.0f} | {run.prompt_steps} | {run.prompt_s:.2f} |"
             f" {run.decode_steps} | {run.decode_s:.2f} | {run.rows:.0f} | {run.host_s:.2f} |")  # fmt: skip
        yield {"requests": requests, **asdict(run)}


def windows(asked: argparse.Namespace, _others: Peers) -> Iterator[dict[str, Any]]:
    """A row for each context and number of streams."""
    kv_type, memory_gb = cache_types()[0], asked.memory_gb / 2
    some, none = [WindowRunner(kv_type, memory_gb, asked.layers, has_windows=has) for has in (True, False)]
    _say(
        f"\n| streams | context | windows of {WINDOW}, ms | whole tables, ms | no windows, ms |\n|---|---|---|---|---|"
    )
    for streams in asked.streams:
        for context in asked.contexts:
            cases = {
                "windows": (some, some.batch(streams, context)),
                "whole": (some, some.batch(streams, context, is_whole=True)),
                "none": (none, none.batch(streams, context)),
            }
            times: dict[str, list[float]] = {name: [] for name in cases}
            for _ in range(asked.rounds):
                for name, (runner, batch) in cases.items():
                    times[name].append(runner.step_ms(batch, _STEPS))
            found = {name: round(statistics.median(each), 1) for name, each in times.items()}
            _say(f"| {streams} | {context} | " + " | ".join(map(str, found.values())) + " |")
            yield {"streams": streams, "context": context, **found}
    for runner in (some, none):
        runner.close()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a whole number from 1 on")
    return int(text)


def _size(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a number of gigabytes from 0.01 on")
    return value


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description="What long contexts and many streams cost.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--streams", nargs="+", type=_count, default=[1, 8, 32], help="that decode (decode, windows)")
    parser.add_argument(
        "--contexts", nargs="+", type=_count, default=[1024, 4096, 8192, 16_384], help="behind which (decode, windows)"
    )
    parser.add_argument("--prompts", nargs="+", type=_count, default=[128, 512, 2048, 8000], help="lengths (prompts)")
    parser.add_argument("--widths", nargs="+", type=_count, default=[8, 32, 64, 65, 96, 128], help="streams (widths)")
    parser.add_argument("--rounds", type=_count, default=3, help="in turn, of which the median counts")
    parser.add_argument(
        "--memory-gb", type=_size, default=2.0, help="of each of the two caches (decode); half of it with windows"
    )
    parser.add_argument("--share-blocks", action="store_true", help="by all streams, as GenAI's do (decode)")
    parser.add_argument("--layers", type=_count, help="fewer than the model's 24, to try")
    parser.add_argument(
        "--genai", type=Path, metavar="GGUF", help="model of OpenVINO GenAI's pipeline, to compare with"
    )
    parser.add_argument("--peers", type=Path, default=peers.DEFAULT_ROOT, metavar="DIR")
    asked = parser.parse_args(words)
    for name, most in (("contexts", MAX_POSITION - SPARE_TOKENS), ("prompts", MAX_POSITION)):
        longest = max(getattr(asked, name))
        if longest > most:
            parser.error(f"argument --{name}: is {longest}, must be at most {most}")
    return asked


def main() -> None:
    """Measure and print."""
    asked = arguments()
    parts = {"decode": decode, "prompts": prompts, "widths": widths, "windows": windows}
    with ExitStack() as stack:
        others = Peers(stack, asked)
        result = {name: list(parts[name](asked, others)) for name in asked.only}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
