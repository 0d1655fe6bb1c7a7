"""An engine in one file, named by its address in the options, serves like the one that comes with dragoman."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from dragoman.compose import build_served_model
from dragoman.config.resolve import Config, ConfigError, demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.host.loading import memory_needs
from dragoman.types import GenerationRequest, GenerationResult, SamplingParams, TextPrompt

TOY = Path(__file__).resolve().parents[1] / "support" / "toy_engine.py"


def config_of(engine: str) -> Config:
    return resolve([Given("--engine", "option.engine", engine, "command line")], {}, demo_model_dir())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has heard of, with a copy of the toy in it."""
    (tmp_path / "somebodys_engine.py").write_text(TOY.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "somebodys_engine", raising=False)
    return "somebodys_engine"


async def answer(config: Config, request: GenerationRequest) -> tuple[GenerationResult, object]:
    composed = await build_served_model(config, lambda stage, fraction: None)
    try:
        return await composed.served.service.generate(request), composed
    finally:
        await composed.served.engine.shutdown(0.0)


def test_an_engine_in_a_module_of_its_own_is_chosen_by_an_option_and_serves(module: str) -> None:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    request = GenerationRequest("r", TextPrompt("What is deep learning?"), sampling, max_tokens=5)
    config = config_of(f"{module}:factory")
    result, composed = asyncio.run(answer(config, request))
    (sequence,) = result.sequences
    assert len(sequence.tokens) == 5
    assert all(token.id < 32 for token in sequence.tokens)  # the toy's vocabulary
    assert composed.facts == ("a toy",)  # type: ignore[attr-defined]
    assert module in sys.modules
    assert memory_needs(config).least == 0


def test_a_queue_timeout_is_refused_at_the_start_for_an_engine_that_does_not_tell_when_requests_begin(
    module: str,
) -> None:
    givens = [
        Given("--engine", "option.engine", f"{module}:factory", "command line"),
        Given("--queue-timeout", "queue_timeout", "3", "command line"),
    ]
    with pytest.raises(ConfigError) as caught:
        asyncio.run(build_served_model(resolve(givens, {}, demo_model_dir()), lambda stage, fraction: None))
    (problem,) = caught.value.problems
    assert problem.startswith("--queue-timeout=3.0 (command line): engine somebodys_engine:factory does not tell when")


def test_a_budget_of_reasoning_is_refused_at_the_start_for_an_engine_that_does_not_keep_it(module: str) -> None:
    givens = [
        Given("--engine", "option.engine", f"{module}:factory", "command line"),
        Given("--reasoning-budget", "option.reasoning_budget", "3", "command line"),
    ]
    with pytest.raises(ConfigError) as caught:
        asyncio.run(build_served_model(resolve(givens, {}, demo_model_dir()), lambda stage, fraction: None))
    (problem,) = caught.value.problems
    assert problem.startswith(
        "--reasoning-budget=3 (command line): engine somebodys_engine:factory does not end reasoning"
    )


def test_a_budget_that_is_none_is_refused_where_the_operator_has_every_conversation_tell_it(module: str) -> None:
    kwargs = '{"thinking_budget": "much"}'
    givens = [
        Given("--engine", "option.engine", f"{module}:factory", "command line"),
        Given("--chat-template-kwargs", "option.default_chat_template_kwargs", kwargs, "command line"),
    ]
    with pytest.raises(ConfigError) as caught:
        asyncio.run(build_served_model(resolve(givens, {}, demo_model_dir()), lambda stage, fraction: None))
    (problem,) = caught.value.problems
    assert problem == (
        f"--chat-template-kwargs={kwargs} (command line): chat_template_kwargs.thinking_budget must be an integer "
        'between -1 and 4294967295, got "much"'
    )


@pytest.mark.parametrize("name", ["no_such_module:factory", "json:nothing", "json:loads"])
def test_a_wrong_address_stops_the_start_with_one_line_that_says_what_is_allowed(name: str) -> None:
    request = GenerationRequest("r", TextPrompt("a"))
    with pytest.raises(ConfigError) as caught:
        asyncio.run(answer(config_of(name), request))
    (problem,) = caught.value.problems
    assert f"engine={name} (command line)" in problem
    assert "must be rolling, remote, vllm, ray, or module:factory" in problem
    assert "\n" not in problem
