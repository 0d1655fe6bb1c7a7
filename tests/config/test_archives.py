"""Model archives: what is in them is found, and nothing lands anywhere else."""

from __future__ import annotations

import io
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.archives import SUFFIXES, ArchiveError, archive_stem, unpack
from dragoman.config.resolve import Config, ConfigError
from dragoman.config.several import resolve_all
from tests.support.tables import table

FILES = {"config.json": "{}", "serving.properties": "option.max_model_len=64"}


def pack(path: Path, files: Mapping[str, str] = FILES) -> Path:
    """An archive of these names and texts, of the kind that its name says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name, text in files.items():
                packed.writestr(name, text)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def contents(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


@table("suffix", SUFFIXES)
def test_an_archive_becomes_the_directory_that_was_packed(suffix: str, tmp_path: Path) -> None:
    archive = pack(tmp_path / f"my.model{suffix}", {**FILES, "sub/file": "x"})
    directory = unpack(archive, tmp_path / "cache")
    assert contents(directory) == {**FILES, "sub/file": "x"}
    assert archive_stem(archive) == "my.model"


def test_a_single_directory_in_it_is_the_model(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.zip", {f"llama/{name}": text for name, text in FILES.items()})
    assert contents(unpack(archive, tmp_path / "cache")) == FILES


def test_it_is_unpacked_once_until_it_changes(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.gz")
    first = unpack(archive, tmp_path / "cache")
    (first / "mark").touch()
    assert (unpack(archive, tmp_path / "cache") / "mark").is_file()
    pack(archive, {**FILES, "more": "x"})
    assert contents(unpack(archive, tmp_path / "cache")) == {**FILES, "more": "x"}


def link_in_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(member, "/etc/passwd")


def link_in_tar(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "../../outside"
        tar.addfile(member)


def device_in_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("null")
        member.type, member.devmajor, member.devminor = tarfile.CHRTYPE, 1, 3
        tar.addfile(member)


def hard_link_in_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.LNKTYPE, "../../outside"
        tar.addfile(member)


UNSAFE: Mapping[str, Callable[[Path], object]] = {
    "up.zip": lambda path: pack(path, {"ok": "", "../outside": "x"}),
    "root.zip": lambda path: pack(path, {"/outside": "x"}),
    "drive.zip": lambda path: pack(path, {"C:/outside": "x"}),
    "link.zip": link_in_zip,
    "up.tar": lambda path: pack(path, {"ok": "", "../outside": "x"}),
    "link.tar.gz": link_in_tar,
    "hard-link.tar": hard_link_in_tar,
    "device.tar": device_in_tar,
    "broken.zip": lambda path: path.write_bytes(b"PK\x03\x04 and no more"),
    "broken.tar.gz": lambda path: path.write_bytes(b"\x1f\x8b\x08 and no more"),
    "empty.tgz": lambda path: path.write_bytes(b""),
    "cut.tar.gz": lambda path: path.write_bytes(pack(path, {"a": "x" * 9999}).read_bytes()[:-20]),
}


@table("name", UNSAFE)
def test_what_is_unsafe_or_broken_is_refused_in_one_line_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    UNSAFE[name](tmp_path / name)
    with pytest.raises(ArchiveError) as caught:
        unpack(tmp_path / name, tmp_path / "in" / "cache")
    assert str(caught.value).startswith(f"{tmp_path / name}: cannot be unpacked into {tmp_path}/in/cache: ")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "in").rglob("*")) == [tmp_path / "in" / "cache"]
    assert not list(tmp_path.rglob("outside"))


@table("name", ["bomb.zip", "bomb.tar.gz"])
def test_an_archive_that_holds_more_than_the_disk_is_not_unpacked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    archive = pack(tmp_path / name, {"small": "x", "large": "0" * 5000})
    with pytest.raises(ArchiveError, match=r"its contents need at least 500[01] bytes, and 1000 are free"):
        unpack(archive, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


# --- in a model store -------------------------------------------------------------------------------------------------


def given(tmp_path: Path, line: str, environ: Mapping[str, str] | None = None) -> tuple[Config, ...]:
    arguments = read_arguments(line.split())
    return resolve_all(arguments.givens, environ or {}, tmp_path, tmp_path / "no-store").models


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with an archive `b` and a directory `a`."""
    directory = tmp_path / "store"
    (directory / "a").mkdir(parents=True)
    pack(directory / "b.tar.gz")
    return directory


def test_archives_in_a_store_are_models_beside_directories(store: Path, tmp_path: Path) -> None:
    one, two = given(tmp_path, f"--model-store {store} --cache-dir {tmp_path}/cache")
    assert (one.name, two.name) == ("a", "b")
    assert two.model.max_model_len == 64
    assert two.directory.is_relative_to(tmp_path / "cache" / "archives")
    assert f"from {store}/b.tar.gz" in two.origins["name"].source


def test_an_archive_can_be_listed_by_its_path(store: Path, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "home")}
    one, two = given(tmp_path, f"-m {store}/b.tar.gz x::Python=file://{store}/b.tar.gz", environ)
    assert (one.name, two.name) == ("b", "x")
    assert one.directory == two.directory
    assert one.directory.is_relative_to(tmp_path / "home" / "dragoman" / "archives")


def test_an_archive_in_the_place_of_the_model_directory_is_told_where_it_belongs(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an archive is served with --load-models"):
        given(tmp_path, f"{store}/b.tar.gz")


def test_a_bad_archive_stops_the_start_and_tells_who_named_it(store: Path, tmp_path: Path) -> None:
    (store / "c.zip").write_bytes(b"no archive")
    with pytest.raises(ConfigError) as caught:
        given(tmp_path, f"-s {store} --cache-dir {tmp_path}/cache")
    [problem] = caught.value.problems
    assert problem.startswith(f"{store}/c.zip: cannot be unpacked into ")
    assert problem.endswith("(command line: -s)")
