"""Every tower prepares pictures and embeds them as transformers does, and its decoder reads them as there.

The cases are tests/models/vision; scripts/record_picture_references.py recorded them in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.models import ModelOptions
from dragoman.models.architectures import TOWERS
from tests.support.tiers import width
from tests.support.vision_checkpoint import read_vision_case, vision_case_names
from tests.support.vision_model import SeeingModel


@pytest.fixture(scope="module", params=vision_case_names())
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SeeingModel:
    name = str(request.param)
    return SeeingModel(name, tmp_path_factory.mktemp(name), ModelOptions(weight_type="f32"))


def test_every_tower_has_a_recorded_case() -> None:
    recorded = {read_vision_case(name)["config"]["architectures"][0] for name in vision_case_names()}
    assert recorded == set(TOWERS)


def test_pictures_are_prepared_as_the_reference_prepares_them(model: SeeingModel) -> None:
    for name in model.case["pictures"]:
        difference, of_sums = model.pixel_errors(name)
        size = np.prod(model.reference[f"shape_{name}"])
        assert difference < 1e-6, name
        assert of_sums < 1e-6 * size**0.5, name  # rounding differs in both directions


def test_a_marker_becomes_what_the_reference_makes_of_it(model: SeeingModel) -> None:
    for name in model.case["pictures"]:
        assert model.picture_ids(name) == model.reference[f"ids_{name}"].tolist(), name
    for index in range(len(model.case["prompts"])):
        assert model.prompt_ids(index) == model.reference[f"token_ids_{index}"].tolist()


# Other sizes, norms and ways to cut pictures of towers that are in it.
VARIANTS = {"idefics3_whole", "internvl_chat_internlm2", "llava_padded", "qwen3_5_moe", "qwen3_vl_moe", "smolvlm"}


@pytest.mark.parametrize(
    "model", width(vision_case_names(), [name for name in vision_case_names() if name not in VARIANTS]), indirect=True
)
def test_float32_embeddings_equal_the_reference(model: SeeingModel, record_property: Any) -> None:
    errors = {name: model.embedding_error(name) for name in model.case["pictures"]}
    record_property(f"{model.name}_f32_embedding_error", max(errors.values()))
    assert max(errors.values()) < 1e-4, errors


# Pictures that see both ways, in windows alone, tiles, three positions, levels, layers with a state.
FEW = ["gemma3", "gemma4", "llava_next", "qwen2_5_vl", "qwen3_vl", "qwen3_5"]


@pytest.mark.varies("sums are of other kernels on other processors")
@pytest.mark.parametrize("model", width(vision_case_names(), FEW), indirect=True)
def test_float32_logits_equal_the_reference(model: SeeingModel, record_property: Any) -> None:
    errors = [model.logit_error(index) for index in range(len(model.case["prompts"]))]
    record_property(f"{model.name}_f32_logit_error", max(errors))
    assert max(errors) < 1e-4, errors


@pytest.mark.parametrize("name", width(vision_case_names(), ["gemma3", "internvl_chat", "qwen2_5_vl"]))
def test_compressed_weights_stay_close_to_the_reference(name: str, tmp_path: Path, record_property: Any) -> None:
    """Tiny random towers lose far more than trained ones."""
    model = SeeingModel(name, tmp_path, ModelOptions(weight_type="int8"))
    error = max(model.embedding_error(picture) for picture in model.case["pictures"])
    record_property(f"{name}_int8_embedding_error", error)
    assert error < 0.1
