"""Small files in the cache that cannot be read: the model is told of as far as names go, and nothing fails."""

from __future__ import annotations

from pathlib import Path

from dragoman.hub.cache import graph_files, missing
from dragoman.hub.inventory import bundled_models
from tests.support.tables import table

NESTED = '{"model_type":' * 200_000
DAMAGED = table(
    "text", [NESTED + "0" + "}" * 200_000, NESTED, '{"model_type": ' + "[" * 200_000, "[]", "", '{"model_type": "phi'],
    ids=["nested", "nested and cut", "a nested list", "no object", "empty", "cut"],
)  # fmt: skip


@DAMAGED
def test_a_config_that_cannot_be_read_names_no_further_graphs(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    (tmp_path / "openvino_language_model.xml").touch()
    names = graph_files(tmp_path)
    assert "openvino_vision_embeddings_model.bin" in names
    assert not any("projection" in name for name in names)


@DAMAGED
def test_a_model_whose_config_cannot_be_read_is_listed_without_a_family(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    [model] = bundled_models({"mine": tmp_path})
    assert (model.name, model.family, model.format, model.size) == ("mine", "", "safetensors", 5 + len(text))


@DAMAGED
def test_an_index_that_cannot_be_read_is_missing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    assert missing(tmp_path) == "model.safetensors.index.json that can be read"
