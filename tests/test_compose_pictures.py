"""A model whose engine takes pictures becomes a service that brings them, within the operator's limits."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from dragoman.compose import ComposedModel, build_served_model
from dragoman.config.names import key_of
from dragoman.config.resolve import Config, demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.engine.base import EngineTools, MemoryNeeds, PictureRules
from dragoman.engine.factory import BuiltEngine, EngineSetup
from dragoman.errors import InvalidParameter, Unavailable
from dragoman.llm import LLM
from dragoman.types import ChatPrompt, GenerationRequest, GenerationResult
from tests.pictures.drawing import data_url, png
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.seeing import GridProcessor

NAME = "an_engine_that_sees"
PLACEHOLDER, PLACEHOLDER_ID = "<|fim_middle|>", 5  # of the demo model's vocabulary


@dataclass
class SeeingFactory:
    """Makes an engine that notes what it is asked; as a factory, and as the model that it loads."""

    engine: FakeEngine

    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        """Nothing."""
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> SeeingFactory:
        """Nothing."""
        return self

    def build(self, tools: EngineTools, memory_bytes: int) -> BuiltEngine:
        """The engine, with what its prompts are made by."""
        return BuiltEngine(self.engine, pictures=PictureRules(GridProcessor(PLACEHOLDER), PLACEHOLDER_ID))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The engine that NAME's factory makes."""
    capabilities = replace(ABILITIES, vocab_size=10_000, pictures=True)
    made = FakeEngine(saying("ok"), capabilities=capabilities)
    module = ModuleType(NAME)
    module.factory = SeeingFactory(made)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, NAME, module)
    return made


def config_of(**options: str) -> Config:
    given = {"engine": f"{NAME}:factory", **options}
    return resolve(
        [Given(name, key_of(name), value, "command line") for name, value in given.items()], {}, demo_model_dir()
    )


def asking(*sizes: tuple[int, int]) -> GenerationRequest:
    images = [{"type": "image_url", "image_url": {"url": data_url(png(*size))}} for size in sizes]
    parts = [{"type": "text", "text": "What is it?"}, *images]
    return GenerationRequest("r1", ChatPrompt(({"role": "user", "content": parts},)))


async def answered(config: Config, request: GenerationRequest) -> tuple[GenerationResult, ComposedModel]:
    composed = await build_served_model(config, lambda stage, fraction: None)
    try:
        return await composed.served.service.generate(request), composed
    finally:
        await composed.served.engine.shutdown(0.0)
        composed.close()


def test_pictures_reach_the_engine_where_its_placeholders_are(engine: FakeEngine) -> None:
    result, composed = asyncio.run(answered(config_of(), asking((2, 1), (1, 3))))
    [request] = engine.requests
    assert [span.picture.width for span in request.pictures] == [2, 1]
    found = [i for i, token_id in enumerate(request.prompt_ids) if token_id == PLACEHOLDER_ID]
    first, second = request.pictures
    assert found[:2] == list(range(first.begin, first.begin + first.length))
    assert (found[2], found[-1]) == (second.begin, second.begin + second.length - 1)
    assert len(found) == 5
    assert result.num_prompt_tokens == len(request.prompt_ids)
    with pytest.raises(Unavailable):  # what brings pictures has ended with the model
        asyncio.run(composed.served.service.generate(asking((2, 2))))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limit_mm_per_prompt": "image=1"}, "at most 1 images .* got 2"),
        ({"max_image_pixels": "5"}, "at most 5 pixels"),
    ],
)
def test_the_operators_limits_hold(options: dict[str, str], says: str, engine: FakeEngine) -> None:
    with pytest.raises(InvalidParameter, match=says):
        asyncio.run(answered(config_of(**options), asking((2, 1), (2, 3))))
    assert engine.requests == []


def test_scripts_send_pictures_as_clients_do(engine: FakeEngine) -> None:
    with LLM(engine=f"{NAME}:factory") as llm:
        prompt = asking((2, 2)).prompt
        assert isinstance(prompt, ChatPrompt)
        llm.chat(prompt.messages, max_tokens=2)
    [span] = engine.requests[0].pictures
    assert (span.picture.width, span.picture.height) == (2, 2)
    assert engine.requests[0].prompt_ids.count(PLACEHOLDER_ID) == 4
