"""Pictures for vLLM: whose are taken, and when vLLM's view of one fits the prompt. Needs no vllm."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.config.bundled import BUNDLED
from dragoman.engine.factory import EngineSetup
from dragoman.engine.vllm import surface
from dragoman.engine.vllm.arguments import picture_arguments
from dragoman.engine.vllm.factory import LoadedVllm
from dragoman.engine.vllm.pictures import PlacedPicture, PreparedPicture, placed_pictures, plan_pictures
from dragoman.errors import UnsupportedFeature
from dragoman.models import ModelError
from dragoman.models.vision.described import NO_DESCRIPTION, NOT_DESCRIBED
from dragoman.types import Detail, EngineRequest, Picture, PictureSpan, SamplingParams

WHITE, BLACK = (Picture(2, 1, bytes([grey]) * 6, f"{grey:02x}") for grey in (255, 0))
SEEN = {"ff": (9, 9), "00": (9, 7, 9)}
"""What vLLM makes of each."""


async def prepare(picture: Picture) -> PreparedPicture:
    token_ids = SEEN[picture.digest]
    return PreparedPicture(token_ids, tuple(token_id == 9 for token_id in token_ids), picture.digest, None)


def request(prompt_ids: tuple[int, ...], *spans: tuple[Picture, int, int], detail: Detail = "auto") -> EngineRequest:
    pictures = tuple(PictureSpan(*span, detail) for span in spans)
    return EngineRequest("r", prompt_ids, SamplingParams(), 4, 1, pictures=pictures)


def placed(asked: EngineRequest) -> tuple[PlacedPicture, ...]:
    return asyncio.run(placed_pictures(asked, prepare))


def test_pictures_stand_where_the_prompt_has_them() -> None:
    found = placed(request((1, 9, 9, 2, 9, 7, 9), (WHITE, 1, 2), (BLACK, 4, 3)))
    assert [(one.prepared.digest, one.begin) for one in found] == [("ff", 1), ("00", 4)]
    assert found[1].prepared.takes == (True, False, True)
    assert placed(request((1, 9, 9))) == ()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            request((1, 9, 9, 9), (WHITE, 1, 3)),
            "picture 1 of the prompt (2 x 1 pixels, detail auto) is not supported by this engine: vLLM makes 2 tokens of "
            "it, the model's own rules 3",
        ),
        (
            request((9, 9, 9, 8, 9), (WHITE, 0, 2), (BLACK, 2, 3)),
            "picture 2 of the prompt (2 x 1 pixels, detail auto) is not supported by this engine: its token 1 is 7 for "
            "vLLM, 8 by the model's own rules",
        ),
        (
            request((1, 9), (BLACK, 1, 1), detail="low"),
            "picture 1 of the prompt (2 x 1 pixels, detail low) is not supported by this engine: vLLM makes 3 tokens of "
            "it, the model's own rules 1; detail must be auto or high",
        ),
    ],
)
def test_where_vllm_has_other_tokens_the_request_is_refused_with_the_difference(
    asked: EngineRequest, says: str
) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        placed(asked)
    assert caught.value.message == says
    assert caught.value.param == "messages"


def setup_of(name: str, **options: Any) -> EngineSetup:
    return EngineSetup(BUNDLED[name], options)


def test_the_rules_of_a_model_are_read_without_its_weights() -> None:
    rules = plan_pictures(setup_of("demo-vision")).rules
    assert rules is not None
    assert rules.processor.layout(400, 200, "auto").num_embeddings == 9
    cut = plan_pictures(setup_of("demo-vision", mm_processor_kwargs='{"do_image_splitting": true}')).rules
    assert cut is not None
    assert cut.processor.layout(400, 200, "auto").num_embeddings == 27


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("demo", {}, NOT_DESCRIBED),
        ("demo-vision", {"limit_mm_per_prompt": 0}, "limit_mm_per_prompt is 0"),
    ],
)
def test_models_without_pictures_say_why(name: str, options: dict[str, Any], why: str) -> None:
    plan = plan_pictures(setup_of(name, **options))
    assert plan.rules is None
    assert why in plan.why
    assert NO_DESCRIPTION not in plan.why, "the start says already that there are no pictures"


def test_keys_that_nobody_knows_stop_the_start() -> None:
    with pytest.raises(ModelError, match=r"new_idea.*mm_processor_kwargs"):
        plan_pictures(setup_of("demo-vision", mm_processor_kwargs='{"new_idea": 1}'))


def test_a_start_fails_where_vllm_cannot_prepare_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    llm: Any = SimpleNamespace(shutdown=lambda: ended.append(True))
    config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=4), model_config=None)

    def fail(llm: Any) -> None:
        raise ImportError("this processor requires\na package")

    monkeypatch.setattr(surface, "is_on_cpu", lambda: False)
    monkeypatch.setattr(surface, "start_engine", lambda arguments, watcher: (llm, config))
    monkeypatch.setattr(surface, "why_blind", lambda llm, model: "")
    monkeypatch.setattr(surface, "try_picture", fail)
    words: Any = None
    tools: Any = None
    setup = setup_of("demo-vision")
    with pytest.raises(ModelError, match=r"pictures: this processor requires a package; option.limit_mm_per_prompt"):
        LoadedVllm(setup, {}, words, plan_pictures(setup)).build(tools, 0)
    assert ended == [True]


@pytest.mark.parametrize(
    ("limits", "is_prefix", "is_on_cpu", "why"),
    [
        ({"image": 2}, False, True, ""),
        ({"image": 2}, True, False, ""),
        ({"image": 2}, True, True, "only earlier ones in vLLM on a processor"),
        ({"image": 0}, False, False, "vLLM takes none"),
        (None, False, False, "vLLM takes none"),
    ],
)
def test_what_vllm_would_not_compute_as_the_model_means_it_is_not_taken(
    limits: dict[str, int] | None, is_prefix: bool, is_on_cpu: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = None if limits is None else SimpleNamespace(info=SimpleNamespace(allowed_mm_limits=limits))
    llm: Any = SimpleNamespace(renderer=SimpleNamespace(mm_processor=processor))
    monkeypatch.setattr(surface, "is_on_cpu", lambda: is_on_cpu)
    found = surface.why_blind(llm, SimpleNamespace(is_mm_prefix_lm=is_prefix))
    assert bool(found) == bool(why)
    assert why in found


def test_vllm_is_told_how_many_pictures_there_may_be_and_how_they_are_prepared() -> None:
    options = {"limit_mm_per_prompt": 2, "mm_processor_kwargs": '{"do_image_splitting": true}'}
    assert picture_arguments(setup_of("demo-vision", **options), sees=True) == {
        "limit_mm_per_prompt": {"image": 2, "video": 0, "audio": 0},
        "mm_processor_kwargs": {"do_image_splitting": True},
    }
    assert picture_arguments(setup_of("demo-vision"), sees=True) == {"limit_mm_per_prompt": {"video": 0, "audio": 0}}
    nothing = {"limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 0}}
    assert picture_arguments(setup_of("demo", **options), sees=False) == nothing
