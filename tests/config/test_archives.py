"""Model archives are unpacked completely, and only into their directory."""

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

pytestmark = pytest.mark.varies("tarfile and zipfile refuse other things in other Pythons")

FILES = {"config.json": "{}", "serving.properties": "option.max_model_len=64"}


def pack(path: Path, files: Mapping[str, str] = FILES) -> Path:
    """An archive of these files, in the format of its name."""
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
def test_an_archive_unpacks_to_the_packed_directory(suffix: str, tmp_path: Path) -> None:
    archive = pack(tmp_path / f"my.model{suffix}", {**FILES, "sub/file": "x"})
    directory = unpack(archive, tmp_path / "cache")
    assert contents(directory) == {**FILES, "sub/file": "x"}
    assert archive_stem(archive) == "my.model"


def test_a_single_directory_in_an_archive_is_the_model(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.zip", {f"llama/{name}": text for name, text in FILES.items()})
    assert contents(unpack(archive, tmp_path / "cache")) == FILES


def test_an_archive_is_unpacked_once_until_it_changes(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.gz")
    first = unpack(archive, tmp_path / "cache")
    (first / "mark").touch()
    assert (unpack(archive, tmp_path / "cache") / "mark").is_file()
    pack(archive, {**FILES, "more": "x"})
    assert contents(unpack(archive, tmp_path / "cache")) == {**FILES, "more": "x"}


def in_zip(path: Path, kind: int) -> None:
    """An archive with one member of that kind, and what it needs."""
    with zipfile.ZipFile(path, "w") as packed:
        member = zipfile.ZipInfo("link")
        member.external_attr = (kind | 0o777) << 16
        packed.writestr(member, "/etc/passwd")


def in_tar(path: Path, kind: bytes, target: str = "") -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        tar.addfile(tarfile.TarInfo("config.json"))
        member = tarfile.TarInfo("link")
        member.type, member.linkname, member.devmajor, member.devminor = kind, target, 1, 3
        tar.addfile(member)


def chain_of_links(path: Path) -> None:
    """Links through folders whose names together are longer than a path may be, and a file behind the last.

    Whoever checks where a link leads by resolving it stops at that length (CVE-2025-4517).
    """
    folder = "d" * 247
    place = ""
    with tarfile.open(path, "w") as tar:
        for letter in "abcdefghijklmnop":
            for name, kind, target in ((folder, tarfile.DIRTYPE, ""), (letter, tarfile.SYMTYPE, folder)):
                member = tarfile.TarInfo(f"{place}{name}")
                member.type, member.linkname = kind, target
                tar.addfile(member)
            place += f"{letter}/"
        for name, target in (
            ("long", f"{place}{'l' * 254}"),
            (f"{place}{'l' * 254}", "../" * 16),
            ("up", "long/../.."),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
        tar.addfile(tarfile.TarInfo("up/outside"))


UNSAFE: Mapping[str, Callable[[Path], object]] = {
    "up.zip": lambda path: pack(path, {"ok": "", "../outside": "x"}),
    "root.zip": lambda path: pack(path, {"/outside": "x"}),
    "drive.zip": lambda path: pack(path, {"C:/outside": "x"}),
    "link.zip": lambda path: in_zip(path, stat.S_IFLNK),
    "pipe.zip": lambda path: in_zip(path, stat.S_IFIFO),
    "up.tar": lambda path: pack(path, {"ok": "", "../outside": "x"}),
    "link.tar.gz": lambda path: in_tar(path, tarfile.SYMTYPE, "../../outside"),
    "inner-link.tar": lambda path: in_tar(path, tarfile.SYMTYPE, "config.json"),
    "hard-link.tar": lambda path: in_tar(path, tarfile.LNKTYPE, "../../outside"),
    "inner-hard-link.tar": lambda path: in_tar(path, tarfile.LNKTYPE, "config.json"),
    "chain-of-links.tar": chain_of_links,
    "device.tar": lambda path: in_tar(path, tarfile.CHRTYPE),
    "disk.tar": lambda path: in_tar(path, tarfile.BLKTYPE),
    "pipe.tar": lambda path: in_tar(path, tarfile.FIFOTYPE),
    "broken.zip": lambda path: path.write_bytes(b"PK\x03\x04 and no more"),
    "broken.tar.gz": lambda path: path.write_bytes(b"\x1f\x8b\x08 and no more"),
    "empty.tgz": lambda path: path.write_bytes(b""),
    "cut.tar.gz": lambda path: path.write_bytes(pack(path, {"a": "x" * 9999}).read_bytes()[:-20]),
}


@table("name", UNSAFE)
def test_an_unsafe_or_broken_archive_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    UNSAFE[name](tmp_path / name)
    with pytest.raises(ArchiveError) as caught:
        unpack(tmp_path / name, tmp_path / "in" / "cache")
    assert str(caught.value).startswith(f"{tmp_path / name}: cannot be unpacked into {tmp_path}/in/cache: ")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "in").rglob("*")) == [tmp_path / "in" / "cache"]
    assert not list(tmp_path.rglob("outside"))


@table("name", ["bomb.zip", "bomb.tar.gz"])
def test_an_archive_larger_than_the_disk_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    archive = pack(tmp_path / name, {"small": "x", "large": "0" * 5000})
    with pytest.raises(ArchiveError, match=r"its contents need at least 500[01] bytes, and 1000 are free"):
        unpack(archive, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_directory_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    directory = unpack(pack(tmp_path / "a.tar"), cache)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (cache, directory)} == {0o700}
    directory.chmod(0o777)
    cache.chmod(0o1777)  # as /tmp is: others may have put the directory there
    with pytest.raises(
        ArchiveError, match=r"cannot be unpacked .*cache has mode 1777, which lets other users write to it"
    ):
        unpack(tmp_path / "a.tar", cache)
    cache.chmod(0o755)
    assert stat.S_IMODE(unpack(tmp_path / "a.tar", cache).stat().st_mode) == 0o755, "what is ours is closed to others"


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


def test_archives_in_a_store_are_models_like_directories(store: Path, tmp_path: Path) -> None:
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


def test_an_archive_as_model_directory_names_the_right_option(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an archive is served with --load-models"):
        given(tmp_path, f"{store}/b.tar.gz")


def test_a_bad_archive_stops_the_start_and_names_its_option(store: Path, tmp_path: Path) -> None:
    (store / "c.zip").write_bytes(b"no archive")
    with pytest.raises(ConfigError) as caught:
        given(tmp_path, f"-s {store} --cache-dir {tmp_path}/cache")
    [problem] = caught.value.problems
    assert problem.startswith(f"{store}/c.zip: cannot be unpacked into ")
    assert problem.endswith("(command line: -s)")
