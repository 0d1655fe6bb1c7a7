"""Measures what prompt lookup brings at one stream, against plain decoding in the same run; a table and a last JSON line.

Does: run the engine's step loop, without a server, on prompts whose answer repeats them; in turn with and without prompt
lookup, several rounds, and compare the tokens. Does not: measure a draft model. From the repository's root, idle machine:

    python -m benchmarks.speculation                      # a built model of 386M parameters that copies; see `copier`
    python -m benchmarks.speculation --model demo         # the bundled model
    python -m benchmarks.speculation --model MODEL_DIR
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.copier import write_copier
from benchmarks.serving.model import VOCAB_SIZE, BenchShape
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.inbox import AddRequest
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.prompt_lookup import PromptLookupProposer
from dragoman.engine.rolling.speculate.proposer import Proposer, SpeculationConfig
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import EngineOutput, EngineRequest, SamplingParams

COPIER = "copier"
PASSAGES = (
    "The committee met on Tuesday to discuss the new bridge. Several members asked how much the steel would cost and "
    "who would pay for the work. The mayor said that the town had saved enough money to begin in spring.",
    "To bake the bread, mix the flour with water, salt and yeast. Let the dough rest for two hours in a warm place. "
    "Then shape it into a loaf, cut the top with a sharp knife and bake it until the crust is dark and hard.",
    "Our train left the harbour at dawn and followed the coast for most of the morning. Beyond the lighthouse the track "
    "turned inland, past orchards and stone walls, until the first mountains came into sight.",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One answer: tokens per second from the first token on, and what speculation counted."""

    token_ids: tuple[int, ...]
    tokens_per_s: float
    num_draft_tokens: int
    num_accepted_tokens: int


def prompts_of(model: str, directory: Path, num_tokens: int) -> list[list[int]]:
    """Prompts that say something, and begin to say it again.

    Passages of `num_tokens` random tokens for the model that copies, else texts after `Repeat after me:`.
    """
    if model == COPIER:
        streams = (random.Random(number) for number in range(len(PASSAGES)))
        passages = [stream.sample(range(1, VOCAB_SIZE), num_tokens) for stream in streams]
        return [[*passage, *passage[:4]] for passage in passages]
    tokenizer = load_tokenizer(directory)
    texts = [f"Repeat after me: {text}\n{text}\n{' '.join(text.split()[:5])}" for text in PASSAGES]
    return [list(tokenizer.encode(text)) for text in texts]


def measure(loaded: LoadedModel, prompt: Sequence[int], max_tokens: int, proposer: Proposer | None) -> Measured:
    """Generate `max_tokens` tokens greedily, alone."""
    num_blocks = -(-(len(prompt) + max_tokens) // 32) + 8
    runner = OpenVinoRunner(loaded, num_blocks)
    core = EngineCore(runner, Sampler(runner.vocab_size), RollingConfig(), proposer)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    core.inbox.put(AddRequest(0, EngineRequest("r", tuple(prompt), sampling, max_tokens, seed=0)))
    token_ids: list[int] = []
    begin_s = 0.0
    while len(token_ids) < max_tokens:
        for delivery in core.step():
            if not isinstance(delivery.item, EngineOutput):
                raise delivery.item
            begin_s = begin_s or time.perf_counter()
            token_ids += delivery.item.token_ids
    rate = (len(token_ids) - 1) / (time.perf_counter() - begin_s)
    return Measured(tuple(token_ids), rate, core.stats.num_draft_tokens, core.stats.num_accepted_tokens)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prompt lookup against plain decoding, one stream.")
    parser.add_argument("--model", default=COPIER, help="copier, demo, or a model directory")
    parser.add_argument("--dtype", default="int8", choices=("int8", "int4", "bf16", "f16", "f32"))
    parser.add_argument("--layers", type=int, default=24, help="layers of the model that copies")
    parser.add_argument("--prompt-tokens", type=int, default=400, help="length of its passages")
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--num-assistant-tokens", type=int, default=SpeculationConfig().num_assistant_tokens)
    parser.add_argument("--max-ngram-size", type=int, default=SpeculationConfig().max_ngram_size)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(arguments)


def load(options: argparse.Namespace, scratch: Path) -> tuple[LoadedModel, Path]:
    """The chosen model, compiled, and its directory."""
    directory = demo_model_dir() if options.model == "demo" else Path(options.model)
    if options.model == COPIER:
        directory = scratch
        write_copier(directory, BenchShape(num_layers=options.layers))
    return load_model(directory, ModelOptions(weight_type=options.dtype)), directory


def main(arguments: Sequence[str]) -> None:
    """Measure every prompt with and without prompt lookup, in turn, and report."""
    options = parse_arguments(arguments)
    config = SpeculationConfig(options.num_assistant_tokens, options.max_ngram_size)
    write = sys.stdout.write
    with tempfile.TemporaryDirectory() as scratch:
        loaded, directory = load(options, Path(scratch))
        prompts = prompts_of(options.model, directory, options.prompt_tokens)
    write(f"{'prompt':<8}{'plain tok/s':>13}{'lookup tok/s':>14}{'speedup':>9}{'accepted':>10}{'same tokens':>13}\n")
    results = []
    for number, prompt in enumerate(prompts):
        measure(loaded, prompt, 16, None)  # warm-up
        pairs = []
        for _ in range(options.rounds):
            plain = measure(loaded, prompt, options.output_tokens, None)
            pairs.append((plain, measure(loaded, prompt, options.output_tokens, PromptLookupProposer(config))))
        plain_rate = statistics.median(plain.tokens_per_s for plain, _ in pairs)
        quick_rate = statistics.median(quick.tokens_per_s for _, quick in pairs)
        plain, quick = pairs[0]
        accepted = quick.num_accepted_tokens / max(quick.num_draft_tokens, 1)
        num_same = next(
            (i for i, (a, b) in enumerate(zip(plain.token_ids, quick.token_ids, strict=True)) if a != b),
            options.output_tokens,
        )
        speedup = quick_rate / plain_rate
        write(f"{number:<8}{plain_rate:>13.1f}{quick_rate:>14.1f}{speedup:>9.2f}{accepted:>10.0%}{num_same:>13}\n")
        results.append(
            {
                "prompt_tokens": len(prompt),
                "plain_tokens_per_s": round(plain_rate, 1),
                "lookup_tokens_per_s": round(quick_rate, 1),
                "speedup": round(speedup, 3),
                "accepted_share": round(accepted, 3),
                "num_same_tokens": num_same,
            }
        )
    median = statistics.median(result["speedup"] for result in results)
    summary = {"model": options.model, "dtype": options.dtype, "median_speedup": round(median, 3)}
    write(json.dumps({"benchmark": "speculation", **summary, "results": results}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
