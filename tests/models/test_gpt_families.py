"""Families like GPT: every spelling of their configs is read, what is not computed is refused, graphs are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import LoadedModel, ModelError, ModelOptions, load_model
from dragoman.models.families import read_model
from dragoman.models.families.gpt import alibi_slopes
from tests.support.family_checkpoint import read_case, write_family_checkpoint
from tests.support.forward import forward_batch
from tests.support.tiers import width

PROMPT = list(range(3, 40))


def config_of(case: str, without: tuple[str, ...] = (), **change: Any) -> dict[str, Any]:
    """The config of a recorded case, with a change."""
    config: dict[str, Any] = read_case(case)["config"] | change
    return {key: value for key, value in config.items() if key not in without}


@pytest.mark.parametrize(
    ("case", "without", "change"),
    [
        (
            "falcon_7b",
            ("num_attention_heads", "num_hidden_layers", "num_kv_heads", "new_decoder_architecture"),
            {"architectures": ["RWForCausalLM"], "model_type": "RefinedWebModel", "n_head": 5, "n_layer": 2},
        ),
        (
            "falcon_40b",
            ("num_attention_heads", "num_hidden_layers", "num_kv_heads", "new_decoder_architecture", "multi_query"),
            {
                "architectures": ["RWForCausalLM"],
                "model_type": "RefinedWeb",
                "n_head": 4,
                "n_head_kv": 2,
                "n_layer": 2,
            },
        ),
        ("falcon_11b", ("ffn_hidden_size",), {"ff_factor": 3}),
        ("gpt2", ("n_embd",), {"hidden_size": 64, "n_special": 0, "predict_special_tokens": True}),
        ("gpt2", (), {"hidden_size": 64}),
        ("gpt_bigcode", (), {"num_key_value_heads": 1}),
        ("mpt", (), {"architectures": ["MPTForCausalLM"], "norm_type": "layernorm"}),
        ("mpt", ("attn_config",), {}),
        ("opt", ("word_embed_proj_dim", "do_layer_norm_before", "activation_function"), {}),
        ("bloom", ("n_embed", "num_attention_heads"), {"hidden_size": 96, "n_head": 6}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_spellings_and_defaults_mean_the_same_model(
    case: str, without: tuple[str, ...], change: dict[str, Any]
) -> None:
    assert read_model(config_of(case, without, **change)).facts == read_model(config_of(case)).facts


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "is true, allowed: false"),
        ("falcon_40b", {"parallel_attn": False}, "parallel_attn is false, allowed: true with new_decoder"),
        ("falcon_7b", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2, allowed: 1, or 2 with"),
        ("falcon_40b", {"num_kv_heads": 3}, "num_attention_heads is 4, allowed: a multiple"),
        ("falcon_rw", {"num_kv_heads": 2}, "num_kv_heads is 2, allowed: 4"),
        ("gpt2", {"hidden_size": 32}, "hidden_size is 32, allowed: 64, as in n_embd"),
        ("gpt2", {"n_layer": "two"}, "config.json n_layer is .two., allowed: an integer"),
        ("gpt2", {"n_head": None}, "config.json has no num_attention_heads"),
        ("gpt2", {"scale_attn_by_rank": True}, "unknown keys .* scale_attn_by_rank"),
        ("gptj", {"rotary": False}, "rotary is false, allowed: true"),
        ("gptj", {"rotary_dim": None}, "config.json has no rotary_dim"),
        ("gptj", {"tie_word_embeddings": True}, "tie_word_embeddings is true, allowed: false"),
        ("mpt", {"no_bias": False}, "no_bias is false, allowed: true"),
        ("mpt", {"logit_scale": 0.5}, "unknown keys .* logit_scale"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config alibi is false, allowed: true"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config qk_ln is true, allowed: false"),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type .* allowed: .multihead_attention"),
        ("mpt", {"attn_config": {"rope": True}}, "attn_config has unknown keys .* rope"),
        ("opt", {"learned_embeddings": False}, "learned_embeddings is false, allowed: true"),
        ("phi", {"partial_rotary_factor": 0.05}, "1 dimensions of a head"),
    ],
    ids=lambda value: value if isinstance(value, str) and "_" not in value else "",
)
def test_what_is_not_computed_is_refused_by_its_key(case: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_model(config_of(case, **change))


@pytest.mark.parametrize(
    ("case", "max_position"),
    [("opt", 1024), ("gpt2", 1024), ("bloom", 2048), ("bloom_prefixed", 2048), ("mpt_storywriter", 65536)],
)
def test_the_context_is_that_of_the_table_or_what_the_model_was_trained_with(case: str, max_position: int) -> None:
    assert read_model(config_of(case)).facts.max_position == max_position


def test_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))
    assert alibi_slopes(8, 16.0) == tuple(4.0**-i for i in range(1, 9))
    assert alibi_slopes(6) == (2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3)


def answers(loaded: LoadedModel) -> Any:
    """Logits of a prompt of two blocks and of the token after it, which reads what the prompt left in the cache."""
    runner = OpenVinoRunner(loaded, num_blocks=4)
    first = runner.forward(forward_batch([(PROMPT, 0, range(2))], logit_rows=[len(PROMPT) - 1])).copy()
    second = runner.forward(forward_batch([([7], len(PROMPT), range(2))], logit_rows=[0])).copy()
    return np.concatenate([first, second])


@pytest.mark.parametrize("case", width(["bloom", "gpt2_by_layer", "opt_350m", "falcon_7b"], ["bloom"]))
def test_a_kept_graph_computes_the_same(case: str, tmp_path: Path) -> None:
    directory = write_family_checkpoint(case, tmp_path / "model")
    built, mapped = (load_model(directory, ModelOptions("int8", cache_dir=tmp_path / "kept")) for _ in range(2))
    assert (built.from_cache, mapped.from_cache) == (False, True)
    assert np.array_equal(answers(built), answers(mapped))
