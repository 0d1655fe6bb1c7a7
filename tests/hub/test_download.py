"""Models come from a hub whole, or one line says why not."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from dragoman.hub import download
from dragoman.hub.download import bring
from dragoman.hub.environment import hub_environment
from dragoman.hub.names import HubError, HubModel, hub_model
from tests.support.fake_hub import FakeHub
from tests.support.tables import table

WEIGHTS = bytes(range(256)) * 400
FILES = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}" * 800, "model.safetensors": WEIGHTS}


def pull(
    name: str, environ: Mapping[str, str], notes: list[str] | None = None, stages: list[tuple[str, float]] | None = None
) -> Path:
    model = hub_model(name)
    assert model is not None

    def progress(stage: str, fraction: float) -> None:
        if stages is not None:
            stages.append((stage, fraction))

    return bring(model, hub_environment(environ), progress, (notes if notes is not None else []).append)


def failure(name: str, environ: Mapping[str, str]) -> str:
    with pytest.raises(HubError) as caught:
        pull(name, environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_only_the_needed_files_are_downloaded(hub: FakeHub, environ: dict[str, str]) -> None:
    repository = hub.add("org/name", {**FILES, "README.md": b"hello", "pytorch_model.bin": b"x" * 2000})
    stages: list[tuple[str, float]] = []
    directory = pull("org/name", environ, stages=stages)
    assert contents(directory) == FILES
    assert (directory.name, directory.parent.name) == (repository.commit, "snapshots")
    assert {stage for stage, _ in stages} == {"downloading org/name (3 files, 104.0 kB)"}  # one line for all files
    assert stages[-1][1] == 1.0
    assert [one for one, _ in sorted(enumerate(stages), key=lambda pair: pair[1][1])] == list(range(len(stages)))


def test_bytes_are_counted_during_a_download(hub: FakeHub, environ: dict[str, str]) -> None:
    commit = hub.add("org/name", FILES).commit
    counted: list[download.Arrived] = []
    bring(HubModel("org/name"), hub_environment(environ), lambda stage, fraction: None, print, counted.append)
    size = sum(map(len, FILES.values()))
    assert {(one.commit, one.size) for one in counted} == {(commit, size)}
    assert (counted[0].num_bytes, counted[-1].num_bytes) == (0, size)
    assert counted == sorted(counted)


def test_the_second_time_nothing_is_downloaded(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES)
    first = pull("org/name", environ)
    sent = hub.bytes_sent
    assert pull("org/name", environ) == first
    assert hub.bytes_sent == sent


def test_a_cached_commit_needs_no_hub(hub: FakeHub, environ: dict[str, str]) -> None:
    commit = hub.add("org/name", FILES).commit
    first = pull(f"org/name@{commit}", environ)
    hub.requests.clear()
    assert pull(f"org/name@{commit}", environ) == first
    assert hub.requests == []


def test_a_new_commit_is_downloaded_and_a_tag_stays(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES, tags=("v1",))
    old = pull("org/name@v1", environ)
    hub.add("org/name", {**FILES, "config.json": b'{"new": 1}'})
    new = pull("org/name", environ)
    assert new != old
    assert hub.asked_for("model.safetensors") == 1  # the same blob in both
    assert contents(old)["config.json"] == FILES["config.json"]


def test_a_broken_connection_is_retried(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES)
    hub.breaks["model.safetensors"] = [1000, 2000]
    assert contents(pull("org/name", environ)) == FILES
    assert hub.asked_for("model.safetensors") >= 3


def test_a_stopped_download_continues(hub: FakeHub, environ: dict[str, str]) -> None:
    """What the cache has of a file is not asked for again, if the library can use it; whole files never are."""
    hub.add("org/name", FILES)
    hub.breaks["model.safetensors"] = [1000] * 50
    assert "broke off" in failure("org/name", environ)
    assert hub.asked_for("tokenizer.json") == 1
    hub.breaks.clear()
    assert contents(pull("org/name", environ)) == FILES
    assert hub.asked_for("tokenizer.json") == 1


def test_half_a_file_in_the_cache_is_only_completed(hub: FakeHub, environ: dict[str, str]) -> None:
    import huggingface_hub

    if int(huggingface_hub.__version__.partition(".")[0]) >= 2:
        pytest.skip("this version of the library begins such a file anew")
    hub.add("org/name", FILES)
    hub.breaks["model.safetensors"] = [0] * 50
    failure("org/name", environ)
    hub.breaks.clear()
    [half] = Path(environ["HF_HUB_CACHE"]).rglob("*.incomplete")
    half.write_bytes(WEIGHTS[:60_000])
    assert contents(pull("org/name", environ)) == FILES
    assert hub.ranges == ["bytes=60000-"]


def test_a_gguf_model_is_the_path_of_its_file(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", {"a-Q4_0.gguf": b"GGUF" * 500, "a-Q8_0.gguf": b"GGUF" * 900, "README.md": b""})
    path = pull("org/name:Q4_0", environ)
    assert (path.name, path.read_bytes()) == ("a-Q4_0.gguf", b"GGUF" * 500)
    assert pull("org/name:Q4_0", {**environ, "HF_HUB_OFFLINE": "1"}) == path


# --- without the hub ---


def test_offline_the_cache_is_used_with_a_note(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES)
    directory = pull("org/name", environ)
    hub.requests.clear()
    notes: list[str] = []
    assert pull("org/name", {**environ, "HF_HUB_OFFLINE": "1"}, notes) == directory
    assert notes == ["org/name: taken from the cache as it is there, because HF_HUB_OFFLINE is set"]
    assert hub.requests == []


def test_offline_a_missing_model_is_refused(environ: dict[str, str]) -> None:
    found = failure("org/name", {**environ, "HF_HUB_OFFLINE": "1"})
    assert found.startswith("org/name: neither a directory here nor a model in the hub's cache")
    assert found.endswith("nothing is downloaded, because HF_HUB_OFFLINE is set")


def test_offline_an_incomplete_model_is_refused_with_the_missing_file(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES)
    hub.breaks["model.safetensors"] = [10] * 50
    failure("org/name", environ)
    assert "*.safetensors is missing" in failure("org/name", {**environ, "HF_HUB_OFFLINE": "1"})


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_without_a_network_the_cache_is_used_with_a_note(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES)
    directory = pull("org/name", environ)
    notes: list[str] = []
    dead = {**environ, "HF_ENDPOINT": f"http://127.0.0.1:{unused_port()}"}
    assert pull("org/name", dead, notes) == directory
    assert len(notes) == 1
    assert "cannot be reached" in notes[0]
    assert notes[0].endswith("taken from the cache as it is there")


def test_without_a_network_and_a_cache_the_error_names_the_hub(environ: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    assert failure("org/name", {**environ, "HF_ENDPOINT": url}).startswith(f"org/name: {url} cannot be reached")


def test_the_error_of_a_failing_hub_has_its_status(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.is_failing = True
    assert failure("org/name", environ) == f"org/name: {hub.url} fails (status 500)"


# --- refused ---


def test_a_model_that_does_not_exist(hub: FakeHub, environ: dict[str, str]) -> None:
    found = failure("org/none", environ)
    assert found.startswith(
        f"org/none: neither a directory here nor a model on {hub.url}, or it is private: then set HF_TOKEN"
    )
    assert "HF_TOKEN's account" in failure("org/none", {**environ, "HF_TOKEN": "t"})


def test_a_revision_that_does_not_exist(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES)
    assert failure("org/name@nope", environ) == f"org/name@nope: org/name on {hub.url} has no revision nope"


def test_a_private_model_needs_its_token(hub: FakeHub, environ: dict[str, str]) -> None:
    hub.add("org/name", FILES, token="secret")
    assert "set HF_TOKEN" in failure("org/name", environ)
    assert contents(pull("org/name", {**environ, "HF_TOKEN": "secret"})) == FILES


@pytest.mark.parametrize(("token", "what"), [("", "accept its terms"), ("other", "ask for access")])
def test_the_error_for_a_gated_model_says_where_to_ask(
    token: str, what: str, hub: FakeHub, environ: dict[str, str]
) -> None:
    hub.add("org/name", FILES, token="secret", is_gated=True)
    found = failure("org/name", {**environ, "HF_TOKEN": token})
    assert found.startswith(f"org/name: gated on {hub.url}; {what} at {hub.url}/org/name, and set HF_TOKEN")
    assert "secret" not in found
    assert contents(pull("org/name", {**environ, "HF_TOKEN": "secret"})) == FILES


# --- disks ---


def test_missing_disk_space_is_reported_before_the_download(
    hub: FakeHub, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/name", FILES)
    monkeypatch.setattr(download, "_free_bytes", lambda place: 1000)
    found = failure("org/name", environ)
    assert found.startswith(f"org/name: needs 104.0 kB in {environ['HF_HUB_CACHE']}, and 1.0 kB are free; make room")
    assert hub.bytes_sent == 0


def test_a_disk_that_fills_up_during_a_download(
    hub: FakeHub, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/name", FILES)

    def fails(*values: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", fails)
    assert failure("org/name", environ).startswith(
        f"org/name: no room left for it in {environ['HF_HUB_CACHE']}; make room"
    )


def test_a_cache_that_cannot_be_written(hub: FakeHub, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a disk that is mounted for reading: permissions would not stop root."""
    hub.add("org/name", FILES)

    def fails(path: Any, *values: Any, **named: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "makedirs", fails)
    monkeypatch.setattr(Path, "mkdir", fails)
    found = failure("org/name", environ)
    assert found.startswith(f"org/name: {environ['HF_HUB_CACHE']} cannot be written: ")
    assert found.endswith("HF_HOME names another place")


# --- the environment ---


def test_the_cache_is_the_librarys(tmp_path: Path) -> None:
    assert hub_environment({"HF_HOME": str(tmp_path)}).cache == tmp_path / "hub"
    assert hub_environment({"HF_HOME": "/x", "HF_HUB_CACHE": str(tmp_path)}).cache == tmp_path
    assert hub_environment(os.environ).cache == Path(constants.HF_HUB_CACHE)


@table(("text", "is_offline"), [("1", True), ("ON", True), ("true", True), ("0", False), ("", False)])
def test_offline_mode_is_read_as_the_library_reads_it(text: str, is_offline: bool) -> None:
    assert hub_environment({"HF_HUB_OFFLINE": text}).is_offline is is_offline


SEEING = ("language", "text_embeddings", "vision_embeddings", "vision_projection")


@pytest.mark.parametrize("broken", [None, "openvino_vision_projection_model.bin"])
def test_offline_an_exported_vision_model_is_used_if_complete(
    broken: str | None, hub: FakeHub, environ: dict[str, str]
) -> None:
    names = [f"openvino_{part}_model.{end}" for part in SEEING for end in ("xml", "bin")]
    parts = {name: name.encode() + WEIGHTS for name in names}
    hub.add("org/name", {"config.json": b'{"model_type": "phi3_v"}', "preprocessor_config.json": b"{}", **parts})
    offline = {**environ, "HF_HUB_OFFLINE": "1"}
    if broken is None:
        directory = pull("org/name", environ)
        assert pull("org/name", offline) == directory
        assert len(contents(directory)) == 10
    else:
        hub.breaks[broken] = [10] * 50
        failure("org/name", environ)
        assert f"{broken} is missing" in failure("org/name", offline)
