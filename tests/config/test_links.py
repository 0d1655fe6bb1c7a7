"""Links out of a model's directory are refused, except those of the hub's cache to its blobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config.resolve import ConfigError, resolve
from dragoman.config.sources import Given
from dragoman.config.trust import links_out
from tests.support.tables import table


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "secret").write_text("hush", encoding="utf-8")
    return directory


@table("target", ["../secret", "/etc/hostname", "../nothing-there", ".."])
def test_a_link_that_leads_out_stops_the_start_by_its_name(target: str, model: Path) -> None:
    (model / "chat_template.jinja").symlink_to(target)
    with pytest.raises(ConfigError) as caught:
        resolve([Given("MODEL_DIR", "option.model_id", str(model), "command line")], {}, model)
    (model / "chat_template.jinja").unlink()
    [problem] = caught.value.problems
    assert problem.startswith(f"{model}/chat_template.jinja: leads to /")
    assert problem.endswith("out of the model's directory; put the file itself there")


def test_links_within_the_directory_are_allowed(model: Path) -> None:
    (model / "tokenizer.json").symlink_to("config.json")
    (model / "again").symlink_to(model)
    assert links_out(model) == []


def test_the_directory_itself_may_be_a_link(model: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(model)
    (model / "inner").symlink_to(tmp_path / "latest" / "config.json")
    assert links_out(tmp_path / "latest") == []


def test_links_in_subdirectories_are_checked_too(model: Path, tmp_path: Path) -> None:
    """Templates, modules of embeddings, adapters, shards: any file at any depth."""
    places = [
        "additional_chat_templates/tool.jinja",
        "1_Pooling/config.json",
        "adapters/a/adapter_config.json",
        "a/b/c/d",
    ]
    for place in places:
        (model / place).parent.mkdir(parents=True)
        (model / place).symlink_to(tmp_path / "secret")
    (model / "2_Dense").symlink_to(tmp_path)  # a folder as a whole
    (model / "inner").symlink_to(model / "a")
    assert {line.partition(": ")[0] for line in links_out(model)} == {str(model / one) for one in (*places, "2_Dense")}


@pytest.mark.parametrize("name", ["lora", "draft_model"])
def test_links_of_adapters_and_drafts_are_checked_too(name: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "beside" / "inner").mkdir(parents=True)
    (tmp_path / "beside" / "inner" / "config.json").symlink_to("../../secret")
    value = f"a={tmp_path}/beside" if name == "lora" else f"{tmp_path}/beside"
    givens = [Given("MODEL_DIR", "option.model_id", str(model), "command line")]
    with pytest.raises(ConfigError) as caught:
        resolve([*givens, Given(f"--{name}", f"option.{name}", value, "command line")], {}, model)
    [problem] = caught.value.problems
    assert problem.startswith(f"{tmp_path}/beside/inner/config.json: leads to {tmp_path}/secret, ")


@pytest.mark.varies("each Python resolves a circle of links in a way of its own")
def test_a_circle_of_links_raises_no_error(model: Path) -> None:
    (model / "a").symlink_to("b")
    (model / "b").symlink_to("a")
    assert len(links_out(model)) in (0, 2)  # as this Python resolves a circle: to itself, or not at all


def snapshot(cache: Path, repo: str) -> Path:
    directory = cache / repo / "snapshots" / ("0" * 40)
    directory.mkdir(parents=True)
    (cache / repo / "blobs").mkdir()
    (cache / repo / "blobs" / "abc").write_text("{}", encoding="utf-8")
    return directory


def test_links_of_the_hubs_cache_may_lead_to_the_blobs_of_their_repository_only(tmp_path: Path) -> None:
    one, two = snapshot(tmp_path, "models--org--one"), snapshot(tmp_path, "models--org--two")
    (one / "config.json").symlink_to("../../blobs/abc")
    (one / "1_Pooling").mkdir()
    (one / "1_Pooling" / "config.json").symlink_to("../../../blobs/abc")
    assert links_out(one) == links_out(one / "1_Pooling") == []
    (two / "config.json").symlink_to(one.parents[1] / "blobs" / "abc")
    assert len(links_out(two)) == 1
    (one / "other.json").symlink_to("../../refs/main")
    assert len(links_out(one)) == 1


def test_blobs_outside_a_hubs_cache_are_not_allowed(tmp_path: Path) -> None:
    directory = tmp_path / "org" / "snapshots" / "1"
    directory.mkdir(parents=True)
    (tmp_path / "org" / "blobs").mkdir()
    (tmp_path / "org" / "blobs" / "abc").touch()
    (directory / "config.json").symlink_to("../../blobs/abc")
    assert len(links_out(directory)) == 1
