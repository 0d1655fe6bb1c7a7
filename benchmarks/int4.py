"""Measures how much less int4 weights lose than weights of 4 bits that are rounded to the nearest integer.

Does: take the demo model and models of real shapes with random weights; store each in several ways; compare the
probabilities of tokens with those of its weights in f32, as `dragoman eval` does; a table, and one last JSON line. Does not:
measure speed, so the machine need not be idle. Run by hand:

    python -m benchmarks.int4                            (some minutes, 2 GB of memory)
    python -m benchmarks.int4 --only demo llama-3.2-1b --layers 2

Rounding to nearest has symmetric integers in groups of 128 columns, of which the value that is farthest from zero becomes
the lowest one, and nothing at 8 bits; its other row leaves head and values at 8 bits as int4 does, so that what is between
them is what the search for scales gains. Random weights are drawn from Student's t distribution with 4 degrees of freedom:
trained ones have far values as it has, which is what makes 4 bits hard. Of a shape some layers and a part of the vocabulary
are enough, as widths are what matters. They say which way loses less, not how much a trained model loses.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.shapes import SHAPES
from demo.corpus.mix import sample_document
from dragoman.cli.progress import ProgressDisplay
from dragoman.config.resolve import demo_model_dir
from dragoman.models import LoadedModel, ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor, WeightSource
from dragoman.models.storage.constants import WeightType
from dragoman.models.stored.opening import stored_weights
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tools.evaluate import Window, cut_text, evaluate

DEMO = "demo"
GROUP_SIZE = 128
WINDOW = 256
_VOCABULARY = 8192  # of random models: a whole head would be most of what is computed
_TABLE, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Way:
    """A way of storing weights. `nearest`: None = as the type does it, else the matrices that are rounded to nearest."""

    name: str
    weight_type: WeightType
    nearest: str | None = None


WAYS = (
    Way("nearest", "int4", "all"),
    Way("nearest_8_bit_head_and_values", "int4", "without head and values"),
    Way("int4", "int4"),
)


# --- weights ----------------------------------------------------------------------------------------------------------


class RandomWeights:
    """Has every tensor that it is asked for: heavy-tailed matrices, norms of one, biases of zero; the same for a name."""

    def __init__(self) -> None:
        self._made: dict[str, Array] = {}

    def __contains__(self, _name: str) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """See `WeightSource`. Matrices keep the size of what they are multiplied with."""
        if name not in self._made:
            if len(shape) == 1:
                values = np.full(shape, 0 if name.endswith(".bias") else 1, np.float32)
            else:
                values = np.random.RandomState(zlib.crc32(name.encode())).standard_t(4, shape).astype(np.float32)
                values *= np.float32((0.5 / shape[1]) ** 0.5)  # a variance of 2 is the distribution's own
            self._made[name] = values.astype(ml_dtypes.bfloat16)
        return self._made[name]


class Untied:
    """A source with a head of its own, equal to the table if it has none, and with matrices rounded to nearest."""

    def __init__(self, source: WeightSource, nearest: str | None) -> None:
        self._source, self._nearest = source, nearest

    def __contains__(self, name: str) -> bool:
        return name == _HEAD or name in self._source

    def __iter__(self) -> Iterator[str]:
        return iter([*self._source, _HEAD])

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """See `WeightSource`."""
        stored = self._source.tensor(name if name in self._source else _TABLE, shape)
        return nearest(np.asarray(stored)) if self._is_rounded(name, shape) else stored

    def _is_rounded(self, name: str, shape: tuple[int, ...]) -> bool:
        if self._nearest is None or name == _TABLE or len(shape) != 2 or shape[1] % GROUP_SIZE:
            return False
        return self._nearest == "all" or not name.endswith((_HEAD, "v_proj.weight"))


def nearest(weight: Array) -> PackedMatrix:
    """Each value as the nearest integer of its group's steps. Shape: [out, in]."""
    grouped = weight.astype(np.float32).reshape(len(weight), -1, GROUP_SIZE)
    farthest = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)
    scales = (farthest / -8).astype(np.float16)
    steps = scales.astype(np.float32)
    integers = np.rint(np.divide(grouped, steps, out=np.zeros_like(grouped), where=steps != 0))
    return PackedMatrix(np.clip(integers, -8, 7).astype(np.int8).reshape(weight.shape), scales[:, :, 0], bits=4)


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to be stored, and the text that it reads. `source`: its weights, as they are."""

    config: dict[str, Any]
    source: WeightSource
    windows: list[Window]

    def load(self, weight_type: WeightType, rounded: str | None = None) -> LoadedModel:
        """The model with weights stored so, `rounded` of them to nearest before."""
        model = read_model(self.config | {"tie_word_embeddings": False})
        return compile_source(model, Untied(self.source, rounded), ModelOptions(weight_type))


def subject_of(name: str, num_layers: int, num_tokens: int, stack: ExitStack) -> Subject:
    """The demo model, or one of that shape with random weights; what it holds open is closed with `stack`."""
    if name == DEMO:
        directory = demo_model_dir()
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        opened: AbstractContextManager[WeightSource] = stored_weights(directory).open()
        return Subject(config, stack.enter_context(opened), cut_text(demo_tokens(num_tokens), WINDOW, None))
    config = {"max_position_embeddings": WINDOW, **SHAPES[name]}
    config |= {"vocab_size": _VOCABULARY, "num_hidden_layers": min(num_layers, config["num_hidden_layers"])}
    tokens = np.random.RandomState(0).randint(0, _VOCABULARY, num_tokens).tolist()
    return Subject(config, RandomWeights(), cut_text(tokens, WINDOW, None))


def demo_tokens(count: int) -> list[int]:
    """Text of the kind that the demo model was trained with."""
    stream, tokenizer = Random(1), load_tokenizer(demo_model_dir())
    tokens: list[int] = []
    while len(tokens) < count:
        document = "".join(part for part, _ in sample_document(stream))
        tokens += tokenizer.encode(document + "<|endoftext|>", add_special_tokens=False)
    return tokens[:count]


def measure(subject: Subject, display: ProgressDisplay, name: str) -> dict[str, Any]:
    """By way of storing: the mean KL divergence from the weights in f32; and int4's as a part of rounding to nearest's."""
    reference = subject.load("f32")
    found: dict[str, Any] = {}
    for way in WAYS:
        loaded = subject.load(way.weight_type, way.nearest)

        def show(_stage: str, fraction: float, way: Way = way) -> None:
            display(f"{name}, {way.name}", fraction)

        found[way.name] = evaluate(loaded, subject.windows, show, reference).divergence_mean
    display.finish()
    return found | {"ratio": found["int4"] / found["nearest"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How much less int4 loses than rounding to nearest.")
    known = [DEMO, "qwen3-0.6b", "qwen2.5-0.5b", "llama-3.2-1b"]
    parser.add_argument("--only", nargs="+", choices=known, default=known[:3], metavar="MODEL", help=", ".join(known))
    parser.add_argument("--layers", type=int, default=4, help="of the random models")
    parser.add_argument("--tokens", type=int, default=2048, help="of the text that each reads")
    asked = parser.parse_args()
    display, result = ProgressDisplay(sys.stderr), {}
    sys.stdout.write(f"{'KL, nats a token':14} {'nearest':>10} {'8-bit head, values':>20} {'int4':>10} {'ratio':>7}\n")
    for name in asked.only:
        with ExitStack() as stack:
            row = result[name] = measure(subject_of(name, asked.layers, asked.tokens, stack), display, name)
        first, second, third = (row[way.name] for way in WAYS)
        sys.stdout.write(f"{name:16} {first:10.5f} {second:20.5f} {third:10.5f} {row['ratio']:7.2f}\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
