"""The tokenizer of a Hugging Face model directory, from its tokenizer.json or another file (`other_files`).

Made at load time by `load_tokenizer`; afterwards immutable and used from any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken
from tokenizers import Tokenizer as TokenizerFile
from tokenizers.models import BPE

from dragoman.errors import CATCH_PANICS, InvalidRequest, ModelError, Panicked, failure_of
from dragoman.files.model_texts import model_text
from dragoman.tokenizer.base import FimTokens, TokenPieces
from dragoman.tokenizer.detokenizer import decode_tokens
from dragoman.tokenizer.frames import Frame, pair_frame, single_frame
from dragoman.tokenizer.model_files import TextFiles, read_text_files, tokenizer_config
from dragoman.tokenizer.other_files import read_tokenizer, tokenizer_file
from dragoman.tokenizer.soundness import checked_file
from dragoman.tokenizer.token_bytes import TokenDecoder

T = TypeVar("T")

# Prefix, suffix, middle of the model families; the first complete family counts.
_FIM_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, the demo model
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder: the suffix comes after the hole
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
)
# The marks before the name of a project and before each of its files.
_REPOSITORY_NAMES = ("<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<fim-repo>", "<REPO>", "<reponame>")
_FILE_NAMES = ("<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>")
_PROBE = "One 1, é.\n"
_MOST_WORDS = 500  # characters of the library's errors
_LONG_CHARS = 2_000  # from this length on, releasing the interpreter's lock pays
_SUFFIX_FIRST_NAMES = ("[PREFIX]", "[SUFFIX]")  # of Codestral, without a token for the middle


def load_tokenizer(model_dir: Path) -> HfTokenizer:
    """The tokenizer of the model. Raises: ValueError with the file that is missing, broken or of an unsupported kind."""
    path = model_dir / "tokenizer.json"
    text = model_text(model_dir, path.name)
    if text is None:
        path = tokenizer_file(model_dir)
    try:
        with CATCH_PANICS:
            if text is not None:
                file = TokenizerFile.from_str(checked_file(text))
            else:
                file = read_tokenizer(path, tokenizer_config(model_dir))
            tokenizer = HfTokenizer(file, read_text_files(model_dir))
            with suppress(Exception):  # this text may be outside its vocabulary
                file.encode(_PROBE)
            return tokenizer
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception for a file it cannot read
        if isinstance(error, ValueError) and str(error).startswith(str(model_dir)):
            raise  # it names another file already
        why = " ".join(str(error).split())[:_MOST_WORDS]
        raise ValueError(f"{path} cannot be used: {why}; fetch it again from the model's source") from error


def _encoded(encode: Callable[[], T]) -> T:
    """The result of `encode`, which the library computes. Raises: InvalidRequest for a text that it cannot encode."""
    try:
        return encode()
    except BaseException as error:
        failure = failure_of(error)
        if type(failure) not in (Exception, Panicked):  # the library raises bare ones
            raise
        words = " ".join(str(failure).split())[:_MOST_WORDS]
        raise InvalidRequest(f"prompt cannot be tokenised by the model's tokenizer: {words}", param="prompt") from error


class HfTokenizer:
    """A `Tokenizer` over the `tokenizers` library. Owns `file`. `facts`: the contents of the other files."""

    def __init__(self, file: TokenizerFile, facts: TextFiles) -> None:
        file.no_truncation()
        file.no_padding()
        _keep_no_words(file)
        self._file = file
        self.facts = facts
        self._register_special_tokens()
        added = file.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        texts = {token_id: token.content for token_id, token in added.items()}
        self.control_tokens = {token.content: token for token in added.values() if token.special and token.content}
        self._bracketed_ids = frozenset(
            token_id for token_id, text in texts.items() if text[:1] == "<" and text[-1:] == ">"
        )
        self.vocab_size = max([file.get_vocab_size(with_added_tokens=True), *(token_id + 1 for token_id in added)])
        self._decoder = TokenDecoder(json.loads(file.decoder.__getstate__()) if file.decoder is not None else None)
        self.bos_token_id = self._named_id("bos_token", facts.bos_token_id)
        self.eos_token_id = self._named_id("eos_token", next(iter(facts.eos_token_ids), None))
        own_eos = () if self.eos_token_id is None else (self.eos_token_id,)
        self.eos_token_ids = frozenset((*facts.eos_token_ids, *own_eos))
        self.fim_tokens = self._find_fim_tokens()
        self._pieces = TokenPieces(self)

    @cached_property
    def max_token_chars(self) -> int:
        """Twice the longest token: normalizers join characters before the look-up."""
        return 2 * self._decoder.longest(self._file.get_vocab(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of `text`. A bos token is never doubled, even if the text begins with one."""
        token_ids = _ids(self._file, text, add_special_tokens=add_special_tokens)
        bos = self.bos_token_id
        if not add_special_tokens or bos is None:
            return token_ids
        has_bos = token_ids[:1] == [bos]
        if has_bos and (token_ids[1:2] == [bos] or (self.facts.add_bos_token is False and self._adds_bos)):
            return token_ids[1:]
        return [bos, *token_ids] if self.facts.add_bos_token and not has_bos else token_ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of several texts, without special ones, on several threads; releases the interpreter's lock."""
        valid = [_valid(text) for text in texts]
        encodings = _encoded(lambda: self._file.encode_batch_fast(valid, add_special_tokens=False))
        return [encoding.ids for encoding in encodings]

    @cached_property
    def frame(self) -> Frame:
        return _encoded(lambda: single_frame(self._file))

    @cached_property
    def pair_frame(self) -> Frame:
        return _encoded(lambda: pair_frame(self._file))

    def encode_continuation(self, text: str) -> list[int]:
        return _ids(self._continuation_file, text, add_special_tokens=False)

    def encode_plain(self, text: str, *, is_first: bool) -> list[int]:
        file = self._plain_file if is_first else self._plain_continuation_file
        token_ids = _ids(file, text, add_special_tokens=False)
        if self._special_ids.isdisjoint(token_ids):
            return token_ids
        # A control token's text may also be a word of the vocabulary; cut after its first character it is not.
        cuts = [match.start() + 1 for match in re.finditer(f"(?={words_pattern(self.control_tokens)})", text)]
        pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
        token_ids = _ids(file, pieces[0], add_special_tokens=False)
        for piece in pieces[1:]:
            token_ids += _ids(self._plain_continuation_file, piece, add_special_tokens=False)
        shortest = {self._file.token_to_id(token) for token in self.control_tokens if len(token) == 1}
        return [token_id for token_id in token_ids if token_id not in shortest]

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        return decode_tokens(self._pieces, token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
        token = self._file.id_to_token(token_id)
        return b"" if token is None else self._decoder.token_bytes(token, at_start=at_start)

    def token_to_id(self, token: str) -> int | None:
        return self._file.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def is_control_to_llguidance(self, token_id: int) -> bool:
        """True for control tokens of llguidance when it reads a tokenizer.json itself: also text such as <tool_call>."""
        return token_id in self._special_ids or token_id in self._bracketed_ids

    @cached_property
    def _adds_bos(self) -> bool:
        of_nothing = _encoded(lambda: self._file.encode("", add_special_tokens=True))
        return of_nothing.ids[:1] == [self.bos_token_id]

    @cached_property
    def _continuation_file(self) -> TokenizerFile:
        """The tokenizer without the blank it implies at the beginning of a text."""
        source = self._file.to_str()
        spec = json.loads(source)
        without = {
            **spec,
            "normalizer": _without_implied_blank(spec["normalizer"]),
            "pre_tokenizer": _without_implied_blank(spec["pre_tokenizer"]),
        }
        if without == spec:
            return self._file
        file = TokenizerFile.from_str(json.dumps(without))
        _keep_no_words(file)
        return file

    @cached_property
    def _plain_file(self) -> TokenizerFile:
        return _without_special(self._file)

    @cached_property
    def _plain_continuation_file(self) -> TokenizerFile:
        return _without_special(self._continuation_file)

    def _register_special_tokens(self) -> None:
        """Make the tokens special that only the other files call so, like Hugging Face, if the model has rows for them."""
        known = {token.content for token in self._file.get_added_tokens_decoder().values() if token.special}
        named = dict.fromkeys((*self.facts.special_tokens.values(), *self.facts.extra_special_tokens))
        missing = [text for text in named if text not in known and self._file.token_to_id(text) is not None]
        self._file.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])

    def _named_id(self, name: str, fallback: int | None) -> int | None:
        text = self.facts.special_tokens.get(name)
        token_id = None if text is None else self._file.token_to_id(text)
        return fallback if token_id is None else token_id

    def _find_fim_tokens(self) -> FimTokens | None:
        """The marks that the model's file names, else those of the first family whose names the vocabulary has."""
        named = self.facts.fim_token_ids
        repository = self._first_id(_REPOSITORY_NAMES) if "repository" not in named else named["repository"]
        file = self._first_id(_FILE_NAMES) if "file" not in named else named["file"]
        if "prefix" in named and "suffix" in named:
            middle = named.get("middle")
            return FimTokens(named["prefix"], named["suffix"], middle, middle is None, repository, file)
        for names in _FIM_NAMES:
            prefix, suffix, middle = (self._file.token_to_id(name) for name in names)
            if prefix is not None and suffix is not None and middle is not None:
                return FimTokens(prefix, suffix, middle, False, repository, file)
        prefix, suffix = (self._file.token_to_id(name) for name in _SUFFIX_FIRST_NAMES)
        if prefix is None or suffix is None:
            return None
        return FimTokens(prefix, suffix, None, True, repository, file)

    def _first_id(self, names: Sequence[str]) -> int | None:
        return next((token_id for name in names if (token_id := self._file.token_to_id(name)) is not None), None)


def _keep_no_words(file: TokenizerFile) -> None:
    """Switch off the library's cache of merged words: merging a word again takes 0.4 microseconds per token.

    It belongs to the threads that encode, not to the tokenizer (0.23): up to 10,000 words each, which nothing frees
    when the tokenizer is gone.
    """
    resize = getattr(file.model, "_resize_cache", None)
    if isinstance(file.model, BPE) and resize is not None:  # other models' caches belong to the tokenizer
        resize(0)


def _without_special(file: TokenizerFile) -> TokenizerFile:
    copied = TokenizerFile.from_str(file.to_str())
    copied.no_truncation()
    copied.no_padding()
    copied.encode_special_tokens = True
    _keep_no_words(copied)
    return copied


def words_pattern(words: Iterable[str]) -> str:
    """A regular expression for any of these words, the longest first. It reads each character of a text about once."""
    by_first: dict[str, list[str]] = {}
    for word in words:
        by_first.setdefault(word[:1], []).append(word[1:])
    ends_here = by_first.pop("", None) is not None
    branches = []
    for first, rest in by_first.items():
        low, high = min(rest), max(rest)  # all words share the beginning of these two
        size = next((i for i, (left, other) in enumerate(zip(low, high, strict=False)) if left != other), len(low))
        branches.append(re.escape(first + low[:size]) + words_pattern(word[size:] for word in rest))
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if ends_here else "")


def _ids(file: TokenizerFile, text: str, *, add_special_tokens: bool) -> list[int]:
    # The library raises for lone surrogates, which JSON can have.
    text = _valid(text)
    if len(text) <= _LONG_CHARS:
        return _encoded(lambda: file.encode(text, add_special_tokens=add_special_tokens)).ids
    # The library releases the interpreter's lock only for batches.
    return _encoded(lambda: file.encode_batch_fast([text], add_special_tokens=add_special_tokens))[0].ids


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _without_implied_blank(spec: Any) -> Any:
    """A normalizer or pre-tokenizer of tokenizer.json that puts nothing in front of the text."""
    match spec:
        case {"type": "Sequence"}:
            key = "normalizers" if "normalizers" in spec else "pretokenizers"
            parts = [_without_implied_blank(part) for part in spec[key]]
            return {**spec, key: [part for part in parts if part is not None]}
        case {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            return {**spec, "prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return {**spec, "add_prefix_space": False}
        case _:
            return spec
