"""A table of embeddings that is the head's matrix, too, is in memory once, in whatever format the head has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.models import ModelOptions, load_model
from dragoman.models.storage.constants import WeightType
from tests.support.family_logits import logits_of
from tests.support.random_checkpoint import TIED, write_checkpoint

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.varies("the instruction set is the processor's")]

TOKEN_IDS = [(37 * index) % 290 for index in range(64)]
LOSSES: dict[WeightType, float] = {"int8": 0.1, "int4": 0.5, "bf16": 0.1, "f16": 0.1}


def tables(compiled: Any, shape: list[int]) -> int:
    """How many constants of that shape a graph has beside packed ones."""
    constants = [
        node
        for node in compiled.get_runtime_model().get_ops()
        if node.get_type_name() == "ExecutionNode" and node.get_rt_info()["layerType"].astype(str) == "Const"
    ]
    return sum(list(node.get_output_partial_shape(0).to_shape()) == shape for node in constants)


def test_tied_models_have_no_second_table(tmp_path: Path) -> None:
    shape = [TIED.vocab_size, TIED.hidden_size]
    tied = write_checkpoint(TIED, tmp_path / "tied")
    untied = write_checkpoint(replace(TIED, tied=False), tmp_path / "untied")
    expected = logits_of(load_model(tied, ModelOptions("f32")), TOKEN_IDS)
    for weight_type, bound in LOSSES.items():
        options = ModelOptions(weight_type, kernels="own", asks_for_type=True)
        loaded = load_model(tied, options)
        found = logits_of(loaded, TOKEN_IDS)
        loss = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
        assert loss < bound, weight_type
        assert tables(loaded.compiled, shape) == 0, weight_type
        assert tables(load_model(untied, options).compiled, shape) == 1, weight_type
