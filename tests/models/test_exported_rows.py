"""Exported graphs with products that are too wide for one order of sums: what is done so that a lone request repeats.

That is where integers are unpacked to be multiplied, and their graphs are not cut as those of checkpoints are.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.compose import engine_tools
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.rolling.assembly import assemble
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import this_processor
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.support.exported_model import write_exported
from tests.support.forward import forward_batch


def load(directory: Path, monkeypatch: pytest.MonkeyPatch, *, widest: int, multiplies_integers: bool) -> LoadedModel:
    """The model, as on a processor of that kind on which products of up to `widest` columns have one order of sums."""
    processor = replace(this_processor(), has_integer_dot_products=multiplies_integers)
    monkeypatch.setattr("dragoman.models.profile.this_processor", lambda: processor)
    monkeypatch.setattr("dragoman.models.ir.read.ONE_ORDER_COLUMNS", widest)
    return load_model(directory, ModelOptions(num_threads=2))


def speculates(model: LoadedModel, speculation: str) -> bool:
    tools = engine_tools(load_tokenizer(demo_model_dir()))
    return assemble(RollingOptions(speculation=speculation), model, None, [4], 64, tools).capabilities.speculative


def test_nobody_guesses_by_default_and_pieces_of_prompts_have_rows_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_exported("qwen3-int8", tmp_path)
    for widest, multiplies_integers, rounds in ((8, False, True), (2816, False, False), (8, True, False)):
        model = load(directory, monkeypatch, widest=widest, multiplies_integers=multiplies_integers)
        assert model.profile.rounds_by_rows is rounds
        assert (speculates(model, "auto"), speculates(model, "lookup")) == (not rounds, True)
        runner = OpenVinoRunner(model, num_blocks=4)
        piece, decoding = ([1, 2, 3], 0, [0]), ([4], 3, [0])
        sizes = []
        for row in (piece, decoding):
            runner.forward(forward_batch([row], logit_rows=[len(row[0]) - 1]))
            sizes.append(np.size(runner.output("input_ids")))
        assert sizes == [7 if rounds else 3, 2]
