"""Those that are measured behind long contexts: the engine on either kernels, OpenVINO GenAI, llama.cpp.

Does: load or start each one; milliseconds of a step, and of a prompt's token; the bytes that a step reads. Peers are
processes that are stopped while others are measured. Does not: print, or choose cases. Used by `__main__`.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from benchmarks.long_context.decoding import SPARE_TOKENS, decode_cost
from benchmarks.long_context.filled_runner import FilledRunner, load, step_ms
from benchmarks.long_context.steps import prompt_cost
from benchmarks.long_context.windows import WindowRunner
from benchmarks.serving import peers
from benchmarks.serving.model import BenchShape, stored_bytes, weight_shapes
from benchmarks.serving.processes import JsonWorker
from dragoman.models import BLOCK_SIZE

KERNELS = ("own", "openvino")
NAMES = (*KERNELS, "genai", "llama.cpp")
LLAMACPP_TYPES = {"u8": "q8_0", "f16": "f16", "bf16": "bf16"}
_Q8_0_BYTES = 34 / 32  # of a value
_GIB = 1024**3
_SHAPE = BenchShape()


class Contender(Protocol):
    """One of them. `weight_bytes`: read in every step; `token_bytes`: of keys and values of a token.

    `always_shares`: its sequences share one context's blocks in all cases.
    """

    weight_bytes: float
    token_bytes: float
    always_shares: bool

    def step_ms(self, streams: int, context: int, num_steps: int, *, shares: bool) -> float:
        """The median of so many steps of sequences behind `context` tokens; `shares`: all behind the same blocks."""

    def prompt_ms(self, num_tokens: int) -> float:
        """Of each token of a prompt."""

    def why_not(self, streams: int, context: int, *, shares: bool) -> str:
        """Why the machine has no room for that cell, "" if it has."""


class Engine:
    """Our engine on one kind of kernels, over a cache that is full."""

    always_shares = False

    def __init__(self, kernels: str, asked: Any) -> None:
        self._kernels, self._kv_type, self._layers = kernels, asked.cache, asked.layers
        loaded = load(asked.cache, asked.layers, kernels)
        room = int(asked.memory_gb * _GIB / sum(loaded.block_bytes))
        self._runner = FilledRunner(loaded, max(room, -(-max(asked.prompts) // BLOCK_SIZE)))
        self.token_bytes = sum(loaded.block_bytes) / BLOCK_SIZE
        self.weight_bytes = float(
            sum(stored_bytes(name, size, "int8") for name, size in matrices(asked.layers).items())
        )
        prompt_cost(self._runner.inner, min(512, max(asked.prompts)))  # has kernels made

    def step_ms(self, streams: int, context: int, num_steps: int, *, shares: bool) -> float:
        """See Contender; each sequence has blocks of its own, unless it shares."""
        return decode_cost(self._runner, streams, context, num_steps, shares=shares).step_ms

    def prompt_ms(self, num_tokens: int) -> float:
        """See Contender."""
        return prompt_cost(self._runner.inner, num_tokens).ms_per_token

    def why_not(self, _streams: int, _context: int, *, shares: bool) -> str:
        """There is always room, as blocks that are not there are others under a further name."""
        return ""

    def bare_step_ms(self, streams: int, context: int, num_steps: int) -> float:
        """The median of steps of the kernels alone, in which each sequence has exactly `context` tokens."""
        return step_ms(self._runner.inner, streams, context, num_steps)

    def with_windows(self, streams: int) -> WindowRunner:
        """A model of the same numbers in which every layer has a window, on the same kernels."""
        return WindowRunner(self._kernels, self._kv_type, streams, self._layers)

    def close(self) -> None:
        """Release the model and the cache."""
        self._runner.close()


class Peer:
    """A worker that answers JSON lines, with a model in Q8_0; stopped while it is not asked."""

    def __init__(self, worker: JsonWorker, token_bytes: float, *, always_shares: bool) -> None:
        self._worker, self.always_shares = worker, always_shares
        self.token_bytes = token_bytes
        self.weight_bytes = _Q8_0_BYTES * sum(rows * columns for rows, columns in matrices(None).values())
        worker.pause()

    def step_ms(self, streams: int, context: int, num_steps: int, *, shares: bool) -> float:
        """See Contender; GenAI's sequences always share."""
        return self._ms(streams=streams, context=context, steps=num_steps, shares=int(shares))

    def prompt_ms(self, num_tokens: int) -> float:
        """See Contender."""
        return self._ms(prompt=num_tokens)

    def why_not(self, streams: int, context: int, *, shares: bool) -> str:
        """See Contender."""
        copies = 1 if shares or self.always_shares else streams
        # a step's cache, and the context that is copied to it
        needed_gb = ((copies + 2) * context + streams * SPARE_TOKENS) * self.token_bytes / _GIB
        free_gb = free_bytes() / _GIB
        return "" if needed_gb < 0.8 * free_gb else f"needs {needed_gb:.1f} GB, {free_gb:.1f} are free"

    def _ms(self, **question: int) -> float:
        with self._worker.awake():
            return float(self._worker.ask(question)["ms"])


def matrices(num_layers: int | None) -> dict[str, tuple[int, int]]:
    """The shapes of those that every step reads: not the table of embeddings."""
    shape = _SHAPE if num_layers is None else BenchShape(num_layers=num_layers)
    shapes = weight_shapes(shape).items()
    return {name: (size[0], size[1]) for name, size in shapes if len(size) == 2 and "embed" not in name}


def free_bytes() -> int:
    """Memory that a new process can have."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say what is available")


def start(asked: Any, stack: ExitStack) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that were asked for and are here, and why others are not. `stack` ends them."""
    found: dict[str, Contender] = {}
    missing: dict[str, str] = {}
    values = 2 * _SHAPE.num_layers * _SHAPE.num_kv_heads * _SHAPE.head_size
    number_bytes = 1 if asked.cache == "u8" else 2
    for name in asked.only:
        if name in KERNELS:
            engine = Engine(name, asked)
            stack.callback(engine.close)
            found[name] = engine
            continue
        gguf = asked.model / "model-Q8_0.gguf"
        is_genai = name == "genai"
        program = peers.python_of(asked.peers, "genai") if is_genai else peers.llamacpp_worker(asked.peers)
        if not is_genai and os.environ.get("DRAGOMAN_KERNELS_ISA"):
            missing[name] = "is built for this processor, whose instructions DRAGOMAN_KERNELS_ISA keeps from us"
        elif program is None or not program.exists():
            missing[name] = f"is not installed: python -m benchmarks.serving.peers install {name}"
        elif not gguf.exists():
            missing[name] = f"{gguf} is not there: python -m benchmarks.serving.model {asked.model} --gguf"
        else:
            if is_genai:
                own_type = [] if asked.cache == "u8" else [asked.cache]  # u8 is the pipeline's own
                command = [str(program), "-m", "benchmarks.long_context.genai_worker", str(gguf), *own_type]
            else:
                command = [str(program), str(gguf), LLAMACPP_TYPES[asked.cache], str(os.cpu_count() or 2)]
            worker = stack.enter_context(JsonWorker(name, command, asked.peers / "logs"))
            is_q8_0 = not is_genai and asked.cache == "u8"
            found[name] = Peer(worker, values * (_Q8_0_BYTES if is_q8_0 else number_bytes), always_shares=is_genai)
            found[name].prompt_ms(min(512, max(asked.prompts)))  # reads the file's pages, and makes kernels
    return found, missing
