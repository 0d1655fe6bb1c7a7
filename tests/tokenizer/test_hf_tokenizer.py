"""Tokenizers from model directories: special tokens, ends, fill-in-the-middle, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import decoders

from dragoman.config.resolve import demo_model_dir
from dragoman.tokenizer.base import FimTokens
from dragoman.tokenizer.chat_template import load_chat_template
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import ChatPrompt
from tests.support.tables import table
from tests.tokenizer import vocabularies
from tests.tokenizer.vocabularies import byte_fallback, byte_level, metaspace, with_bos, write_model_dir


def test_the_demo_models_tokenizer_speaks_chat_and_fills_in_the_middle() -> None:
    tokenizer = load_tokenizer(demo_model_dir())
    template = load_chat_template(tokenizer)
    assert template is not None
    text = template.render(ChatPrompt(({"role": "user", "content": "Was kostet ein Brötchen? 🍊"},)))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert "<|im_start|>" not in tokenizer.decode(ids)
    assert {tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")} == tokenizer.eos_token_ids
    prefix, suffix, middle = (tokenizer.encode(f"<|fim_{part}|>")[0] for part in ("prefix", "suffix", "middle"))
    assert tokenizer.fim_tokens == FimTokens(prefix, suffix, middle)
    call = tokenizer.token_to_id("<tool_call>")
    assert call is not None
    assert not tokenizer.is_special(call)  # clients see tool calls
    assert tokenizer.is_control_to_llguidance(call)


@table(
    ("files", "expected"),
    [
        ({}, set()),
        ({"tokenizer_config": {"eos_token": "</s>"}}, {"</s>"}),
        ({"tokenizer_config": {"eos_token": {"content": "</s>"}}}, {"</s>"}),
        ({"special_tokens_map": {"eos_token": "</s>"}}, {"</s>"}),
        ({"generation_config": {"eos_token_id": [0, 1]}}, {"<s>", "</s>"}),
        ({"generation_config": {"eos_token_id": 0}, "tokenizer_config": {"eos_token": "</s>"}}, {"<s>", "</s>"}),
        ({"config": {"eos_token_id": 1}}, {"</s>"}),
        ({"config": {"text_config": {"eos_token_id": 1}}}, {"</s>"}),
        ({"config": {"eos_token_id": None, "text_config": {"eos_token_id": 1}}}, {"</s>"}),
        ({"config": {"eos_token_id": [0, 1]}, "generation_config": {"temperature": 1}}, {"<s>", "</s>"}),
        ({"config": {"eos_token_id": 0}, "generation_config": {"eos_token_id": 1}}, {"</s>"}),
    ],
)
def test_end_of_sequence_tokens_come_from_every_file_that_names_them(
    tmp_path: Path, files: dict[str, Any], expected: set[str]
) -> None:
    tokenizer = load_tokenizer(write_model_dir(tmp_path, byte_level(), **files))
    assert tokenizer.eos_token_ids == {tokenizer.token_to_id(text) for text in expected}
    assert tokenizer.eos_token_id in (tokenizer.eos_token_ids or {None})


@table(
    ("posts_bos", "config", "text", "num_bos"),
    [
        (False, {}, "is", 0),
        (True, {}, "is", 1),
        (True, {}, "<s>is", 1),
        (False, {"add_bos_token": True}, "is", 1),
        (False, {"add_bos_token": True}, "<s>is", 1),
        (True, {"add_bos_token": False}, "is", 1),  # only some classes obey it
        (True, {"add_bos_token": False, "tokenizer_class": "LlamaTokenizerFast"}, "is", 0),
        (True, {"add_bos_token": False, "tokenizer_class": "LlamaTokenizerFast"}, "<s>is", 1),
    ],
)
def test_the_bos_token_is_added_once_or_not_at_all(
    tmp_path: Path, posts_bos: bool, config: dict[str, Any], text: str, num_bos: int
) -> None:
    file = with_bos(byte_level()) if posts_bos else byte_level()
    tokenizer = load_tokenizer(write_model_dir(tmp_path, file, tokenizer_config={"bos_token": "<s>", **config}))
    bos = tokenizer.bos_token_id
    assert bos is not None
    assert tokenizer.encode(text).count(bos) == num_bos
    assert tokenizer.encode(text)[num_bos:] == tokenizer.encode("is", add_special_tokens=False)


def test_tokens_that_only_the_other_files_call_special_are_special_and_never_split(tmp_path: Path) -> None:
    """The library would cut such a token into pieces and show it to users."""
    file = byte_level()
    spec = json.loads(file.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] != "</s>"]
    bare = write_model_dir(tmp_path / "bare", TokenizerFile.from_str(json.dumps(spec)))
    assert len(load_tokenizer(bare).encode("is</s>")) > 2
    named = write_model_dir(
        tmp_path / "named", TokenizerFile.from_str(json.dumps(spec)), tokenizer_config={"eos_token": "</s>"}
    )
    tokenizer = load_tokenizer(named)
    assert tokenizer.encode("is</s>")[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer.encode("is</s>")) == "is"


@table(("style", "leads"), [(byte_level, False), (byte_fallback, True), (metaspace, True)])
def test_a_continuation_has_no_implied_space(tmp_path: Path, style: Any, leads: bool) -> None:
    tokenizer = load_tokenizer(write_model_dir(tmp_path, style()))
    inside = b"".join(map(tokenizer.token_bytes, tokenizer.encode_continuation("ing")))
    ahead = b"".join(map(tokenizer.token_bytes, tokenizer.encode("ing", add_special_tokens=False)))
    assert inside == b"ing"
    assert ahead == (b" ing" if leads else b"ing")


@table(
    ("names", "expected"),
    [
        (("<PRE>", "<SUF>", "<MID>"), [1, 10, 2, 20, 3]),
        (("▁<PRE>", "▁<SUF>", "▁<MID>"), [1, 10, 2, 20, 3]),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), [1, 10, 2, 20, 3]),
        (("[PREFIX]", "[SUFFIX]", "[MIDDLE]"), [2, 20, 1, 10]),
        (("<fim_prefix>", "<fim_suffix>"), None),
    ],
)
def test_fill_in_the_middle_tokens_are_known_by_their_names(
    tmp_path: Path, names: tuple[str, ...], expected: list[int] | None
) -> None:
    file = vocabularies.words()
    file.add_special_tokens(list(names))
    tokenizer = load_tokenizer(write_model_dir(tmp_path, file))
    if expected is None:
        assert tokenizer.fim_tokens is None
        return
    stands_for = dict(zip((1, 2, 3), map(file.token_to_id, names), strict=True)) | {10: 10, 20: 20}
    assert tokenizer.fim_tokens is not None
    assert tokenizer.fim_tokens.arrange([10], [20]) == [stands_for[number] for number in expected]


@table(
    ("repository", "file"),
    [
        ("<|repo_name|>", "<|file_sep|>"),
        ("<reponame>", "<filename>"),
        ("<repo_name>", "<file_sep>"),
        ("", "<|file_separator|>"),
    ],
)
def test_marks_of_projects_and_files_are_known_by_their_names(tmp_path: Path, repository: str, file: str) -> None:
    words = vocabularies.words()
    words.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", *filter(None, (repository, file))])
    found = load_tokenizer(write_model_dir(tmp_path, words)).fim_tokens
    assert found is not None
    assert (found.repository, found.file) == (words.token_to_id(repository), words.token_to_id(file))


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    file = byte_level()
    file.enable_truncation(2)
    file.enable_padding(length=50)
    tokenizer = load_tokenizer(write_model_dir(tmp_path, file))
    assert tokenizer.decode(tokenizer.encode("Deep learning is fun.")) == "Deep learning is fun."


def test_text_that_is_not_unicode_is_encoded_with_a_mark_in_its_place(tmp_path: Path) -> None:
    """JSON can carry half of a surrogate pair; the library raises for it."""
    tokenizer = load_tokenizer(write_model_dir(tmp_path, byte_level()))
    assert tokenizer.decode(tokenizer.encode("a\ud83cb")) == "a?b"


@table(
    ("problem", "says"),
    [("missing", "tokenizer.json is missing"), ("broken", "cannot be used"), ("ctc", "decoder CTC")],
)
def test_a_tokenizer_that_cannot_be_used_is_refused_with_its_path(tmp_path: Path, problem: str, says: str) -> None:
    file = vocabularies.words()
    file.decoder = decoders.CTC()
    if problem != "missing":
        write_model_dir(tmp_path, file)
    if problem == "broken":
        (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=says) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


@table("content", ["{", "[]"])
def test_a_broken_file_beside_the_tokenizer_is_refused_by_name(tmp_path: Path, content: str) -> None:
    write_model_dir(tmp_path, byte_level())
    (tmp_path / "generation_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        load_tokenizer(tmp_path)


@table("add_special_tokens", [True, False])
def test_long_texts_have_the_same_tokens_as_the_library_gives(add_special_tokens: bool) -> None:
    directory = demo_model_dir()
    tokenizer = load_tokenizer(directory)
    text = "What is deep learning? Größe 🍊\n" * 500
    ids = (
        TokenizerFile.from_file(str(directory / "tokenizer.json"))
        .encode(text, add_special_tokens=add_special_tokens)
        .ids
    )
    assert tokenizer.encode(text, add_special_tokens=add_special_tokens) == ids
    assert tokenizer.decode(ids) == text


@table("text", [" " * 3_000, "the " * 1_000, "Größe 🍊" * 500, "<|im_start|>" * 500])
def test_no_token_stands_for_more_characters_than_the_tokenizer_says(text: str) -> None:
    tokenizer = load_tokenizer(demo_model_dir())
    assert len(tokenizer.encode(text)) * tokenizer.max_token_chars >= len(text)


def test_that_is_the_longest_token_whatever_the_decoder_makes_of_it(tmp_path: Path) -> None:
    byte_level = load_tokenizer(demo_model_dir())
    tokens = {"a": 0, "▁longer": 1, "<0xF0>": 2, "é" * 9: 3}
    parts = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    model = {"type": "BPE", "vocab": tokens, "merges": [], "byte_fallback": True}
    spec = {"version": "1.0", "added_tokens": [], "model": model, "decoder": {"type": "Sequence", "decoders": parts}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    for tokenizer in (byte_level, load_tokenizer(tmp_path)):
        longest = max(len(tokenizer.token_bytes(index)) for index in range(tokenizer.vocab_size))
        assert tokenizer.max_token_chars == 2 * longest
