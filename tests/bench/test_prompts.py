"""Prompts that are made up, and prompts of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.tools.bench.apis import Prompt
from dragoman.tools.bench.load import Lengths, OptionError
from dragoman.tools.bench.prompts import SyntheticPrompts, read_prompts
from tests.support.tables import table

FIXED = Lengths(40, 40)


def words(prompts: SyntheticPrompts, point: int, number: int) -> list[str]:
    return prompts.prompt(point, number).text.split()


def test_prompts_are_the_same_for_a_seed_and_differ_otherwise() -> None:
    assert words(SyntheticPrompts(FIXED, 1), 0, 5) == words(SyntheticPrompts(FIXED, 1), 0, 5)
    seen = [
        words(SyntheticPrompts(FIXED, seed), point, number) for seed in (1, 2) for point in (0, 1) for number in (0, 1)
    ]
    assert len({tuple(one[:8]) for one in seen}) == 8  # from the beginning on: no cache of prefixes helps


def test_a_shared_prefix_is_the_same_at_all_points() -> None:
    prompts = SyntheticPrompts(FIXED, 1, shared_tokens=30)
    first, second = words(prompts, 0, 0), words(prompts, 1, 7)
    assert len(first) == len(second) == 40
    assert first[:30] == second[:30]
    assert first[30:] != second[30:]


def test_the_number_of_words_follows_from_the_servers_tokens() -> None:
    prompts = SyntheticPrompts(Lengths(100, 100), 1, tokens_per_word=1.5, overhead=10)
    assert len(words(prompts, 0, 0)) == 60
    assert len(words(SyntheticPrompts(Lengths(5, 5), 1, overhead=10), 0, 0)) == 1  # a prompt is never empty


def test_lengths_are_drawn_from_the_whole_range() -> None:
    prompts = SyntheticPrompts(Lengths(3, 6), 1)
    assert {len(words(prompts, 0, number)) for number in range(100)} == {3, 4, 5, 6}


def test_a_file_of_lines_and_one_of_json(tmp_path: Path) -> None:
    text, mixed = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text("One prompt\n\n  Another {one}\n", encoding="utf-8")
    assert read_prompts(text).prompts == (Prompt("One prompt"), Prompt("Another {one}"))
    mixed.write_text(
        '"Text"\n{"prompt": "P", "max_tokens": 5}\n{"inputs": "I"}\n{"messages": [{"role": "user", "content": "Hi"}]}\n',
        encoding="utf-8",
    )
    conversation = ({"role": "user", "content": "Hi"},)
    assert read_prompts(mixed).prompts == (Prompt("Text"), Prompt("P", (), 5), Prompt("I"), Prompt("", conversation))


def test_a_files_prompts_come_in_their_order_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\nc\n", encoding="utf-8")
    prompts = read_prompts(path)
    assert [prompts.prompt(1, number).text for number in range(5)] == ["a", "b", "c", "a", "b"]


@table(
    ("content", "problem"),
    [
        (b"", "must hold at least one prompt"),
        (b"\xff\xfe", "must be text in UTF-8"),
        (b'"a"\nb\n', "line 2: must be JSON as the first line is"),
        (b'{"prompt": ""}\n', "line 1: must be a string"),
        (b'{"prompt": "a", "messages": [{}]}\n', "line 1: must be a string"),
        (b'{"prompt": "a", "max_tokens": 0}\n', "line 1: must be a string"),
        (b'"a"\n\n7\n', "line 3: must be a string"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=problem):
        read_prompts(path)
