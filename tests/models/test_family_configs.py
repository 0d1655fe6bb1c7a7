"""Families read every key of config.json, refuse what they cannot follow, and miss no tensor of a checkpoint."""

from __future__ import annotations

import copy
import math
import re
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.facts import AttentionFacts, CacheKind, ExpertFacts, MlpFacts, ModelFacts
from dragoman.models.families import read_model
from tests.support.family_checkpoint import first_case_names, read_case, write_family_checkpoint
from tests.support.odd_values import ODD_VALUES
from tests.support.tables import table

NAMES = first_case_names()
DYNAMIC = [1.0, 0.21921247, 0.048054103, 0.010534058, 0.0023091969, 0.00050620473, 0.00011096639, 2.4325213e-05]


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The recorded case's config.json with changed keys."""
    config: dict[str, Any] = copy.deepcopy(read_case(name)["config"])
    return config | changes


def facts_of(name: str, **changes: Any) -> ModelFacts:
    return read_model(config_of(name, **changes)).facts


def attentions(facts: ModelFacts) -> list[AttentionFacts]:
    return list(facts.attention_layers.values())


@table("name", NAMES)
def test_a_key_that_nobody_knows_is_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=r"for this architecture: score_scale \(2.5\)"):
        read_model(config_of(name, score_scale=2.5))


@table("name", NAMES)
def test_an_odd_value_is_refused_or_changes_nothing_but_never_fails_otherwise(name: str) -> None:
    config = config_of(name)
    for key in [*config, "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "head_dim"]:
        for value in ODD_VALUES:
            with suppress(ModelError):  # anything else fails the test
                assert read_model({**config, key: value}).facts.layers, (key, value)


@table("name", NAMES)
def test_a_missing_tensor_and_one_too_many_are_refused_by_name(name: str, tmp_path: Path) -> None:
    directory = write_family_checkpoint(name, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    case = read_case(name)
    unused = case.get("unused", [])
    of_layers = [tensor for tensor in case["tensors"] if re.search(r"\.\d+\.|^\d+\.", tensor)]
    needed = [tensor for tensor in of_layers if not any(fnmatchcase(tensor, pattern) for pattern in unused)]
    lost = needed[crc32(name.encode()) % len(needed)]
    save_file({key: value for key, value in tensors.items() if key != lost}, directory / "model.safetensors")
    with pytest.raises(ModelError, match=lost):
        load_model(directory, ModelOptions(weight_type="f32"))
    extra = lost.rpartition(".")[0] + ".gain"
    save_file({**tensors, extra: np.zeros(3, dtype=np.float32)}, directory / "model.safetensors")
    with pytest.raises(ModelError, match=f"does not know: {extra}"):
        load_model(directory, ModelOptions(weight_type="f32"))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama_default", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ("llama_default", {"sliding_window": 64}, r"for this architecture: sliding_window \(64\)"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "full_attention only, as no window is switched on"),
        (
            "qwen2",
            {"layer_types": ["linear_attention"] * 3},
            "layer_types is .*, allowed: a list of 3 of: full_attention",
        ),
        ("qwen2", {"use_mrope": True}, "use_mrope is true, allowed: false"),
        ("phi3", {"lm_head_bias": True}, "lm_head_bias is true, allowed: false"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("granite4_hybrid", {"mamba_n_groups": 3}, "mamba_n_groups is 3, allowed: what divides mamba_n_heads 8"),
        ("granite4_hybrid", {"mamba_d_head": 17}, "mamba_n_heads is 8, allowed: 128 divided by mamba_d_head 17"),
        (
            "mamba2",
            {"time_step_limit": [1.0, 0.5]},
            "time_step_limit is .*, allowed: two numbers, the second one larger",
        ),
        ("zamba2", {"layers_block_type": ["mamba"] * 5 + ["hybrid"]}, "layers_block_type is .*; the last one mamba"),
        ("zamba2", {"attention_head_dim": 16}, "attention_head_dim is 16, allowed: 32, twice the hidden size"),
        ("zamba2", {"use_long_context": True}, "use_long_context is true, allowed: false"),
        ("bamba", {"attn_layer_indices": [3]}, "attn_layer_indices is .*, allowed: a list of layers, 0 to 2"),
        ("nemotron_h_moe", {"n_shared_experts": 2}, "n_shared_experts is 2, allowed: 1"),
        (
            "nemotron_h_moe",
            {"n_group": 3},
            "n_group is 3, allowed: what divides the 8 experts into groups of at least 2",
        ),
        (
            "nemotron_h_moe",
            {"num_experts_per_tok": 9},
            "num_experts_per_tok is 9, allowed: at most the number of experts",
        ),
        ("mamba2", {"time_step_limit": [0.0, "much"]}, "time_step_limit is .*, allowed: two numbers"),
        (
            "granite4_dense",
            {"layer_types": None},
            "layer_types is null, allowed: a list of 3 of: mamba, attention",
        ),
        ("gemma4_moe", {"use_bidirectional_attention": "all"}, 'is "all", allowed: false or "vision"'),
        (
            "gemma4_moe",
            {"per_layer_config": {"0": {"head_dim": 64}}},
            "other sizes only in layers with full attention",
        ),
        (
            "gemma4_moe",
            {"per_layer_config": {"1": {"window": 64}}},
            "allowed: head_dim and num_key_value_heads, the same",
        ),
        (
            "gemma4_moe",
            {"num_kv_shared_layers": 2},
            "num_kv_shared_layers is 2, allowed: a number that leaves unshared layers",
        ),
        (
            "mistral4",
            {"qk_nope_head_dim": 80},
            "partial_rotary_factor is 0.33.*allowed: 0.16.*, as in qk_rope_head_dim",
        ),
        ("minimax_m2", {"attn_type_list": [1, 0, 1]}, r"attn_type_list is \[1, 0, 1\], allowed: \[1, 1, 1\]"),
        ("solar_open", {"use_qk_norm": True}, "use_qk_norm is true, allowed: false"),
        ("dots1", {"scoring_func": "softmax"}, "allowed: one of noaux_tc, sigmoid"),
        ("exaone_moe", {"is_moe_layer": [True] * 4}, r"is_moe_layer is .*, allowed: \[false, true, true, true\]"),
        ("afmoe", {"route_norm": False}, "route_norm is false, allowed: true"),
        ("apertus", {"qk_norm": False}, "qk_norm is false, allowed: true"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3, allowed: 2"),
        (
            "phimoe",
            {"rope_scaling": {"short_mscale": 1.0, "long_mscale": 1.5}},
            "is 1.0, allowed: 1.5, as in long_mscale",
        ),
        ("hunyuan_v1_moe", {"num_shared_expert": [1, 2, 1]}, "allowed: 1 in every layer"),
        ("hunyuan_v1_moe", {"moe_topk": [3, 2, 3]}, r"num_experts_per_tok is \[3, 2, 3\], allowed: an integer"),
        ("gpt_neo", {"attention_types": [[["global"], 3]]}, "allowed: pairs of kinds .*, for 4 layers"),
        ("codegen", {"n_head": 2}, "n_head is 2, allowed: a multiple of 4"),
        ("llama4", {"no_rope_layers": [1, 1, 2, 0]}, "allowed: at least 4 zeros and ones"),
        ("llama4", {"moe_layers": 1}, "moe_layers is 1, allowed: a list of layers"),
        ("gemma3n", {"altup_active_idx": 4}, "altup_active_idx is 4, allowed: below altup_num_inputs, 4"),
        ("gemma3n", {"intermediate_size": [96.5] * 5}, "allowed: integers"),
        ("cohere2", {"use_parallel_block": False}, "use_parallel_block is false, allowed: true"),
        ("starcoder2", {"norm_type": "rms_norm"}, "norm_type is .rms_norm., allowed: .layer_norm."),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla is true, allowed: false"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5, allowed: at most the number of experts, 4"),
        ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers is 1, allowed: a list of layers"),
        ("qwen3_next", {"use_sliding_window": True}, "use_sliding_window is true, allowed: false"),
        ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob is false, allowed: true"),
        ("qwen3_5_moe_text", {"mlp_only_layers": [1]}, r"mlp_only_layers is \[1\], allowed: \[\]"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0, allowed: null"),
        ("gpt_oss", {"experts_per_token": 4}, "experts_per_token is 4, allowed: 3"),
        (
            "gpt_oss",
            {"quantization_config": {"quant_method": "mxfp4", "bits": 3}},
            r"quantization_config .*: bits \(3\)",
        ),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is true, allowed: false"),
        ("deepseek_v3", {"n_group": 5}, "n_group is 5, allowed: what divides the 16 experts into groups of at least 2"),
        ("deepseek_v3", {"topk_group": 9}, "topk_group is 9, allowed: 1 to n_group, 4"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "hqq"}}, 'quant_method "hqq" is not supported'),
        ("llava", {"text_config": {"model_type": "opt"}}, "text_config of model_type 'opt' is not supported"),
        ("llava", {"text_config": {"model_type": "llama", "gain": 1}}, r"text_config has unknown keys .*: gain \(1\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_followed_is_refused_by_key(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_model(config_of(name, **changes))


def test_dynamic_scaling_reaches_as_far_as_its_factor_says() -> None:
    """Beyond the original context with the frequencies that transformers 5.24 has for the longest sequence."""
    facts = facts_of("llama_dynamic", rope_scaling={"type": "dynamic", "factor": 4.0})
    rule = attentions(facts)[0].rotary
    assert rule is not None
    assert rule.long_frequencies is not None
    assert (facts.long_context_from, facts.max_position) == (1024, 4096)
    assert rule.frequencies == attentions(facts_of("llama_default"))[0].rotary.frequencies  # type: ignore[union-attr]
    np.testing.assert_allclose(rule.long_frequencies, DYNAMIC, rtol=1e-6)
    assert facts_of("llama_dynamic", rope_scaling={"type": "dynamic", "factor": 1.0}).max_position == 1024
    with pytest.raises(
        ModelError, match=r"factor is 10000000.0, allowed: a number with which 1024 tokens become fewer"
    ):
        facts_of("llama_dynamic", rope_scaling={"type": "dynamic", "factor": 1e7})


def test_the_first_name_of_longrope_means_the_same() -> None:
    scaling = config_of("phi3_128k")["rope_scaling"]
    assert facts_of("phi3_128k", rope_scaling={**scaling, "type": "su"}) == facts_of("phi3_128k")


def test_a_window_that_holds_the_whole_context_is_none_but_its_layers_are_still_of_their_kind() -> None:
    facts = facts_of("cohere2", sliding_window=1024)
    assert facts.cache_kinds == (CacheKind(0),)
    assert [attention.rotary is None for attention in attentions(facts)] == [False, False, False, True]


@table("name", ["gemma3n", "llama4"])
def test_a_text_is_what_it_is_in_a_model_that_also_sees_and_hears(name: str) -> None:
    text = config_of(name)
    architecture = text["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")
    whole = {"architectures": [architecture], "audio_config": {}, "text_config": text, "vision_config": {}}
    assert read_model(whole).facts == facts_of(name)


def test_the_context_of_llama_4_is_one_chunk_of_attention() -> None:
    assert facts_of("llama4", attention_chunk_size=512).max_position == 512
    assert facts_of("llama4", attention_chunk_size=None).max_position == 1024
    assert facts_of("llama4", attention_chunk_size=512, layer_types=["full_attention"] * 4).max_position == 1024


def test_experts_stand_where_config_says() -> None:
    def kinds(name: str) -> list[bool]:
        return [isinstance(layer.mlp, ExpertFacts) for layer in facts_of(name).layers]

    assert kinds("qwen3_moe_sparse_step") == [False, True, False, False]
    assert kinds("deepseek_v3") == kinds("ernie4_5_moe") == kinds("glm4_moe") == [False, True, True]


def test_a_released_spelling_means_the_same() -> None:
    config = config_of("exaone_moe", architectures=["ExaoneMoEForCausalLM"])
    config["first_last_k_dense_replace"] = config.pop("first_k_dense_replace")
    assert read_model(config).facts == facts_of("exaone_moe")
    assert facts_of("gemma3n", altup_lr_multiplier=1.0) == facts_of("gemma3n")
    assert facts_of("llama4_dense", no_rope_layers=[1] * 5) == facts_of("llama4_dense")


def test_latent_attention_is_told_with_its_heads_expanded() -> None:
    attention = attentions(facts_of("deepseek_v3"))[0]
    assert (attention.num_kv_heads, attention.head_size, attention.value_size) == (4, 48, 32)
    assert attention.rotary is not None
    assert attention.rotary.size == 16
    grown = 0.1 * math.log(8) + 1  # mscale_all_dim 1, factor 8
    assert attention.scale == pytest.approx(grown**2 / 48**0.5)


def test_gpt_oss_has_sinks_everywhere_and_a_window_in_every_other_layer() -> None:
    facts = facts_of("gpt_oss", layer_types=None)
    assert [attention.window for attention in attentions(facts)] == [128, 0, 128, 0]
    assert all(attention.has_sinks for attention in attentions(facts))
    assert len(facts.cache_kinds) == 2


def test_rules_for_each_kind_of_layer_are_read_in_both_forms() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    nested = {
        "full_attention": {**scaling, "rope_theta": 1_000_000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000},
    }
    old_keys = dict.fromkeys(("rope_scaling", "rope_theta", "rope_local_base_freq"))
    new = facts_of("gemma3_text_linear", rope_parameters=nested, **old_keys)
    assert new == facts_of("gemma3_text_linear")


def test_a_text_config_means_what_transformers_assumes_where_it_is_silent() -> None:
    gemma = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    facts = facts_of("gemma3_vision", text_config=gemma)
    first, sixth = attentions(facts)[0], attentions(facts)[5]
    assert (facts.vocab_size, facts.max_position, len(facts.layers)) == (262208, 131072, 34)
    assert (first.num_heads, first.num_kv_heads, first.head_size, first.scale) == (8, 4, 256, 256**-0.5)
    assert (first.window, sixth.window) == (1024, 0)
    assert first.rotary is not None
    assert sixth.rotary is not None
    assert first.rotary.frequencies[1] == pytest.approx(10_000 ** (-2 / 256))
    assert sixth.rotary.frequencies[1] == pytest.approx(1_000_000 ** (-2 / 256) / 8)

    vicuna = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
    facts = facts_of("llava", text_config=vicuna)
    attention = attentions(facts)[0]
    assert (facts.vocab_size, facts.hidden_size, len(facts.layers)) == (32064, 4096, 32)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_size) == (32, 32, 128)


def test_a_jamba_of_one_expert_is_dense() -> None:
    config = read_case("jamba")["config"] | {"num_experts": 1, "num_experts_per_tok": 2}
    assert {type(layer.mlp) for layer in read_model(config).facts.layers} == {MlpFacts}
