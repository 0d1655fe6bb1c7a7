"""A tokenizer that goes through a GGUF's metadata encodes and decodes as it did before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from dragoman.config.generation import generation_defaults
from dragoman.config.resolve import demo_model_dir
from dragoman.errors import ModelError
from dragoman.gguf.texts import gguf_text
from dragoman.tokenizer.base import FimTokens
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.tokenizer.model_files import read_text_files
from tests.support.family_checkpoint import read_case
from tests.support.gguf_tokenizer import NORMAL, tokenizer_metadata
from tests.support.gguf_writer import write_gguf

CORPUS = [
    "",
    " ",
    "Hello, world! It's DON'T we'll I'VE they're",
    "  two blanks, \t tabs\n\nlines\r\nand \u00a0no-break\u2003space   ",
    "12345 1.5e-3 007 ½ ² Ⅻ ٣٤٥ 2024-01-02 1,000,000",
    "naïve café cafe\u0301 Ångström ﬁ ß İstanbul",
    "Привет, мир! γειά σου 你好，世界。 こんにちは 안녕하세요 สวัสดี नमस्ते שלום",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 \u200b\ufeff\u0000 \U0001f9ff",
    "def f(x):\n    return {'a': [x**2, -x], \"b\": x != 0}  # comment\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <s>a</s><unk> <tool_call>",
    "a_b-c/d\\e@f#g$h%i^j&k*l(m)n=o+p[q]r{s}t|u;v:w'x\"y,z.<A>?B~C`D!",
    "▁already ▁▁marked <0x41> [PAD3]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 3,
]

GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
WHOLE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
]

BYTE_LEVEL: dict[str, tuple[Any, Any]] = {
    "bloom": (None, [_split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), WHOLE]),
    "command-r": (normalizers.NFC(), [DIGITS, GPT2]),
    "deepseek-v3": (None, [*map(_split, DEEPSEEK3), WHOLE]),
    "falcon": (
        None,
        [
            pre_tokenizers.Punctuation("contiguous"),
            GPT2,
            pre_tokenizers.Digits(individual_digits=False),
            _split("[0-9][0-9][0-9]"),
        ],
    ),
    "gpt-2": (None, [GPT2]),
    "gpt-4o": (None, [_split(GPT4O), WHOLE]),
    "llama-bpe": (None, [_split(LLAMA3), WHOLE]),
    "qwen2": (normalizers.NFC(), [_split(LLAMA3.replace("{1,3}", "")), WHOLE]),
    "starcoder": (None, [DIGITS, GPT2]),
    "tekken": (None, [_split(TEKKEN), WHOLE]),
}
"""What the published tokenizer.json files of these kinds have: a normalizer, and how texts are cut."""


def byte_level(kind: str) -> Tokenizer:
    normalizer, cuts = BYTE_LEVEL[kind]
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind in ("llama-bpe", "tekken")))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"])
    tokenizer.add_tokens(["<tool_call>"])
    return tokenizer


def scored_pairs(*, prefix: bool) -> Tokenizer:
    """As conversions of SentencePiece's BPE models have it."""
    blank = normalizers.Replace(" ", "▁")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blank] if prefix else [blank])
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator((word for text in CORPUS[2:5] * 3 for word in text.split()), trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["id"] < 3]
    return Tokenizer.from_str(json.dumps(spec))


def unigrams() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def through_gguf(tokenizer: Tokenizer, kind: str, pre: str, tmp_path: Path, **more: Any) -> HfTokenizer:
    added = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
    ids = {name: added[token] for name, token in (("bos", "<s>"), ("eos", "</s>")) if token in added}
    keys = tokenizer_metadata(tokenizer, kind, pre, **ids) | {f"ggml.{key}": value for key, value in more.items()}
    return load_tokenizer(write_gguf("llama_default", read_case("llama_default"), tmp_path, tokenizer=keys))


def check_alike(found: HfTokenizer, expected: Tokenizer) -> None:
    for text in CORPUS:
        ids = expected.encode(text, add_special_tokens=False).ids
        assert found.encode(text, add_special_tokens=False) == ids, text
        assert found.decode(ids, skip_special_tokens=False) == _whole(expected, ids)


def _whole(tokenizer: Tokenizer, ids: list[int]) -> str:
    """What our own decoder makes of the original, which never cuts characters."""
    from dragoman.tokenizer.model_files import TextFiles

    return HfTokenizer(tokenizer, TextFiles({}, (), (), None, {}, None)).decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_byte_level_bpe(pre: str, tmp_path: Path) -> None:
    tokenizer = byte_level(pre)
    check_alike(through_gguf(tokenizer, "gpt2", pre, tmp_path, add_bos_token=False), tokenizer)


CUTS = {
    "exaone": "I|'|LL| pay| |2|0|2|4| dollars|!|\n\n | (|ok|)|你好ok",
    "exaone4": "I|'|LL| pay| 2024| dollars|!|\n\n | (|ok|)|你好ok",
    "hunyuan": "I|'LL| pay| |2|0|2|4| dollars|!\n\n| | (|ok|)你好ok",
    "hunyuan-dense": "I|'LL| pay| |202|4| dollars|!\n\n| | (|ok|)|你好|ok",
    "kimi-k2": "I'LL| pay| |202|4| dollars|!\n\n| | (|ok|)|你好|ok",
    "lfm2": "I|'LL| pay| |202|4| dollars|!\n\n| | (|ok|)你好ok",
    "mpt": "I|'|LL| pay| 2024| dollars|!|\n\n | (|ok|)|你好ok",
    "stablelm2": "I|'LL| pay| |2|0|2|4| dollars|!\n\n| | (|ok|)你好ok",
}
"""Where the rules that llama.cpp has for these kinds cut a text on which they differ (llama-vocab.cpp)."""


@pytest.mark.parametrize("pre", CUTS)
def test_kinds_cut_as_their_rules_say(pre: str, tmp_path: Path) -> None:
    keys = tokenizer_metadata(byte_level("gpt-2"), "gpt2", pre)
    spec = gguf_text(
        write_gguf("llama_default", read_case("llama_default"), tmp_path, tokenizer=keys), "tokenizer.json"
    )
    assert spec is not None
    text = CUTS[pre].replace("|", "")
    pieces = Tokenizer.from_str(spec).pre_tokenizer.pre_tokenize_str(text)
    assert "|".join(text[begin:end] for _, (begin, end) in pieces) == CUTS[pre]


def test_mistrals_kind_adds_its_bos_token_where_nothing_is_said(tmp_path: Path) -> None:
    tokenizer = byte_level("tekken")
    found = through_gguf(tokenizer, "gpt2", "tekken", tmp_path)
    assert found.encode("a")[0] == tokenizer.token_to_id("<s>")


@pytest.mark.parametrize("prefix", [True, False])
def test_pairs_with_scores_and_bytes(prefix: bool, tmp_path: Path) -> None:
    tokenizer = scored_pairs(prefix=prefix)
    check_alike(through_gguf(tokenizer, "llama", "default", tmp_path, add_space_prefix=prefix), tokenizer)


def test_pairs_that_are_told_and_bytes(tmp_path: Path) -> None:
    tokenizer = scored_pairs(prefix=False)
    check_alike(through_gguf(tokenizer, "gemma4", "default", tmp_path, add_space_prefix=False), tokenizer)


def test_unigrams(tmp_path: Path) -> None:
    tokenizer = unigrams()
    check_alike(through_gguf(tokenizer, "t5", "default", tmp_path), tokenizer)


def test_the_demo_models_tokenizer_and_template(tmp_path: Path) -> None:
    source = load_tokenizer(demo_model_dir())
    facts = read_text_files(demo_model_dir())
    keys = tokenizer_metadata(
        Tokenizer.from_file(str(demo_model_dir() / "tokenizer.json")), "gpt2", "seed-coder", eos=2, eot=0
    )
    keys["chat_template"] = facts.chat_templates["default"]
    path = write_gguf("llama_default", read_case("llama_default"), tmp_path, tokenizer=keys)
    found = load_tokenizer(path)
    for text in CORPUS:
        assert found.encode(text) == source.encode(text)
        assert found.decode(found.encode(text)) == source.decode(source.encode(text))
    assert found.eos_token_ids == source.eos_token_ids == {0, 2}
    assert found.fim_tokens == source.fim_tokens
    assert read_text_files(path).chat_templates == {"default": facts.chat_templates["default"]}
    assert generation_defaults(path) == {}


ENDS = {
    "": ["<|im_end|>", "<|endoftext|>"],
    "<|eot_id|> <end_of_turn> <file> <|file_sep|>": [
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<end_of_turn>",
        "<|file_sep|>",
    ],
    "<|end|>": ["<|im_end|>", "<|endoftext|>", "<|end|>"],
    "<|end|> <|call|> <|return|>": ["<|im_end|>", "<|endoftext|>", "<|call|>", "<|return|>"],
    "</s>": ["<|im_end|>", "<|endoftext|>", "</s>"],
}
"""Further special tokens of a file that names <|im_end|> as its end: all that end a text."""


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


@pytest.mark.parametrize("more", ENDS)
def test_all_tokens_that_are_ends_by_name_end_a_text(more: str, tmp_path: Path) -> None:
    tokenizer = byte_level("qwen2")
    tokenizer.add_special_tokens(more.split())
    tokenizer.add_tokens([tag for tag in ("</s>", "<table>") if tag not in more])  # tags of HTML
    keys = tokenizer_metadata(tokenizer, "gpt2", "qwen2", eos=_id_of(tokenizer, "<|im_end|>"))
    keys["ggml.tokens"].append("<eos>")  # a word of the language, no special token
    keys["ggml.token_type"].append(NORMAL)
    found = load_tokenizer(write_gguf("llama_default", read_case("llama_default"), tmp_path, tokenizer=keys))
    assert found.eos_token_id == _id_of(tokenizer, "<|im_end|>")
    assert found.eos_token_ids == {_id_of(tokenizer, token) for token in ENDS[more]}


@pytest.mark.parametrize(("adds", "expected"), [(True, [1]), (False, []), (None, [1])])
def test_the_bos_token_is_added_as_the_metadata_says(adds: bool | None, expected: list[int], tmp_path: Path) -> None:
    tokenizer = scored_pairs(prefix=True)
    more = {} if adds is None else {"add_bos_token": adds}
    found = through_gguf(tokenizer, "llama", "default", tmp_path, **more)
    assert found.encode("a b") == expected + tokenizer.encode("a b", add_special_tokens=False).ids


def test_an_eos_token_is_added_where_the_metadata_says_so(tmp_path: Path) -> None:
    found = through_gguf(scored_pairs(prefix=True), "llama", "default", tmp_path, add_eos_token=True)
    assert found.encode("a")[-1] == 2


def test_named_templates_are_read(tmp_path: Path) -> None:
    keys = tokenizer_metadata(byte_level("gpt-2"), "gpt2", "gpt-2")
    keys |= {"chat_template": "one", "chat_template.tool_use": "two", "chat_templates": ["tool_use"]}
    path = write_gguf("llama_default", read_case("llama_default"), tmp_path, tokenizer=keys)
    assert read_text_files(path).chat_templates == {"default": "one", "tool_use": "two"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ggml.pre": "default"}, "tokenizer.ggml.pre is 'default', allowed: bloom"),
        ({"ggml.pre": "of-tomorrow"}, "tokenizer.ggml.pre is 'of-tomorrow'"),
        ({"ggml.model": "bert"}, "tokenizer.ggml.model is 'bert', allowed: gpt2, llama, gemma4 or t5"),
        ({"ggml.tokens": ["a"]}, r"tokenizer.ggml.token_type has \d+ values, allowed: 1, as tokens"),
        ({"ggml.merges": ["a b c"]}, "holds 'a b c', allowed: two tokens and a blank"),
        ({"ggml.merges": ["a nothere"]}, "cannot be used"),
        ({"ggml.eos_token_id": 5_000_000}, "eos_token_id is 5000000, allowed: an id below"),
        ({"ggml.eos_token_id": "x"}, "eos_token_id is 'x', allowed: the id of a token"),
        ({"ggml.add_bos_token": 1}, "add_bos_token is 1, allowed: true or false"),
        ({"chat_template": 5}, "chat_template is 5, allowed: a text"),
    ],
)
def test_metadata_that_is_none_is_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    keys = tokenizer_metadata(byte_level("gpt-2"), "gpt2", "gpt-2") | changes
    path = write_gguf("llama_default", read_case("llama_default"), tmp_path, tokenizer=keys)
    with pytest.raises(ValueError, match=words) as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_a_gguf_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    path = write_gguf("llama_default", read_case("llama_default"), tmp_path)
    with pytest.raises(ModelError, match=r"tokens has 0 tokens, allowed"):
        load_tokenizer(path)


def test_the_file_says_which_tokens_mark_a_gap(tmp_path: Path) -> None:
    """Its keys count before names that models are known by; those of older files count as well."""
    keys = tokenizer_metadata(
        Tokenizer.from_file(str(demo_model_dir() / "tokenizer.json")), "gpt2", "seed-coder", eos=2, eot=0
    )
    ids = {"fim_pre": 10, "suffix": 11, "fim_suf": 12, "middle": 13, "fim_rep": 14, "fim_sep": 15}
    keys |= {f"ggml.{name}_token_id": token_id for name, token_id in ids.items()}
    path = write_gguf("llama_default", read_case("llama_default"), tmp_path, tokenizer=keys)
    assert load_tokenizer(path).fim_tokens == FimTokens(10, 12, 13, repository=14, file=15)
