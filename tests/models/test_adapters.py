"""Adapters in graphs: what they compute equals merged weights, and rows without one are untouched bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.adapters import AdapterBank
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import AdapterOptions
from tests.support.adapters import matrices_of, write_adapter, write_merged
from tests.support.cpu import EXACT_F32, EXACT_PACKED
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.forward import forward_batch
from tests.support.tiers import width

EXACT = ModelOptions("f32", num_threads=1)
ALL_SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FAMILIES = {
    "llama_llama3": ALL_SEVEN,
    "qwen3": ALL_SEVEN,
    "gemma2": ALL_SEVEN,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),  # joined matrices
    "gpt2": ("c_attn", "c_proj", "c_fc"),  # stored [in, out]
    "gptj": ("q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"),  # rows in another order
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),  # rows by group
    "falcon_7b": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),  # attention and MLP side by side
    "deepseek_v2_lite": ("q_proj", "kv_b_proj", "o_proj"),
    "qwen3_moe": ("q_proj", "o_proj"),
    "lfm2": ("q_proj", "in_proj"),
}
"""Cases, and the modules that their adapters change."""

PROMPTS = ([3, 5, 7, 11, 2], [4, 4, 9], [8, 1, 6, 2])
Array = np.ndarray[Any, Any]


def runner_of(loaded: LoadedModel, num_slots: int = 3, rank: int = 8) -> OpenVinoRunner:
    """A runner, whose slots hold the first adapters in order."""
    bank = None
    if loaded.adapters is not None:
        bank = AdapterBank(loaded.adapters, num_slots, rank)
        for slot, adapter in enumerate(loaded.adapters.first.values()):
            bank.fill(slot, loaded.adapters.changes(adapter))
    return OpenVinoRunner(loaded, 8, bank)


def logits(loaded: LoadedModel, slots: tuple[int, ...] = ()) -> Array:
    """Those of all tokens of the prompts, each with the adapter in its slot, in one step; of as many as there are slots."""
    prompts = PROMPTS[: len(slots)] if slots else PROMPTS
    batch = forward_batch([(prompt, 0, [index]) for index, prompt in enumerate(prompts)], range(sum(map(len, prompts))))
    if slots:
        owners = np.repeat(np.array(slots, dtype=np.int64), [len(prompt) for prompt in prompts])
        batch = replace(batch, adapter_slots=owners)
    runner = runner_of(loaded)
    result = runner.forward(batch).copy()
    runner.close()
    return result


def of_prompt(values: Array, index: int) -> Array:
    begin = sum(len(prompt) for prompt in PROMPTS[:index])
    return values[begin : begin + len(PROMPTS[index])]


@pytest.mark.parametrize("name", width(list(FAMILIES), ["phi3", "gpt2", "gpt_neox", "deepseek_v2_lite"]))
def test_adapters_in_one_step_equal_merged_weights_and_leave_other_rows_alone(name: str, tmp_path: Path) -> None:
    base = write_family_checkpoint(name, tmp_path / "base")
    is_transposed = name == "gpt2"
    modules = matrices_of(base, FAMILIES[name])
    modules = {module: shape for module, shape in modules.items() if ".experts." not in module}
    assert len(modules) >= len(FAMILIES[name])
    named = []
    for seed, rank in ((1, 4), (2, 8)):
        adapter = write_adapter(tmp_path / f"a{seed}", modules, rank=rank, seed=seed, is_transposed=is_transposed)
        named.append((f"a{seed}", adapter))
    mixed = logits(load_model(base, replace(EXACT, adapters=AdapterOptions(tuple(named)))), (1, -1, 0))

    plain = logits(load_model(base, EXACT))
    assert np.array_equal(of_prompt(mixed, 1), of_prompt(plain, 1))
    for prompt, number in ((0, 1), (2, 0)):
        directory = write_merged(base, named[number][1], tmp_path / f"merged{number}", is_transposed=is_transposed)
        expected = of_prompt(logits(load_model(directory, EXACT)), prompt)
        assert np.abs(of_prompt(mixed, prompt) - expected).max() < 1e-4
        assert np.abs(of_prompt(plain, prompt) - expected).max() > 1e-2, "the adapter changes nothing"
        ours = replace(EXACT, adapters=AdapterOptions((named[number],), merges=True))
        assert np.abs(of_prompt(logits(load_model(base, ours)), prompt) - expected).max() < 1e-4


@pytest.fixture(scope="module", params=["f32", "int8"])
def with_three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model with adapters of different ranks in three slots."""
    directory = tmp_path_factory.mktemp("three")
    base = write_family_checkpoint("qwen3", directory / "base")
    modules = matrices_of(base, ALL_SEVEN)
    named = tuple(
        (f"a{seed}", write_adapter(directory / f"a{seed}", modules, rank=rank, seed=seed))
        for seed, rank in ((0, 8), (1, 3), (2, 8))
    )
    return load_model(base, ModelOptions(request.param, num_threads=1, adapters=AdapterOptions(named)))


def test_what_an_adapter_computes_does_not_depend_on_the_adapters_of_others(with_three: LoadedModel) -> None:
    alone = logits(with_three, (1,))
    assert np.abs(alone - logits(with_three, (-1,))).max() > 1e-2, "the adapter changes nothing"
    for others in ((1, 1), (-1, -1), (0, 2), (2, -1)):
        assert np.array_equal(of_prompt(logits(with_three, (1, *others)), 0), alone)


def test_rows_without_an_adapter_do_not_depend_on_the_adapters_of_others(with_three: LoadedModel) -> None:
    """Bit by bit, in the same graph and in steps of the same size: before, between and behind rows with an adapter."""
    expected = logits(with_three, (-1, -1, -1))
    for slots in ((-1, 0, 2), (0, -1, 2), (-1, 1, -1), (2, 2, -1)):
        found = logits(with_three, slots)
        for prompt, slot in enumerate(slots):
            is_equal = np.array_equal(of_prompt(found, prompt), of_prompt(expected, prompt))
            assert is_equal == (slot < 0)


def test_a_row_without_an_adapter_is_beside_others_what_it_is_alone(with_three: LoadedModel) -> None:
    """Bit by bit where the size of a step does not change its kernels, else but for rounding (tests/support/cpu.py)."""
    alone = logits(with_three, (-1,))
    for others in ((-1, -1), (1, 1), (0, 2), (2, -1)):
        found = of_prompt(logits(with_three, (-1, *others)), 0)
        if EXACT_F32 if with_three.options.weight_type == "f32" else EXACT_PACKED:
            assert np.array_equal(found, alone)
        else:
            assert np.abs(found - alone).max() <= 2e-2 * np.abs(alone).max()


def test_adapters_are_kept_in_the_type_that_is_computed_in(tmp_path: Path) -> None:
    base = write_family_checkpoint("qwen3", tmp_path / "base")
    adapter = write_adapter(tmp_path / "a", matrices_of(base, ("q_proj",)))
    loaded = load_model(base, ModelOptions("int8", adapters=AdapterOptions((("a", adapter),))))
    assert loaded.adapters is not None
    bits = {"bf16": 16, "f32": 32}[loaded.profile.inference_type]
    for place in loaded.adapters.places:
        num_outputs = sum(len(part.rows) for part in place.parts)
        assert place.down.get_element_type().bitwidth == bits
        assert place.row_bytes == (place.num_columns + num_outputs) * bits // 8
