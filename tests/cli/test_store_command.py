"""`dragoman store`: lists, verifies and deletes prompts on disk."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.prefix_store import BlockStore
from dragoman.prefix_store.store import UNLIMITED
from tests.support.tables import table


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with blocks of two models, in segments of at most five, which a server has left."""
    path = tmp_path / "prefixes"
    store = BlockStore.open(path, 1_000_000, segment_bytes=6_000)
    until = time.time() + 3600
    for number in range(16):
        is_kept = number >= 12
        label = "large" if number < 8 else "small"
        store.write(
            number.to_bytes(16, "big"),
            bytes([number]) * 1000,
            keep_until=until if is_kept else None,
            label=label,
            namespace=label.encode(),
        )
    store.close()
    return path


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["store", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_list_names_each_model(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "--prefix-store-dir", directory)
    rows = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert {row[0]: row[3] for row in rows[1:3]} == {"large": "8", "small": "8"}
    assert out.rstrip().endswith(str(directory))
    _, out, _ = told(capsys, "list", "--json", f"--prefix-store-dir={directory}")
    by_model = {row["model"]: row for row in json.loads(out)}
    assert (by_model["large"]["blocks"], by_model["small"]["blocks"]) == (8, 8)
    assert by_model["large"]["until_s"] == 0 < time.time() < by_model["small"]["until_s"]


def test_the_environment_names_the_directory_as_for_a_server(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTION_PREFIX_STORE_DIR", str(directory))
    assert "large" in told(capsys)[1]


def test_trim_keeps_the_last_used_and_empty_keeps_nothing(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "trim", "--to-gb", 0.000006, "--prefix-store-dir", directory)
    assert (code, err) == (0, "")
    assert out.startswith("deleted ")
    left = BlockStore.open(directory, UNLIMITED).stats().bytes
    assert 0 < left <= 6_000
    code, out, err = told(capsys, "empty", "--prefix-store-dir", directory)
    assert (code, err) == (0, "")
    assert not list(directory.glob("*.blocks"))


def test_verify_names_damaged_blocks(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "verify", "--prefix-store-dir", directory)
    assert (code, err) == (0, "")
    assert "16 blocks" in out
    assert "none damaged" in out
    first = sorted(directory.glob("*.blocks"))[0]
    content = bytearray(first.read_bytes())
    content[1500] ^= 1
    first.write_bytes(content)
    code, out, err = told(capsys, "verify", "--prefix-store-dir", directory)
    assert (code, err) == (3, "")
    assert out.startswith(f"{first.name} byte ")
    assert "1 damaged" in out


def test_where_nothing_is_kept_that_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("list", "empty", "verify"):
        code, out, _ = told(capsys, action, "--prefix-store-dir", tmp_path / "none")
        assert (code, out) == (0, f"nothing is kept in {tmp_path / 'none'}\n")
    assert not (tmp_path / "none").exists()


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letters.txt").write_text("dear", encoding="utf-8")
    code, out, err = told(capsys, "empty", "--prefix-store-dir", tmp_path)
    assert (code, out) == (1, "")
    assert "letters.txt" in err
    assert (tmp_path / "letters.txt").exists()


@table(
    ("words", "problem"),
    [
        (["shrink"], "store: shrink: must be one of list, verify, trim, empty"),
        (["trim"], "--to-gb: is needed by trim, and by nothing else"),
        (["empty", "--to-gb", "3"], "--to-gb: is needed by trim, and by nothing else"),
        (["trim", "--to-gb", "-1"], "--to-gb=-1 (command line): must be a number >= 0"),
        (["empty", "--json"], "--json (command line): is for list"),
        (["--yes"], "--yes (command line): unknown option; must be one of --prefix-store-dir, --to-gb, --json"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, *words, "--prefix-store-dir", tmp_path)
    assert (code, out) == (2, "")
    assert f"dragoman: {problem}\n" in err
