"""The graphs built from checkpoints compute what transformers computes (references recorded in float32)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import ModelOptions, load_model
from dragoman.models.storage.constants import WeightType
from tests.support.forward import forward_batch
from tests.support.random_checkpoint import SHAPES, write_checkpoint
from tests.support.tiers import width

REFERENCE = Path(__file__).parent / "reference"
DEMO_MODEL = Path(__file__).parents[2] / "src" / "dragoman" / "demo_model"
NAMES = [*(shape.name for shape in SHAPES), "demo"]


@pytest.fixture(scope="module", params=NAMES)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = str(request.param)
    shapes = {shape.name: shape for shape in SHAPES}
    if name in shapes:
        return name, write_checkpoint(shapes[name], tmp_path_factory.mktemp(name))
    return name, DEMO_MODEL


def logits_and_reference(model_dir: tuple[str, Path], weight_type: WeightType) -> tuple[Any, Any]:
    name, directory = model_dir
    reference = np.load(REFERENCE / f"{name}.npz")
    token_ids = [int(token_id) for token_id in reference["token_ids"]]
    runner = OpenVinoRunner(load_model(directory, ModelOptions(weight_type=weight_type)), num_blocks=8)
    logits = runner.forward(forward_batch([(token_ids, 0, range(5))], logit_rows=range(len(token_ids))))
    return logits[:, reference["columns"]].copy(), reference["logits"]


def relative_error(values: Any, reference: Any) -> float:
    return float(np.sqrt(np.mean((values - reference) ** 2) / np.mean(reference**2)))


@pytest.mark.varies("sums are of other kernels on other processors")
def test_float32_logits_equal_the_reference(model_dir: tuple[str, Path]) -> None:
    logits, reference = logits_and_reference(model_dir, "f32")
    assert relative_error(logits, reference) < 1e-4
    assert np.max(np.abs(logits - reference)) / np.max(np.abs(reference)) < 1e-4


BOUNDS = [("bf16", 0.03), ("int8", 0.10), ("int4", 0.50)]


@pytest.mark.varies("which kernels compute it depends on the processor")
@pytest.mark.parametrize(("weight_type", "bound"), width(BOUNDS, BOUNDS[1:]))
def test_compressed_weights_stay_close_to_the_reference(
    model_dir: tuple[str, Path], weight_type: WeightType, bound: float, record_property: Any
) -> None:
    logits, reference = logits_and_reference(model_dir, weight_type)
    error = relative_error(logits, reference)
    record_property(f"{model_dir[0]}_{weight_type}_relative_error", error)
    assert error < bound


def test_a_kept_graph_computes_the_same_and_is_really_used(model_dir: tuple[str, Path], tmp_path: Path) -> None:
    name, directory = model_dir
    batch = forward_batch([([3, 1, 4, 1, 5], 0, range(1))], logit_rows=range(5))
    options = ModelOptions(cache_dir=tmp_path)
    built, mapped = load_model(directory, options), load_model(directory, options)
    assert (built.from_cache, mapped.from_cache) == (False, True), name
    first = OpenVinoRunner(built, num_blocks=4).forward(batch).copy()
    assert np.array_equal(first, OpenVinoRunner(mapped, num_blocks=4).forward(batch))
