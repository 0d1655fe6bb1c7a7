"""Compiled graphs and packed weights are kept, mapped at the next start, and compute the same, whatever a file holds.

What is kept is packed weights where kernels of our own multiply, and else the compiled graph.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import stat
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import xxhash

from dragoman import models
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import LoadedModel, ModelOptions, kept_files, load_model
from dragoman.models.facts import AttentionFacts, LayerFacts, MlpFacts, ModelFacts
from dragoman.models.kept_files import SealedBytes, append_seal, code_digest, compile_and_keep, map_kept
from dragoman.models.profile import kernel_profile
from tests.support.expert_models import write_experts
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.family_logits import error_on_prompt
from tests.support.forward import forward_batch
from tests.support.hybrid_checkpoint import write_hybrid, write_scanning, write_stateful
from tests.support.random_checkpoint import TIED, UNTIED, write_checkpoint
from tests.support.tiers import width

PROMPT = list(range(3, 40))
MAPS = Path("/proc/self/maps")
SMALLEST = ModelFacts("small", 8, 8, 8, (LayerFacts(AttentionFacts(1, 1, 8, 8, 1.0), MlpFacts(8, "silu")),))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(TIED, tmp_path_factory.mktemp("model"))


def answers(loaded: LoadedModel) -> Any:
    """Logits of a prompt of two blocks and of the token after it, which reads what the prompt left in the cache."""
    runner = OpenVinoRunner(loaded, num_blocks=4)
    first = runner.forward(forward_batch([(PROMPT, 0, range(2))], logit_rows=[len(PROMPT) - 1])).copy()
    second = runner.forward(forward_batch([([7], len(PROMPT), range(2))], logit_rows=[0])).copy()
    return np.concatenate([first, second])


def kept_file(cache_dir: Path) -> Path:
    (path,) = cache_dir.iterdir()  # nothing half written lies beside it
    return path


@pytest.mark.parametrize("write", [write_hybrid, write_stateful, write_scanning])
def test_a_kept_graph_of_layers_that_do_not_attend_computes_the_same(write: Any, tmp_path: Path) -> None:
    directory = write(tmp_path / "model")
    (tmp_path / "cache").mkdir()
    kept = ModelOptions(cache_dir=tmp_path / "cache")
    for options in (kept, replace(kept, weight_type="f32")):  # packed weights, and the graph itself
        built, mapped = load_model(directory, options), load_model(directory, options)
        assert (built.from_cache, mapped.from_cache) == (False, True)
        assert np.array_equal(answers(built), answers(mapped))
    assert not load_model(
        directory, replace(kept, weight_type="f32", takes_back=True)
    ).from_cache  # whose blocks keep more


def test_a_kept_graph_with_experts_computes_the_same(tmp_path: Path) -> None:
    directory, cache_dir = write_experts("many", tmp_path / "model"), tmp_path / "cache"
    for options in (ModelOptions(cache_dir=cache_dir), ModelOptions("f32", cache_dir=cache_dir)):
        first, second = load_model(directory, options), load_model(directory, options)
        assert (first.from_cache, second.from_cache) == (False, True)
        assert np.array_equal(answers(first), answers(second))


def test_a_kept_graph_of_layers_with_other_heads_and_a_shared_cache_computes_what_it_should(tmp_path: Path) -> None:
    directory = write_family_checkpoint("gemma4", tmp_path / "model")
    for is_kept in (False, True):
        loaded = load_model(directory, ModelOptions("f32", cache_dir=tmp_path / "cache"))
        assert loaded.from_cache == is_kept
        assert error_on_prompt(loaded, "gemma4", 90) < 1e-4


PRECISIONS = {
    "int8": ModelOptions("int8"),
    "plugin": ModelOptions("int8", kernels="openvino"),
    "int4": ModelOptions("int4"),
    "f32": ModelOptions("f32"),
    "u8 cache": ModelOptions("int8", kv_type="u8"),
    "one thread": ModelOptions(num_threads=1),
}


@pytest.mark.varies("what the plugin keeps depends on the processor")
@pytest.mark.parametrize("name", width(list(PRECISIONS), ["f32", "plugin", "u8 cache"]))
def test_a_kept_graph_computes_the_same_with_every_precision(name: str, directory: Path, tmp_path: Path) -> None:
    options = PRECISIONS[name]
    facts = {name: getattr(options, name) for name in ("weight_type", "kv_type", "num_threads", "kernels")}
    built, mapped = (load_model(directory, ModelOptions(**facts, cache_dir=tmp_path)) for _ in range(2))
    assert (built.from_cache, mapped.from_cache) == (False, True)
    assert built.block_bytes == mapped.block_bytes
    assert np.array_equal(answers(built), answers(mapped))


def test_other_options_and_other_weights_do_not_share_a_graph(tmp_path: Path) -> None:
    directory, cache = write_checkpoint(UNTIED, tmp_path / "model"), tmp_path / "cache"
    assert not load_model(directory, ModelOptions("int8", cache_dir=cache)).from_cache
    assert not load_model(directory, ModelOptions("int4", cache_dir=cache)).from_cache
    assert not load_model(directory, ModelOptions("f32", cache_dir=cache)).from_cache
    assert not load_model(directory, ModelOptions("f32", kv_type="u8", cache_dir=cache)).from_cache
    assert len(list(cache.iterdir())) == 4


def test_a_graph_of_weights_that_have_changed_is_replaced(tmp_path: Path) -> None:
    directory, cache = write_checkpoint(UNTIED, tmp_path / "a model [1]"), tmp_path / "cache"
    options, other_options = (ModelOptions(weight_type, cache_dir=cache) for weight_type in ("int8", "int4"))
    before, other = load_model(directory, options), load_model(directory, other_options)
    expected = answers(before)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes())  # another time of change
    assert not load_model(directory, options).from_cache
    assert len(list(cache.iterdir())) == 2  # the superseded one is gone, the one of other options is not
    assert np.array_equal(answers(before), expected)
    assert load_model(directory, options).from_cache
    assert not other.from_cache


def _shorten(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _break_the_graph(data: bytes) -> bytes:
    return data[:-3000] + bytes(1000) + data[-2000:]


def _other_version(data: bytes) -> bytes:
    return data.replace(b"meta=", b"meat=", 1)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "junk": lambda _: b"junk",
    "junk lines": lambda _: b"junk\n" * 2000,
    "half": _shorten,
    "broken graph": _break_the_graph,
}


@pytest.mark.parametrize("kernels", ["auto", "openvino"])
@pytest.mark.parametrize("damage", width(list(DAMAGES), ["empty", "half"]))
def test_a_damaged_file_is_made_anew(damage: str, kernels: Any, directory: Path, tmp_path: Path) -> None:
    check_made_anew(DAMAGES[damage], kernels, directory, tmp_path)


def test_a_graph_of_another_version_is_made_anew(directory: Path, tmp_path: Path) -> None:
    check_made_anew(_other_version, "openvino", directory, tmp_path)


def check_made_anew(damage: Callable[[bytes], bytes], kernels: Any, directory: Path, tmp_path: Path) -> None:
    """Assert that a start with a damaged file computes the same, and leaves a whole one."""
    options = ModelOptions(cache_dir=tmp_path, kernels=kernels)
    expected = answers(load_model(directory, options))
    path = kept_file(tmp_path)
    path.chmod(0o600)
    path.write_bytes(damage(path.read_bytes()))
    mended = load_model(directory, options)
    assert not mended.from_cache
    assert np.array_equal(answers(mended), expected)
    assert load_model(directory, options).from_cache


HAS_OWN_KERNELS = kernel_profile(ModelOptions()).kernels == "own"


@pytest.mark.skipif(not HAS_OWN_KERNELS, reason="graphs are kept, and no weights apart")
def test_starts_that_run_a_model_otherwise_share_its_packed_weights(directory: Path, tmp_path: Path) -> None:
    first, *others = (
        ModelOptions(cache_dir=tmp_path),
        ModelOptions(kv_type="u8", cache_dir=tmp_path),
        ModelOptions(num_threads=1, cache_dir=tmp_path),
    )
    expected = answers(load_model(directory, first))
    for options in others:
        assert load_model(directory, options).from_cache
    assert np.array_equal(answers(load_model(directory, first)), expected)
    kept_file(tmp_path)


@pytest.mark.skipif(not HAS_OWN_KERNELS, reason="graphs are kept, and no weights apart")
def test_kept_weights_that_are_not_those_of_the_graph_are_made_anew(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ModelOptions(cache_dir=tmp_path)
    expected = answers(load_model(directory, options))
    path = kept_file(tmp_path)
    contents = SealedBytes(np.fromfile(path, np.uint8)).contents.tobytes()
    length = int.from_bytes(contents[-8:], "little")
    places = json.loads(contents[-8 - length : -8])
    index = json.dumps(places[::-1]).encode()  # sealed, but in another order
    path.write_bytes(contents[: -8 - length] + index + len(index).to_bytes(8, "little"))
    append_seal(path)
    mended = load_model(directory, options)
    assert not mended.from_cache
    assert "it holds other matrices" in caplog.text
    assert np.array_equal(answers(mended), expected)


@pytest.mark.parametrize("place", width([0.02, 0.3, 0.5, 0.8, 0.999], [0.5]), ids=str)
@pytest.mark.parametrize("weight_type", ["f32", "int8"])
def test_a_file_of_which_one_bit_has_changed_is_told_and_made_anew(
    place: float,
    weight_type: Any,
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_files, "PART_BYTES", 1 << 16)  # so that even this file has a middle
    options = ModelOptions(weight_type, cache_dir=tmp_path)
    expected = answers(load_model(directory, options))
    path = kept_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.chmod(0o600)
    path.write_bytes(data)
    damaged = path.stat().st_ino
    mended = load_model(directory, options)
    assert not mended.from_cache
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert str(path) in told
    assert "made anew" in told
    if MAPS.exists():
        inodes = {line.split()[4] for line in MAPS.read_text().splitlines()}
        assert str(damaged) not in inodes  # nothing of the damaged graph is left
        assert str(path.stat().st_ino) in inodes  # the new one is mapped at once
    assert np.array_equal(answers(mended), expected)
    assert load_model(directory, options).from_cache


class ImportingCore:
    """A runtime that only says when it imports, and lets the checking of a file's middle go on no sooner than that."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.has_imported = threading.Event()

    def add_extension(self, _extension: Any) -> None:
        """As OpenVINO's."""

    def import_model(self, _graph: Any, _device: str, _properties: dict[str, Any]) -> str:
        self._events.append("imported")
        self.has_imported.set()
        return "graph"


def test_the_ends_are_checked_before_the_graph_is_read_and_all_else_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "PART_BYTES", 1000)
    path = tmp_path / "model.blob"
    path.write_bytes(b"header\n" + bytes(993) + b"a" * 1000 + b"b" * 1000 + b"z" * 10)
    append_seal(path)
    events: list[str] = []
    core = ImportingCore(events)
    digest = xxhash.xxh3_64_digest

    def slow_digest(data: Any) -> bytes:
        begin = bytes(data[:1])
        if begin in (b"a", b"b"):  # the middle
            assert core.has_imported.wait(30)
        if begin in (b"h", b"a", b"b", b"z"):  # not the checksums' own
            events.append(f"checked {begin.decode()}")
        return digest(data)

    monkeypatch.setattr(xxhash, "xxh3_64_digest", slow_digest)
    assert map_kept(core, path, {}, SMALLEST) is not None
    assert set(events[:2]) == {"checked h", "checked z"}
    assert events[2] == "imported"
    assert set(events[3:]) == {"checked a", "checked b"}


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 5000])
def test_a_seal_fits_files_of_any_size(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "PART_BYTES", 1000)
    path = tmp_path / "file"
    contents = bytes(range(250)) * 20
    path.write_bytes(contents[:size])
    append_seal(path)
    with SealedBytes(np.fromfile(path, np.uint8)) as sealed:
        sealed.begin_check()
        sealed.finish_check()
        assert sealed.contents.tobytes() == contents[:size]


def test_a_file_removed_while_it_is_used_takes_nothing_away(directory: Path, tmp_path: Path) -> None:
    options = ModelOptions(cache_dir=tmp_path)
    expected = answers(load_model(directory, options))
    mapped = load_model(directory, options)
    kept_file(tmp_path).unlink()
    assert np.array_equal(answers(mapped), expected)


def test_a_graph_that_cannot_be_kept_is_told_and_does_not_stop_the_load(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the directory's place")
    loaded = load_model(directory, ModelOptions(cache_dir=tmp_path / "file" / "graphs"))
    assert not loaded.from_cache
    assert "cannot be kept" in caplog.text


def test_what_somebody_else_can_have_written_is_not_mapped(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    options = ModelOptions(cache_dir=cache)
    load_model(directory, options)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert load_model(directory, options).from_cache

    def replace_by_link() -> None:
        path = kept_file(cache)
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")

    changes: dict[str, Callable[[], object]] = {
        "which lets other users write": lambda: kept_file(cache).chmod(0o620),
        "Too many levels of symbolic links": replace_by_link,
        "cache has mode 1777": lambda: cache.chmod(0o1777),
    }
    if os.geteuid() == 0:
        changes = {"belongs to user 65534": lambda: os.chown(kept_file(cache), 65534, -1), **changes}
    for told, change in changes.items():
        caplog.clear()
        change()
        assert not load_model(directory, options).from_cache
        [record] = caplog.records
        assert told in record.getMessage()
    cache.chmod(0o777)  # no directory that users share: it is closed
    assert load_model(directory, options).from_cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o755


@contextmanager
def no_larger_files(num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond that, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_not_kept_and_made_anew(
    directory: Path, cache_dir: Path, failing: AbstractContextManager[Any], kernels: Any
) -> None:
    """Assert that a load that cannot keep anything goes on and leaves nothing, and that the next one keeps it."""
    options = ModelOptions(cache_dir=cache_dir, kernels=kernels)
    with failing:
        loaded = load_model(directory, options)
    assert (loaded.from_cache, loaded.mapping) == (False, None)
    assert list(cache_dir.iterdir()) == []
    expected = answers(loaded)
    for from_cache in (False, True):
        again = load_model(directory, options)
        assert again.from_cache == from_cache
        assert np.array_equal(answers(again), expected)
    kept_file(cache_dir)


@pytest.mark.parametrize("kernels", ["auto", "openvino"])
@pytest.mark.parametrize("room", width([0.01, 0.9], [0.9]))
def test_what_the_disk_has_no_room_for_is_made_anew_at_the_next_start(
    room: float, kernels: Any, directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_model(directory, ModelOptions(cache_dir=tmp_path / "roomy", kernels=kernels))
    num_bytes = kept_file(tmp_path / "roomy").stat().st_size
    (tmp_path / "cache").mkdir()
    check_not_kept_and_made_anew(directory, tmp_path / "cache", no_larger_files(int(room * num_bytes)), kernels)
    assert "cannot be kept" in caplog.text


FAILING = [
    ("tempfile.mkdtemp", errno.EROFS),
    ("dragoman.models.kept_files.append_seal", errno.ENOSPC),
    ("pathlib.Path.replace", errno.EROFS),
]


@pytest.mark.parametrize("kernels", ["auto", "openvino"])
@pytest.mark.parametrize(("where", "number"), width(FAILING, FAILING[1:2]))
def test_what_cannot_be_finished_is_made_anew_at_the_next_start(
    where: str, number: int, kernels: Any, directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError(number, os.strerror(number))
    check_not_kept_and_made_anew(directory, tmp_path, patch(where, side_effect=error), kernels)
    assert "cannot be kept" in caplog.text
    assert os.strerror(number) in caplog.text


def copy_of_the_code(target: Path) -> Path:
    shutil.copytree(Path(models.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def test_any_change_of_the_code_changes_its_digest(tmp_path: Path) -> None:
    package = copy_of_the_code(tmp_path / "models")
    found = [code_digest(package)]
    assert code_digest(Path(models.__file__).parent) == found[0]  # what Python keeps beside the sources does not count
    rotary = package / "blocks" / "rotary.py"
    rotary.write_text(rotary.read_text().replace("first", "erste", 1))
    found.append(code_digest(package))
    rotary.rename(package / "blocks" / "rotation.py")
    found.append(code_digest(package))
    (package / "families" / "llama.py").unlink()
    found.append(code_digest(package))
    assert len(set(found)) == 4


def test_code_in_a_zip_file_has_the_digest_of_the_same_code_in_a_directory(tmp_path: Path) -> None:
    package = copy_of_the_code(tmp_path / "wheel" / "models")
    wheel = zipfile.Path(shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "wheel"))
    assert code_digest(wheel / "models") == code_digest(package)


def test_a_model_whose_code_cannot_be_read_is_loaded_and_not_kept(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing").mkdir()
    assert code_digest(tmp_path / "nothing") is None
    monkeypatch.setattr(kept_files, "own_code", lambda: None)
    loaded = load_model(directory, ModelOptions(cache_dir=tmp_path / "cache"))
    assert loaded.mapping is None
    assert not (tmp_path / "cache").exists()


def test_a_graph_is_mapped_as_soon_as_it_is_kept(directory: Path, tmp_path: Path) -> None:
    built = load_model(directory, ModelOptions("f32", cache_dir=tmp_path))
    assert built.mapping.nbytes == kept_file(tmp_path).stat().st_size
    assert np.array_equal(answers(built), answers(load_model(directory, ModelOptions("f32"))))


@pytest.mark.skipif(not MAPS.exists(), reason="only Linux tells what is mapped")
def test_weights_lie_in_the_file_that_is_kept_and_servers_share_it(directory: Path, tmp_path: Path) -> None:
    built, mapped = (load_model(directory, ModelOptions(cache_dir=tmp_path)) for _ in range(2))
    inode = str(kept_file(tmp_path).stat().st_ino)
    assert sum(line.split()[4] == inode for line in MAPS.read_text().splitlines()) > 1
    assert (built.from_cache, mapped.from_cache) == (False, True)


class FullDisk:
    """A runtime whose cache directory is on a full disk: it removes what it could not finish, and says nothing."""

    def compile_model(self, graph: Any, _device: str, _properties: dict[str, Any]) -> Any:
        return graph


def test_a_graph_that_the_plugin_did_not_write_is_told_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = object()
    assert compile_and_keep(FullDisk(), compiled, {}, tmp_path / "model.blob", SMALLEST) == (compiled, None)
    assert "could not be written" in caplog.text
    assert list(tmp_path.iterdir()) == []
