"""How far the demo model moves when it is written in a type of GGUF files, and when it is served from such a file.

Does: write the file, load it, have it read a text beside another form of itself. Does not: judge. Used by
tests/gguf/test_divergence.py, scripts/record_gguf_divergence.py and scripts/models_page.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load_file

from demo.corpus.mix import sample_document
from dragoman.config.resolve import demo_model_dir
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tools.evaluate import cut_text, evaluate
from tests.support.gguf_writer import write_tensors

RECORDED = Path(__file__).parents[1] / "models" / "reference" / "gguf_divergence.json"
LOSSY_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")
"""Whose values are computed and stored anew."""

_NUM_TOKENS, _WINDOW = 1024, 256


def recorded_divergences() -> dict[str, dict[str, float]]:
    """By type what `divergences_of` found when it was recorded."""
    found: dict[str, dict[str, float]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def divergences_of(type_name: str, directory: Path) -> dict[str, float]:
    """Mean KL divergences in nats for each token of a text, of the demo model as a file of that type.

    file: of the file's values from the checkpoint's, both in f32. int8, int4: of the model as it is served with that
    `--dtype` from the file's values in f32.
    """
    original = load_model(demo_model_dir(), ModelOptions("f32"))
    path = write_demo(type_name, directory)
    file = load_model(path, ModelOptions("f32"))
    return {
        "file": divergence(file, original),
        "int8": divergence(load_model(path, ModelOptions("int8", asks_for_type=True)), file),
        "int4": divergence(load_model(path, ModelOptions("int4", asks_for_type=True)), file),
    }


def write_demo(type_name: str, directory: Path) -> Path:
    """The demo model as a GGUF file without a tokenizer, its matrices and its table in that type."""
    source = demo_model_dir()
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    stored = load_file(source / "model.safetensors")
    tensors = {name: np.asarray(value, dtype=np.float32) for name, value in stored.items()}
    return write_tensors(config, tensors, directory / f"demo-{type_name}.gguf", type_name)


def divergence(
    loaded: LoadedModel, reference: LoadedModel, progress: Callable[[str, float], None] | None = None
) -> float:
    """Mean KL divergence of a model from another, over text of the kind that the demo model knows."""
    stream = Random(1)
    text = "<|endoftext|>".join("".join(part for part, _ in sample_document(stream)) for _ in range(40))
    tokens = load_tokenizer(demo_model_dir()).encode(text, add_special_tokens=False)[:_NUM_TOKENS]
    assert len(tokens) == _NUM_TOKENS
    windows = cut_text(tokens, _WINDOW, None)
    found = evaluate(loaded, windows, progress or (lambda _stage, _fraction: None), reference).divergence_mean
    assert found is not None
    return found
