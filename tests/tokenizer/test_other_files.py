"""Models without a tokenizer.json: the tokens are those that SentencePiece and tiktoken give, as recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config.resolve import demo_model_dir
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.tokenizer.ranked_bytes import PATTERNS
from dragoman.tokenizer.sentencepiece import read_model
from tests.support.tables import table
from tests.support.tiers import examples
from tests.tokenizer.odd_texts import TEXTS

RECORDED = Path(__file__).parent / "other_files"
ENCODINGS: dict[str, list[list[int]]] = json.loads((RECORDED / "encodings.json").read_text(encoding="ascii"))
SENTENCEPIECES = sorted(path.stem for path in RECORDED.glob("*.model"))
TIKTOKENS = sorted(path.stem for path in RECORDED.glob("*.tiktoken"))


def model_directory(path: Path, name: str, **config: Any) -> Path:
    """A model directory with the recorded tokenizer of that name."""
    path.mkdir(parents=True, exist_ok=True)
    if name in TIKTOKENS:
        shutil.copy(RECORDED / f"{name}.tiktoken", path / "tokenizer.model")
        config.setdefault("tokenizer_class", name)
    else:
        shutil.copy(RECORDED / f"{name}.model", path / "tokenizer.model")
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def load(path: Path, name: str, **config: Any) -> HfTokenizer:
    return load_tokenizer(model_directory(path, name, **config))


# Rules of a normaliser that are for a part of several joined characters are not applied (see `sentencepiece`).
JOINED = next(text for text in TEXTS if text.startswith("e\u0301\u0302"))
HAS_RULES = ("bpe_rules", "unigram")


@table("name", [*SENTENCEPIECES, *TIKTOKENS])
def test_the_tokens_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, name)
    for text, wanted in zip(TEXTS, ENCODINGS[name], strict=True):
        found = tokenizer.encode(text, add_special_tokens=False)
        if name.startswith("unigram") and found != wanted:
            assert is_a_tie(found, wanted) or text == JOINED, text
        elif not (name in HAS_RULES and text == JOINED):
            assert found == wanted, text


def is_a_tie(found: list[int], wanted: list[int]) -> bool:
    """The same pieces in another order: their scores add up to the same."""
    return sorted(found) == sorted(wanted)


@table("name", ["bpe", "bpe_symbols", "bpe_no_prefix", "unigram_symbols", *TIKTOKENS])
def test_tokens_become_the_text_again(name: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, name)
    for text in TEXTS:
        plain = text.replace("\u2581", "_") if name in SENTENCEPIECES else text  # which stands for the blank there
        assert tokenizer.decode(tokenizer.encode(plain, add_special_tokens=False)) == plain


@table("name", SENTENCEPIECES)
def test_control_pieces_are_special_and_prompts_begin_with_bos(name: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, name, eos_token="</s>")
    assert (tokenizer.token_to_id("<s>"), tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.is_special(1)
    assert tokenizer.is_special(2)
    assert tokenizer.encode("<s>", add_special_tokens=False) == [1]
    assert load(tmp_path / "no", name, add_bos_token=False).encode("a")[:1] != [1]


def test_control_symbols_of_a_chat_are_found_in_text(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "bpe_symbols")
    begin = tokenizer.token_to_id("[INST]")
    assert begin is not None
    assert tokenizer.encode("[INST]a", add_special_tokens=False)[0] == begin
    assert tokenizer.is_special(begin)


@table(("legacy", "count"), [(True, 2), (None, 2), (False, 1)])
def test_text_behind_a_special_token_begins_with_a_blank_as_the_class_has_it(
    legacy: bool | None, count: int, tmp_path: Path
) -> None:
    tokenizer = load(tmp_path, "bpe", legacy=legacy)
    pieces = tokenizer.encode("word</s>word", add_special_tokens=False)
    words = tokenizer.encode("word", add_special_tokens=False)
    assert (pieces[: len(words)] == words) is True
    assert (pieces[-len(words) :] == words) is (count == 2)


def test_added_tokens_get_their_ids(tmp_path: Path) -> None:
    size = len(read_model((RECORDED / "bpe.model").read_bytes()).pieces)
    directory = model_directory(
        tmp_path,
        "bpe",
        added_tokens_decoder={
            str(size + 1): {"content": "<|eot|>", "special": True},
            "1": {"content": "<s>", "special": True},
        },
    )
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<extra>": size}), encoding="utf-8")
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("<extra><|eot|>", add_special_tokens=False) == [size, size + 1]
    assert (tokenizer.is_special(size), tokenizer.is_special(size + 1)) == (False, True)
    assert tokenizer.vocab_size == size + 2


def test_an_added_token_that_would_get_another_id_is_named(tmp_path: Path) -> None:
    entry = {"9999": {"content": "<|eot|>", "special": True}}
    with pytest.raises(ValueError, match=r"tokenizer.model cannot be used: token '<\|eot\|>' has the id 9999"):
        load(tmp_path, "bpe", added_tokens_decoder=entry)


def test_other_files_rename_pieces(tmp_path: Path) -> None:
    """InternLM2 has the tokens of its chats in the places of pieces that were kept free."""
    pieces = read_model((RECORDED / "bpe.model").read_bytes()).pieces
    last = len(pieces) - 1
    entry = {str(last): {"content": "<|im_start|>", "special": True}}
    tokenizer = load(tmp_path, "bpe", added_tokens_decoder=entry, tokenizer_class="InternLM2Tokenizer")
    assert tokenizer.token_to_id("<|im_start|>") == last
    assert tokenizer.token_to_id(pieces[last].text) is None
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [last]
    assert tokenizer.is_special(last)
    assert tokenizer.vocab_size == len(pieces)


# --- a vocabulary and merges ---


def write_pairs(directory: Path, **config: Any) -> Path:
    """The recorded QWenTokenizer as vocab.json and merges.txt, every pair that makes a token among the merges."""
    source = json.loads(as_json(load(directory / "source", "QWenTokenizer")))["model"]
    vocabulary = {text: token_id for text, token_id in source["vocab"].items() if token_id < NUM_RANKS}
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in source["merges"]]
    (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]), encoding="utf-8")
    described = {"tokenizer_class": "Qwen2Tokenizer", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    return directory


def as_json(tokenizer: HfTokenizer) -> str:
    text: str = tokenizer._file.to_str()
    return text


NUM_RANKS = 400


@table("kind", ["Qwen2Tokenizer", "Qwen2TokenizerFast"])
def test_pairs_make_the_tokens_of_the_original(kind: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_pairs(tmp_path, tokenizer_class=kind))
    for text, wanted in zip(TEXTS, ENCODINGS["QWenTokenizer"], strict=True):
        if normalize("NFC", text) == text:
            assert tokenizer.encode(text) == wanted, text
            assert tokenizer.decode(wanted) == text
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_tokens_are_added_behind_the_vocabulary(tmp_path: Path) -> None:
    entry = {str(NUM_RANKS): {"content": "<|im_end|>", "special": True}}
    directory = write_pairs(tmp_path, added_tokens_decoder=entry, eos_token="<|im_end|>")
    (directory / "added_tokens.json").write_text(json.dumps({"<IMG_CONTEXT>": NUM_RANKS + 1}), encoding="utf-8")
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("<|im_end|><IMG_CONTEXT>") == [NUM_RANKS, NUM_RANKS + 1]
    assert tokenizer.eos_token_id == NUM_RANKS


@table("part", ["text_config", "llm_config"])
def test_what_ends_texts_is_found_in_the_part_of_config_that_is_about_them(part: str, tmp_path: Path) -> None:
    directory = write_pairs(tmp_path)
    (directory / "config.json").write_text(
        json.dumps({part: {"eos_token_id": [7, 9]}, "hidden_size": 8}), encoding="utf-8"
    )
    assert load_tokenizer(directory).eos_token_ids == {7, 9}


def test_gpt2_cuts_text_by_its_own_pattern(tmp_path: Path) -> None:
    qwen, gpt2 = (write_pairs(tmp_path / name, tokenizer_class=name) for name in ("Qwen2Tokenizer", "GPT2Tokenizer"))
    for text in ("What is it? It's 2026.", "  two\n\nlines ", "e\u0301"):
        found = load_tokenizer(gpt2).encode(text)
        assert load_tokenizer(gpt2).decode(found) == text
    assert load_tokenizer(gpt2).encode("e\u0301") != load_tokenizer(qwen).encode("e\u0301")
    blank = write_pairs(tmp_path / "blank", tokenizer_class="GPT2Tokenizer", add_prefix_space=True)
    assert load_tokenizer(blank).encode("a") == load_tokenizer(gpt2).encode(" a")


@table(
    ("name", "content", "told"),
    [
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "MyTokenizer"}',
            "no rule is known for tokenizer_class 'MyTokenizer'",
        ),
        ("tokenizer_config.json", "{}", "no rule is known for tokenizer_class ''"),
        ("merges.txt", None, "there is no merges.txt beside it"),
        ("merges.txt", "#version: 0.2\na b c\n", "merge 1 is not two tokens with a blank between them"),
        ("merges.txt", "a\n", "merge 1 is not two tokens"),
        ("vocab.json", "[]", "not an object of tokens and their ids"),
        ("vocab.json", '{"a": "b"}', "not an object of tokens and their ids"),
        ("vocab.json", '{"a": 0}', "vocab.json cannot be used"),
    ],
)
def test_unusable_pairs_are_reported(name: str, content: str | None, told: str, tmp_path: Path) -> None:
    directory = write_pairs(tmp_path)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        load_tokenizer(directory)


# --- ranked byte strings ---


def test_qwens_special_tokens_come_after_the_ranks(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, "QWenTokenizer")
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|><|extra_204|>") == [400, 401, 402, 607]
    assert tokenizer.vocab_size == 608
    assert tokenizer.is_special(401)


def test_a_tiktoken_file_with_any_name_is_found(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "QWenTokenizer.tiktoken", tmp_path / "mine.tiktoken")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "QWenTokenizer"}', encoding="utf-8")
    assert load_tokenizer(tmp_path).vocab_size == 608


def test_reserved_tokens_have_their_ids_as_names_where_no_file_names_them(tmp_path: Path) -> None:
    named = {"400": {"content": "[BOS]", "special": True}}
    tokenizer = load(tmp_path, "TikTokenTokenizer", added_tokens_decoder=named)
    assert tokenizer.encode("[BOS]<|reserved_token_655|>") == [400, 655]
    assert tokenizer.vocab_size == 656


def test_a_class_with_an_unknown_pattern_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no rule is known for tokenizer_class 'Other'; known: QWenTokenizer, TikTokenTokenizer"
    ):
        load(tmp_path, "QWenTokenizer", tokenizer_class="Other")


def tekken(path: Path, **config: Any) -> Path:
    lines = (RECORDED / "ChatGLM4Tokenizer.tiktoken").read_text(encoding="ascii").splitlines()
    content = {
        "config": {"pattern": PATTERNS["ChatGLM4Tokenizer"], "default_vocab_size": 410, "default_num_special_tokens": 10}
        | config,
        "vocab": [{"rank": number, "token_bytes": line.split()[0]} for number, line in enumerate(lines)],
        "special_tokens": [{"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}],
    }  # fmt: skip
    (path / "tekken.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def test_tekken_has_its_special_tokens_first(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tekken(tmp_path))
    for text, wanted in zip(TEXTS, ENCODINGS["ChatGLM4Tokenizer"], strict=True):
        assert tokenizer.encode(text, add_special_tokens=False) == [token_id + 10 for token_id in wanted]
    assert tokenizer.encode("<s></s><SPECIAL_9>", add_special_tokens=False) == [1, 2, 9]
    assert tokenizer.encode("a")[0] == 1


def test_tekken_without_its_facts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tekken.json cannot be used: it is not a valid tekken.json: TypeError"):
        load_tokenizer(tekken(tmp_path, default_num_special_tokens=None))


@table(
    ("lines", "told"),
    [
        (["YQ== 0", "YQ== 1"], "token twice"),
        (["YQ== 0", "Yg== 2"], "ranks are not 0, 1, 2"),
        (["YQ== 0", "?? 1"], "line 2 is not a token in base64"),
        (["YQ== 0", "Yg== 1"], "no token for the byte"),
    ],
)
def test_malformed_ranks_are_reported(lines: list[str], told: str, tmp_path: Path) -> None:
    directory = model_directory(tmp_path, "QWenTokenizer")
    (directory / "tokenizer.model").write_text("\n".join(lines), encoding="ascii")
    with pytest.raises(ValueError, match=f"tokenizer.model cannot be used: .*{told}"):
        load_tokenizer(directory)


# --- what is there, and what is broken ---


def test_the_error_without_a_tokenizer_names_its_files(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"tokenizer.json is missing: .* or in one of tokenizer.model, .*`dragoman pull"
    ):
        load_tokenizer(tmp_path)


def test_tokenizer_json_precedes_other_files(tmp_path: Path) -> None:
    directory = model_directory(tmp_path, "bpe")
    shutil.copy(demo_model_dir() / "tokenizer.json", directory)
    assert load_tokenizer(directory).vocab_size != len(read_model((RECORDED / "bpe.model").read_bytes()).pieces)


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: str, kind: int = 1) -> bytes:
    return field(1, field(1, text.encode()) + field(3, kind))


@table(
    ("data", "told"),
    [
        (piece("<unk>", 2) + piece("a") + piece("a"), "a piece twice"),
        (piece("a"), "one unknown piece"),
        (piece("<unk>", 2) + piece("a", 5), "unused pieces"),
        (piece("<unk>", 2) + field(2, field(3, 3)), "neither BPE nor Unigram"),
        (piece("<unk>", 2) + field(2, field(24, 1)), "treat_whitespace_as_suffix"),
        (piece("<unk>", 2) + piece("<0x00>", 6), "some bytes, but not for all"),
        (piece("<unk>", 9), "9 is not a valid PieceType"),
        (b"", "holds no pieces"),
        (varint(1 << 3 | 2) + varint(1 << 40), "ends beyond the file's end"),
        (b"\xff" * 12, "number does not end"),
    ],
)
def test_unusable_models_are_refused_with_the_reason(data: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ValueError, match=f"tokenizer.model cannot be used: .*{told}"):
        load_tokenizer(tmp_path)


SMALL = (
    piece("<unk>", 2)
    + piece("<s>", 3)
    + piece("a")
    + piece("b")
    + piece("ab")
    + field(2, field(3, 2))
    + field(3, field(4, 0))
)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(SMALL)))
def test_any_bytes_are_a_model_or_an_error(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(SMALL)
    for position, byte in changes:
        data[position] = byte
    for bytes_of_file in (bytes(data), bytes(data[:end])):
        try:
            model = read_model(bytes_of_file)
        except ValueError:
            continue
        assert sum(len(one.text.encode()) for one in model.pieces) + len(model.charsmap) <= len(bytes_of_file)
