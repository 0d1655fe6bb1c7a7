"""Which files of a repository are brought."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dragoman.hub.files import HubFile, choose_files, gguf_type
from dragoman.hub.names import HubError, HubModel, hub_model
from tests.support.tables import table

TEXT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
OTHER = (
    "README.md",
    ".gitattributes",
    "pytorch_model.bin",
    "model.onnx",
    "tf_model.h5",
    "run.py",
    "original/params.pt",
)


def chosen(names: Sequence[str], gguf: str = "") -> set[str]:
    return {file.name for file in choose_files(HubModel("org/name", gguf=gguf), [HubFile(name) for name in names]).all}


@table(
    "weights",
    [
        ("model.safetensors",),
        ("model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_tokenizer.bin"),
    ],
)
def test_only_the_files_that_a_server_reads_are_chosen(weights: tuple[str, ...]) -> None:
    assert chosen([*TEXT, *weights, *OTHER]) == {*TEXT, *weights}


def test_the_same_weights_are_not_chosen_twice() -> None:
    assert chosen(["config.json", "model.safetensors", "consolidated.safetensors", "openvino_model.xml"]) == {
        "config.json",
        "model.safetensors",
    }


def test_templates_and_tokenizers_of_all_kinds_are_chosen() -> None:
    small = {"additional_chat_templates/tool.jinja", "qwen.tiktoken", "tokenizer.model", "tekken.json", "merges.txt"}
    assert chosen(["model.safetensors", "docs/config.json", *small]) == {"model.safetensors", *small}


def test_files_about_embeddings_are_chosen() -> None:
    own = {
        "modules.json", "artifact.metadata", "sentence_bert_config.json", "config_sentence_transformers.json", "vocab.txt",
        "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors",
    }  # fmt: skip
    others = {"2_Dense/pytorch_model.bin", "onnx/model.onnx", "openvino/openvino_model.xml", "onnx/config.json"}
    assert chosen([*TEXT, *own, *others, "model.safetensors", *OTHER]) == {*TEXT, *own, "model.safetensors"}


def test_small_files_come_before_weights() -> None:
    choice = choose_files(HubModel("o/n"), [HubFile("model.safetensors", 7), HubFile("config.json", 2)])
    assert ([file.name for file in choice.all], choice.size) == (["config.json", "model.safetensors"], 9)


GGUFS = ("Name-Q4_0.gguf", "Name-Q8_0-00001-of-00002.gguf", "Name-Q8_0-00002-of-00002.gguf", "mmproj-Q8_0.gguf")


@table(("wanted", "count"), [("Q4_0", 1), ("q8_0", 2)])
def test_one_quantisation_of_gguf_files_is_chosen_with_all_parts(wanted: str, count: int) -> None:
    found = chosen([*GGUFS, "config.json", "model.safetensors"], wanted)
    assert found == {"config.json", *(name for name in GGUFS[:3] if wanted.upper() in name)}
    assert len(found) == count + 1


def test_a_missing_quantisation_is_reported_with_the_existing_ones() -> None:
    with pytest.raises(HubError, match=r"org/name: no GGUF file of type Q5_K_M; there are Q4_0, Q8_0"):
        chosen(GGUFS, "Q5_K_M")


def test_a_repository_of_ggufs_says_how_to_choose_one() -> None:
    with pytest.raises(HubError, match=r"GGUF files only; choose one with `dragoman pull org/name --gguf Q4_0`"):
        chosen(GGUFS)


@table("name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00002.bin", "model.ckpt"])
def test_a_repository_of_pickles_is_refused_with_the_command_that_converts(name: str) -> None:
    with pytest.raises(
        HubError, match=r"pickles only.*python -c .*from_pretrained\(s, torch_dtype='auto'\).save_pretr"
    ):
        chosen(["config.json", name])


def test_a_repository_without_weights_is_refused() -> None:
    with pytest.raises(HubError, match=r"org/name: holds no weights that can be served"):
        chosen(["config.json", "README.md"])


@table(
    ("name", "wanted"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"), ("Llama-3.2-1B.IQ4_NL.gguf", "IQ4_NL"), ("a/b-BF16.gguf", "BF16"),
        ("model-f16.gguf", "F16"), ("gpt-oss-20b-mxfp4.gguf", "MXFP4"), ("name.gguf", ""), ("Q8_0.gguf", "Q8_0"),
    ],
)  # fmt: skip
def test_the_name_of_a_gguf_file_has_its_quantisation(name: str, wanted: str) -> None:
    assert gguf_type(name) == wanted


@table(
    ("text", "model"),
    [
        ("Qwen/Qwen3-0.6B", HubModel("Qwen/Qwen3-0.6B")),
        ("org/name@refs/pr/1", HubModel("org/name", "refs/pr/1")),
        ("org/name:Q4_0@v1.0", HubModel("org/name", "v1.0", "Q4_0")),
    ],
)
def test_names_of_the_hub_are_read_and_written(text: str, model: HubModel) -> None:
    assert hub_model(text) == model
    assert str(model) == text


@table(
    "text",
    ["./org/name", "/org/name", "~/org", "name", "a/b/c", "org/..", "../name", "org/", "", "org/na me", "s3://a/b",
     "org/a--b", "org/name@", "org/name@../x", "file://a/b"],
)  # fmt: skip
def test_paths_are_not_names_of_the_hub(text: str) -> None:
    assert hub_model(text) is None
