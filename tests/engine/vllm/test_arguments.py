"""Options for vLLM: what ours mean there, which of its own are taken, and what is said of the others. Needs no vllm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.engine.factory import EngineOptionError, EngineSetup
from dragoman.engine.vllm.arguments import DECIDED, command_words, extra_arguments, shared_arguments

KNOWN = frozenset({
    "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "enforce_eager", "quantization", "seed",
    "scheduling_policy", "distributed_executor_backend",
})  # fmt: skip


def setup_of(*given: str, **options: Any) -> EngineSetup:
    return EngineSetup(Path("/models/mine"), options, given=frozenset(given))


def test_options_that_both_servers_have_are_translated() -> None:
    arguments = shared_arguments(
        setup_of(
            "max_batch_tokens", name=("x", "y"), dtype="bf16", kv_dtype="auto", max_model_len=99, max_num_seqs=3,
            max_batch_tokens=512, kv_cache_gb=0.5, max_logprobs=7, prefix_cache="off",
        )
    )  # fmt: skip
    assert arguments["model"] == "/models/mine"
    assert arguments["served_model_name"] == "x"
    assert arguments["dtype"] == "bfloat16"
    assert arguments["kv_cache_dtype"] == "auto"
    assert arguments["max_model_len"] == 99
    assert arguments["max_num_seqs"] == 3
    assert arguments["max_num_batched_tokens"] == 512
    assert arguments["kv_cache_memory_bytes"] == 2**29
    assert arguments["max_logprobs"] == -1  # beams need more than clients may ask for; the service holds clients to it
    assert arguments["enable_prefix_caching"] is False


def test_what_nobody_gave_is_left_to_vllm() -> None:
    arguments = shared_arguments(setup_of(max_batch_tokens=512, max_model_len=None, kv_cache_gb=None))
    assert not arguments.keys() & {"max_num_batched_tokens", "max_model_len", "kv_cache_memory_bytes"}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("dtype", "int4", "must be one of auto, f32, f16, bf16 with engine=vllm"),
        ("kv_dtype", "u8", "must be one of auto, f16, bf16 with engine=vllm"),
        ("draft_model", Path("d"), "option.speculative_config"),
        ("speculation", "lookup", "option.speculative_config"),
    ],
)
def test_what_vllm_has_in_another_form_is_refused_with_what_to_give(name: str, value: Any, says: str) -> None:
    with pytest.raises(EngineOptionError, match=says) as caught:
        shared_arguments(setup_of(**{name: value}))
    assert caught.value.option == name


def test_names_of_lmi_become_those_of_vllm_and_its_own_stay() -> None:
    extra = {"tensor_parallel_degree": "2", "pipeline_parallel_degree": "3", "quantize": "awq", "enforce_eager": "true"}
    assert extra_arguments(extra, KNOWN) == {
        "tensor_parallel_size": ("tensor_parallel_degree", "2"),
        "pipeline_parallel_size": ("pipeline_parallel_degree", "3"),
        "quantization": ("quantize", "awq"),
        "enforce_eager": ("enforce_eager", "true"),
    }


@pytest.mark.parametrize(
    ("extra", "option", "says"),
    [
        ({"enforce_eagre": "true"}, "enforce_eagre", "vLLM's nearest argument is option.enforce_eager"),
        ({"tensor_paralel_degree": "2"}, "tensor_paralel_degree", "option.tensor_parallel_degree"),
        ({"zzzz": "1"}, "zzzz", "vLLM has no argument like it"),
        ({"scheduling_policy": "fcfs"}, "scheduling_policy", "must not be set"),
        ({"tensor_parallel_size": "1", "tensor_parallel_degree": "2"}, "tensor_parallel_degree", "means the same"),
    ],
)
def test_other_names_are_refused_with_the_nearest(extra: dict[str, str], option: str, says: str) -> None:
    with pytest.raises(EngineOptionError, match=says) as caught:
        extra_arguments(extra, KNOWN)
    assert caught.value.option == option
    assert "\n" not in str(caught.value)


def test_no_hint_names_what_may_not_be_set() -> None:
    for name in sorted(DECIDED):
        with pytest.raises(EngineOptionError) as caught:
            extra_arguments({f"{name}x": "1"}, KNOWN | DECIDED)
        assert f"option.{name}" not in str(caught.value)


def test_values_are_given_to_vllm_as_its_command_line_takes_them() -> None:
    assert command_words("enforce_eager", " True ", is_switch=True, is_list=False) == ["--enforce-eager"]
    assert command_words("enforce_eager", "false", is_switch=True, is_list=False) == ["--no-enforce-eager"]
    assert command_words("device_ids", "0, 1", is_switch=False, is_list=True) == ["--device-ids", "0", "1"]
    assert command_words("hf_overrides", '{"a": 1}', is_switch=False, is_list=False) == ['--hf-overrides={"a": 1}']
    with pytest.raises(ValueError, match="true or false"):
        command_words("enforce_eager", "yes", is_switch=True, is_list=False)
