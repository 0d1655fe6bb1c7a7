"""Models that embed or score texts: which directories are which, and the vectors of texts in company and alone."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.errors import ModelError
from dragoman.models.pooling.facts import PoolingMode
from dragoman.models.pooling.families import read_text_model
from dragoman.models.pooling.families.bert import Gte, distance_buckets
from dragoman.models.pooling.model import LoadedPooler, load_pooler, pooled
from dragoman.models.pooling.recipe import purpose_of, read_recipe
from dragoman.models.profile import ModelOptions
from dragoman.types import PooledText
from tests.support.pooling_checkpoint import case_names, read_case, write_pooling_case
from tests.support.tiers import width

LENGTHS = (3, 40, 1, 17, 150, 64, 65, 2)


def drawn_texts(name: str, longest: int) -> list[PooledText]:
    """Random tokens, the same for the same case."""
    stream, size = np.random.RandomState(len(name)), read_case(name)["config"]["vocab_size"]
    return [PooledText(tuple(stream.randint(0, size, size=min(length, longest)).tolist())) for length in LENGTHS]


def flat(rows: Any, model: LoadedPooler) -> Any:
    """Rows of one length; those of tokens one below the other."""
    if model.recipe.kind == "tokens":
        return np.concatenate(list(rows))
    if model.recipe.kind != "sparse":
        return np.stack(list(rows))
    words = np.zeros((len(rows), model.dimensions), dtype=np.float32)
    for place, row in enumerate(rows):
        words[place, row["index"]] = row["value"]
    return words


# An encoder of each kind, a decoder, a head.
FEW = ["bert_mean", "distilbert_dense", "jina_tasks", "modernbert_cls", "mpnet_mean", "qwen3_last", "xlmr_reranker"]


@pytest.mark.parametrize("name", width(case_names(), FEW))
def test_a_text_has_the_same_vector_in_any_company(name: str, tmp_path: Path) -> None:
    directory = write_pooling_case(name, tmp_path)
    model = load_pooler(directory, read_recipe(directory), ModelOptions("f32"))
    texts = drawn_texts(name, model.max_tokens)
    alone = flat([row for text in texts for row in model.run([text])], model)
    together, backwards = flat(model.run(texts), model), flat(model.run(texts[::-1])[::-1], model)
    scale = np.abs(alone).max()
    assert np.abs(together - alone).max() <= 2e-6 * max(scale, 1.0)
    assert np.abs(backwards - alone).max() <= 2e-6 * max(scale, 1.0)
    assert np.ptp(alone, axis=0).max() > 0.01  # texts do differ
    model.close()


SMALLER = list(product(["bert_mean", "modernbert_cls", "qwen3_last", "xlmr_reranker"], ["int8", "bf16"]))


@pytest.mark.varies("which kernels compute it depends on the processor")
@pytest.mark.parametrize(("name", "weight_type"), width(SMALLER, [("bert_mean", "int8"), ("qwen3_last", "bf16")]))
def test_smaller_weights_give_nearly_the_same_vectors(name: str, weight_type: Any, tmp_path: Path) -> None:
    directory = write_pooling_case(name, tmp_path)
    recipe, rows = read_recipe(directory), []
    for stored in ("f32", weight_type):
        model = load_pooler(directory, recipe, ModelOptions(stored))
        rows.append(model.run(drawn_texts(name, model.max_tokens)))
        model.close()
    exact, near = rows
    assert np.linalg.norm(near - exact) <= 0.15 * np.linalg.norm(
        exact
    )  # of narrow models: rounding hardly averages out


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("bert_mean", "embed"),
        ("bert_reranker", "score"),
        ("xlmr_reranker", "score"),
        ("modernbert_cls", "embed"),
        ("qwen3_last", "embed"),
        ("qwen3_reranker", "score"),
        ("qwen3_scores", "score"),
    ],
)
def test_a_directory_says_what_it_is_for(name: str, purpose: str, tmp_path: Path) -> None:
    assert purpose_of(write_pooling_case(name, tmp_path)) == purpose


def test_a_decoder_generates_unless_it_is_told_to_embed(tmp_path: Path) -> None:
    case = read_case("qwen3_last")
    case["files"] = {}
    directory = write_pooling_case("qwen3_last", tmp_path, case)
    assert purpose_of(directory) == "generate"
    assert purpose_of(directory, "embed") == "embed"
    assert purpose_of(directory, "rerank") == "score"
    assert read_recipe(directory, "embed").pooling == ("last",)


def test_the_task_of_the_operator_goes_before_the_directory(tmp_path: Path) -> None:
    directory = write_pooling_case("bert_mean", tmp_path)
    assert purpose_of(directory, "generate") == "generate"


@pytest.mark.parametrize(("called", "pooling"), [("plain", "mean"), ("Bge-Small", "cls"), ("gte-x", "cls")])
def test_without_modules_the_name_decides_the_pooling(called: str, pooling: str, tmp_path: Path) -> None:
    case = {**read_case("bert_mean"), "files": {}, "directory": called}
    recipe = read_recipe(write_pooling_case("bert_mean", tmp_path, case))
    assert recipe.pooling == (pooling,)
    assert recipe.is_normalized
    assert pooling in " ".join(recipe.departures)


def test_the_operator_decides_pooling_and_length(tmp_path: Path) -> None:
    directory = write_pooling_case("bert_mean", tmp_path)
    recipe = read_recipe(directory, "auto", "max", False)
    assert (recipe.pooling, recipe.is_normalized) == (("max",), False)


def test_what_a_directory_says_of_prompts_and_lengths_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(write_pooling_case("bert_several", tmp_path))
    assert recipe.pooling == ("max", "mean_sqrt_len", "weightedmean")
    assert not recipe.includes_prompt
    assert recipe.max_tokens == 40
    assert recipe.default_prompt_name == "other"
    assert set(recipe.prompts) == {"query", "other"}
    assert read_recipe(write_pooling_case("bert_cls", tmp_path)).similarity == "dot"


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("modules.json", [{"type": "sentence_transformers.models.CNN", "path": "1"}], "CNN"),
        ("modules.json", [{"type": "sentence_transformers.models.Pooling", "path": "../1"}], "../1"),
        ("modules.json", {"type": 1}, "modules.json"),
        ("1_Pooling/config.json", {"pooling_mode": "best"}, "best"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "prompts"),
        ("config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": "b"}, "default_prompt_name"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(file: str, content: Any, told: str, tmp_path: Path) -> None:
    directory = write_pooling_case("bert_mean", tmp_path)
    (directory / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=told):
        read_recipe(directory)


def test_several_labels_classify_and_do_not_rerank(tmp_path: Path) -> None:
    case = read_case("bert_reranker")
    case["config"]["id2label"] = {"0": "a", "1": "b"}
    directory = write_pooling_case("bert_reranker", tmp_path, case)
    recipe = read_recipe(directory)
    assert (recipe.kind, recipe.labels, recipe.activation) == ("classify", ("a", "b"), "softmax")
    with pytest.raises(ModelError, match="num_labels"):
        read_recipe(directory, "rerank")


@pytest.mark.parametrize(
    ("said", "activation"),
    [
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"problem_type": "regression", "function_to_apply": "softmax"}, "softmax"),
        ({"function_to_apply": "none"}, "identity"),
        ({"function_to_apply": "tanh"}, None),
        ({"problem_type": "guessing"}, None),
        ({"id2label": {"0": "a", "2": "b"}}, None),
        ({"num_labels": 3}, None),
    ],
)
def test_what_becomes_of_labels_is_what_config_json_says(
    said: dict[str, Any], activation: str | None, tmp_path: Path
) -> None:
    case = read_case("bert_reranker")
    case["config"] |= {"id2label": {"0": "a", "1": "b"}, **said}
    directory = write_pooling_case("bert_reranker", tmp_path, case)
    if activation is None:
        with pytest.raises(ModelError, match=next(iter(said))):
            read_recipe(directory)
    else:
        assert read_recipe(directory).activation == activation


def test_colbert_s_own_files_say_what_pylate_s_do(tmp_path: Path) -> None:
    directory = write_pooling_case("bert_colbert", tmp_path)
    late = read_recipe(directory)
    dense = load_file(directory / "1_Dense" / "model.safetensors")
    found = load_file(directory / "model.safetensors")
    theirs = load_pooler(directory, late, ModelOptions("f32"))
    save_file({**{f"bert.{name}": found[name] for name in found}, **dense}, directory / "model.safetensors")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (directory / name).unlink()
    config = {**json.loads((directory / "config.json").read_text()), "architectures": ["HF_ColBERT"]}
    (directory / "config.json").write_text(json.dumps(config))
    said = {"query_maxlen": 24, "doc_maxlen": 40, "query_token_id": "[Q] ", "doc_token_id": "[D] ", "dim": 16}
    (directory / "artifact.metadata").write_text(json.dumps(said))
    recipe = read_recipe(directory)
    assert recipe.late is not None
    assert late.late is not None
    assert replace(recipe.late, skipped=late.late.skipped) == late.late
    ours = load_pooler(directory, recipe, ModelOptions("f32"))
    text = PooledText((2, 30, 40, 4, 4), num_seen=3)
    assert np.array_equal(ours.run([text])[0], theirs.run([text])[0])


def vectors_with(name: str, config: dict[str, Any], prefix: str, root: Path) -> Any:
    """What the tensors of a case give for some tokens, below other names and beside another config.json."""
    directory = write_pooling_case(name, root)
    tensors = load_file(directory / "model.safetensors")
    save_file({f"{prefix}{key}": value for key, value in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    model = load_pooler(directory, read_recipe(directory), ModelOptions("f32"))
    return model.run([PooledText((2, 30, 41, 52, 3))])


RELEASED_NOMIC = {
    "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "auto_map": {"AutoModel": "x--y.NomicBertModel"},
    "activation_function": "swiglu", "attn_pdrop": 0.0, "causal": False, "dense_seq_output": True, "fused_bias_fc": True,
    "fused_dropout_add_ln": True, "layer_norm_epsilon": 1e-12, "max_trained_positions": 100, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "n_embd": 48, "n_head": 3, "n_inner": 80, "n_layer": 3, "n_positions": 160,
    "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False,
    "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
    "type_vocab_size": 2, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True, "vocab_size": 168,
}  # fmt: skip
RELEASED_GTE = {
    "model_type": "new", "architectures": ["NewModel"], "auto_map": {"AutoModel": "x--y.NewModel"}, "hidden_act": "gelu",
    "hidden_size": 48, "intermediate_size": 80, "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False, "logn_attention_scale": False, "max_position_embeddings": 160, "num_attention_heads": 3,
    "num_hidden_layers": 3, "pack_qkv": True, "pad_token_id": 1, "position_embedding_type": "rope", "rope_scaling": None,
    "rope_theta": 20000, "type_vocab_size": 1, "unpad_inputs": False, "use_memory_efficient_attention": False,
    "vocab_size": 168,
}  # fmt: skip


def test_releases_say_the_same_in_words_of_their_own(tmp_path: Path) -> None:
    for name, config, prefix in (("nomic", RELEASED_NOMIC, ""), ("gte", RELEASED_GTE, "new.")):
        released = vectors_with(name, config, prefix, tmp_path / "released")
        written = vectors_with(name, read_case(name)["config"], "", tmp_path / "written")
        assert np.array_equal(released, written)
    assert read_text_model(RELEASED_NOMIC, scores=False).facts.max_tokens == 100
    stretched = {**RELEASED_GTE, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    model = cast(Gte, read_text_model(stretched, scores=False))
    assert model.attention.rotary is not None
    powers = np.arange(0, 16, 2) / 16
    expected = 1 / (20000 * 8) ** powers / 8 ** (2 / 16)
    np.testing.assert_allclose(model.attention.rotary.frequencies, expected)


@pytest.mark.parametrize(
    ("config", "changes", "told"),
    [
        (RELEASED_NOMIC, {"rotary_scaling_factor": 2}, "rotary_scaling_factor is 2"),
        (RELEASED_NOMIC, {"num_experts": 8}, "num_experts is 8"),
        (RELEASED_NOMIC, {"rotary_emb_interleaved": True}, "rotary_emb_interleaved is true"),
        (RELEASED_GTE, {"layer_norm_type": "rms_norm"}, "layer_norm_type"),
        (RELEASED_GTE, {"logn_attention_scale": True}, "logn_attention_scale is true"),
        (RELEASED_GTE, {"rope_scaling": {"type": "yarn", "factor": 2}}, "type is"),
        (RELEASED_GTE, {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.5}}, "mixed_b is 0.5"),
        ("xlmr_cls", {"position_embedding_type": "rotary"}, "position_embedding_type"),
        ("jina_v3", {"lora_adaptations": ["retrieval.query"]}, "lora_adaptations"),
        ("jina_tasks", {"position_embedding_type": "absolute"}, "position_embedding_type"),
        ("jina_tasks", {"load_trained_adapters": False}, "load_trained_adapters is false"),
        ("jina_tasks", {"use_reg_tokens": True}, "use_reg_tokens is true"),
        ("jina_tasks", {"lora_rank": 0}, "lora_rank is 0"),
        ("jina_tasks", {"type_vocab_size": 2}, "type_vocab_size is 2"),
        ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}, "EuroBertForSequenceClassification"),
        ("embedding_gemma", {"use_bidirectional_attention": "vision"}, "use_bidirectional_attention"),
    ],
)
def test_what_a_family_does_not_compute_is_refused_by_name(config: Any, changes: dict[str, Any], told: str) -> None:
    base = read_case(config)["config"] if isinstance(config, str) else config
    with pytest.raises(ModelError, match=told):
        read_text_model({**base, **changes}, scores=False)


def test_tasks_without_their_instructions_are_refused(tmp_path: Path) -> None:
    for changes, told in (
        ({"task_instructions": {"separation": ""}}, "task_instructions is "),
        ({"lora_adaptations": ["a", "a"]}, "lora_adaptations is "),
        ({"lora_adaptations": []}, "lora_adaptations is "),
    ):
        case = read_case("jina_tasks")
        case["config"] |= changes
        with pytest.raises(ModelError, match=told):
            read_recipe(write_pooling_case("jina_tasks", tmp_path, case))


def test_an_encoder_without_a_head_does_not_score() -> None:
    with pytest.raises(ModelError, match="has no scoring head"):
        read_text_model(read_case("bert_mean")["config"], scores=True)


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"GraphModel.*BertModel"):
        read_text_model({"architectures": ["GraphModel"]}, scores=False)


def test_an_unknown_key_of_a_config_is_refused_by_name() -> None:
    config = {**read_case("bert_mean")["config"], "twist": 2}
    with pytest.raises(ModelError, match="twist"):
        read_text_model(config, scores=False)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("cls", 1.0), ("last", 4.0), ("max", 7.0), ("mean", 4.0), ("mean_sqrt_len", 4 * 3**0.5), ("weightedmean", 4.5)],
)
def test_each_pooling_is_what_it_is_called(mode: PoolingMode, expected: float) -> None:
    hidden = np.array([[1.0], [7.0], [4.0]], dtype=np.float32)
    assert pooled(hidden, (mode,))[0] == pytest.approx(expected)


def test_rows_of_a_prompt_do_not_count() -> None:
    hidden = np.array([[1.0], [7.0], [4.0]], dtype=np.float32)
    assert pooled(hidden, ("mean",), 1)[0] == pytest.approx(5.5)
    assert pooled(hidden, ("weightedmean",), 1)[0] == pytest.approx((2 * 7 + 3 * 4) / 5)


def test_distances_fall_into_buckets_that_grow() -> None:
    buckets = distance_buckets(np.array([-500, -8, -1, 0, 1, 7, 8, 500]), 32)
    assert buckets.tolist() == [15, 8, 1, 0, 17, 23, 24, 31]
