"""Tokenizers that grow texts without bounds, panic or take hours are refused at the start, or fail a request alone."""

from __future__ import annotations

import base64
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidRequest
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tokenizer.merges import all_merges
from dragoman.tokenizer.trial import MAX_CPU_S
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.small_server import Parts, run, small_server

RECORDED = Path(__file__).parent / "other_files"
MODEL: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
TEXT, NAME = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "X", "type_id": 0}}


def around(*pieces: Any, **special: Any) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [], "special_tokens": special}


def replacing(pattern: dict[str, str], content: str = "") -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def splitting(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def charsmap(data: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def sequence(name: str, *parts: Any) -> dict[str, Any]:
    return {"type": "Sequence", name: list(parts)}


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a normaliser that doubles, again and again": (
        {"normalizer": sequence("normalizers", *[GROWS] * 26)},
        "make a text 6.71089e+07 times as long, allowed: at most 64",
    ),
    "one inside the other": (
        {"normalizer": sequence("normalizers", *[sequence("normalizers", GROWS, GROWS)] * 13)},
        "make a text 6.71089e+07 times as long",
    ),
    "something for nothing": ({"normalizer": replacing({"String": ""}, "a" * 99)}, "100 times as long"),
    "much for a pattern": ({"normalizer": replacing({"Regex": "[q]"}, "a" * 99)}, "100 times as long"),
    "much before": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, "15626 times as long"),
    "bytes of bytes of bytes": (
        {"pre_tokenizer": sequence("pretokenizers", *[BYTES] * 26)},
        "6.71089e+07 times as long",
    ),
    "a text again and again": ({"post_processor": around(*[TEXT] * 1000)}, "1000 times as long"),
    "endless steps": ({"normalizer": sequence("normalizers", *[{"type": "NFC"}] * 65)}, "applies 65 steps"),
    "a table that ends early": ({"normalizer": charsmap(b"\xff\xff\xff\x7fabc")}, "but declares 2147483647"),
    "a table that leads nowhere": ({"normalizer": charsmap(b"\0\1\0\0" + b"\xff" * 256 + b"a")}, "it fails: index out"),
    "a table of long texts": ({"normalizer": charsmap(b"\4\0\0\0\0\0\0\0" + b"a" * 999)}, "999 times as long"),
    "a pattern that tries everything": ({"pre_tokenizer": splitting("(a+)+$")}, "it fails: Onig: Regex search error"),
    "a pattern of squares": ({"pre_tokenizer": splitting("a+(?=[^a]b)")}, f"more than {MAX_CPU_S:g} s or 512 MiB"),
    "a pattern that is none": ({"normalizer": replacing({"Regex": "((("})}, "unmatched parenthesis"),
    "pieces of no length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "it fails: chunk size"),
    "a step of tomorrow": ({"normalizer": {"type": "NFX"}}, "it fails: "),
    "a name that nobody knows": ({"post_processor": around(NAME, TEXT)}, "no entry found for key"),
    "a text that nobody gives": (
        {"post_processor": around({"Sequence": {"id": "B", "type_id": 0}})},
        "index out of bounds",
    ),
    "merges shorter than their prefix": (
        {"model": {**MODEL, "continuing_subword_prefix": "####"}},
        "out of range for slice",
    ),
    "unigrams of any length": (
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a" * (5 << 20), -1.0]]}},
        "have 5242880 characters, allowed for Unigram",
    ),
    "a decoder's pattern": ({"decoder": replacing({"Regex": "(a+)+$"})}, "with a regular expression is not supported"),
    "steps that are none": ({"normalizer": [1]}, "it is not a valid tokenizer: TypeError"),
    "a number for a step": ({"pre_tokenizer": 5}, "it is not a valid tokenizer: TypeError"),
}


def written(directory: Path, changes: dict[str, Any]) -> Path:
    (directory / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": MODEL, **changes})
    )
    return directory


def test_an_unsafe_tokenizer_is_refused_in_one_line_with_its_file(tmp_path: Path) -> None:
    for what, (changes, words) in HOSTILE.items():
        with pytest.raises(ValueError, match="cannot be used") as caught:
            load_tokenizer(written(tmp_path, changes))
        message = str(caught.value)
        assert str(tmp_path / "tokenizer.json") in message, what
        assert words in message, (what, message)
        assert "\n" not in message, what


def test_repeated_keys_do_not_avoid_the_checks(tmp_path: Path) -> None:
    """The library would take the first one here, where the second is null."""
    text = json.dumps({"version": "1.0", "normalizer": sequence("normalizers", *[GROWS] * 26), "added_tokens": []})
    text = f'{text[:-1]}, "normalizer": null, "model": {json.dumps(MODEL)}}}'
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    assert load_tokenizer(tmp_path).encode("ab" * 100) == [2] * 100


def test_padding_of_a_file_is_not_tried(tmp_path: Path) -> None:
    padding = {"strategy": {"Fixed": 4 * 10**9}, "direction": "Right", "pad_to_multiple_of": None}
    changes = {"padding": padding | {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}}
    assert load_tokenizer(written(tmp_path, changes)).encode("ab") == [2]


def test_usual_parts_need_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.tokenizer.trial.sys.executable", "/does/not/exist")
    prepended = {"type": "Prepend", "prepend": "▁"}
    steps = sequence("normalizers", prepended, replacing({"String": " "}, "▁"))
    load_tokenizer(written(tmp_path, {"normalizer": steps, "pre_tokenizer": BYTES}))
    with pytest.raises(ValueError, match="could not be tried in a process of its own"):
        load_tokenizer(written(tmp_path, {"pre_tokenizer": splitting("x")}))


def panicking(directory: Path) -> Any:
    """A tokenizer that panics for texts of many x; the trial has none."""
    return load_tokenizer(written(directory, {"pre_tokenizer": splitting("(x+x+)+y")}))


def test_a_panic_is_an_error_of_the_request(tmp_path: Path) -> None:
    tokenizer = panicking(tmp_path)
    for text in ("x" * 40, "x" * 4000):
        for encode in (tokenizer.encode, tokenizer.encode_continuation, lambda text: tokenizer.encode_all([text])):
            with pytest.raises(
                InvalidRequest, match="prompt cannot be tokenised by the model's tokenizer: Onig"
            ) as caught:
                encode(text)
            assert caught.value.param == "prompt"
    assert tokenizer.encode("ab") == [2]


class Panicking(ByteTokenizer):
    """Panics for some texts, as libraries do of which nobody has thought."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._file = panicking(directory)._file

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self._file.encode(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_a_panic_fails_only_its_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with small_server(Parts(tokenizer=Panicking(tmp_path))) as server:
            for path in ("/v1/completions", "/v3/completions"):
                for stream in (False, True):
                    body = {"model": "fake", "prompt": "x" * 40, "max_tokens": 2, "stream": stream}
                    call = await server.call(path, body).ended()
                    assert call.status >= 400
                    assert "Internal server error" in call.body.decode()
                    call = await server.call(path, {**body, "prompt": "y"}).ended()
                    assert call.status == 200

    run(test)


def test_tokens_that_are_made_of_each_other_take_bounded_time() -> None:
    begin_s = time.process_time()
    with pytest.raises(ValueError, match="has 300000 characters, allowed: at most 1024"):
        all_merges(["a" * 300_000], frozenset(["a"]))
    tokens = ["a" * length for length in range(1, 1025)]
    with pytest.raises(ValueError, match="can be merged in too many ways"):
        all_merges(tokens, frozenset(tokens))
    assert time.process_time() - begin_s < 5


def test_blanks_take_time_in_proportion_to_their_number(tmp_path: Path) -> None:
    """Of a client, where SentencePiece's rules remove those that are too many."""
    shutil.copy(RECORDED / "unigram.model", tmp_path / "tokenizer.model")
    tokenizer = load_tokenizer(tmp_path)
    begin_s = time.process_time()
    assert tokenizer.encode("a" + " " * 400_000 + "b") == tokenizer.encode("  a b ")
    assert time.process_time() - begin_s < 10
