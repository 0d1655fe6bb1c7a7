"""Makes byte-level tokenizers from ranked byte strings: tiktoken's files, and Mistral's tekken.json.

Never runs a checkpoint's own code: the pattern that cuts text must be known here, or be in the file.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from dragoman.tokenizer.merges import all_merges
from dragoman.tokenizer.token_bytes import byte_level_alphabet

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_OTHERS}"
_QWEN = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_OTHERS}"
_UPPER, _LOWER = (
    rf"[\p{{L{case}}}{rest}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for case, rest in (("u", r"\p{Lt}"), ("l", ""))
)
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIXES}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIXES}?"
    rf"|\p{{N}}{{1,3}}|{_OTHERS}"
)


@dataclass(frozen=True, slots=True)
class _Known:
    """A tokenizer class whose code is known. `specials`: its tokens after the ranks; unnamed ones are called `reserved`."""

    pattern: str
    specials: Sequence[str] = ()
    num_reserved: int = 0
    reserved: str = ""


# Sources: tokenization_qwen.py of Qwen, tokenization_kimi.py of Kimi-K2, tokenization_chatglm.py of glm-4.
_KNOWN: Mapping[str, _Known] = {
    "QWenTokenizer": _Known(
        _QWEN, ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
    ),
    "TikTokenTokenizer": _Known(_KIMI, num_reserved=256, reserved="<|reserved_token_{}|>"),
    "ChatGLM4Tokenizer": _Known(_CL100K),
}

PATTERNS: Mapping[str, str] = {name: known.pattern for name, known in _KNOWN.items()}


def read_tiktoken(path: Path, tokenizer_class: str, names: Mapping[int, str]) -> Tokenizer:
    """The tokenizer of a tiktoken file. `names`: of the tokens after the ranks, by id. Raises: ValueError."""
    known = _KNOWN.get(tokenizer_class)
    if known is None:
        allowed = ", ".join(_KNOWN)
        raise ValueError(
            f"the file does not define how text is split, and no rule is known for tokenizer_class {tokenizer_class!r}; "
            f"known: {allowed}"
        )
    ranks = _read_ranks(path.read_bytes())
    behind = {len(ranks) + place: text for place, text in enumerate(known.specials)}
    behind |= {
        token_id: known.reserved.format(token_id) for token_id in range(len(ranks), len(ranks) + known.num_reserved)
    }
    behind |= {token_id: text for token_id, text in names.items() if token_id >= len(ranks)}
    return _tokenizer(ranks, known.pattern, [], _in_order(behind, len(ranks)))


def read_tekken(path: Path) -> Tokenizer:
    """The tokenizer of a tekken.json, whose special tokens come first. Raises: ValueError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        facts = content["config"]
        num_specials, size, pattern = facts["default_num_special_tokens"], facts["default_vocab_size"], facts["pattern"]
        ranks = [
            base64.b64decode(entry["token_bytes"], validate=True) for entry in content["vocab"][: size - num_specials]
        ]
        names = {int(token["rank"]): str(token["token_str"]) for token in content.get("special_tokens") or ()}
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"it is not a valid tekken.json: {type(error).__name__} {error}") from error
    specials = [names.get(token_id, f"<SPECIAL_{token_id}>") for token_id in range(num_specials)]
    return _tokenizer(ranks, str(pattern), specials, [])


def looks_like_tiktoken(data: bytes) -> bool:
    try:
        return bool(_read_ranks(data.partition(b"\n")[0], is_whole=False))
    except ValueError:
        return False


def _read_ranks(data: bytes, *, is_whole: bool = True) -> list[bytes]:
    """The byte strings in the order of their ranks. Raises: ValueError unless the ranks are 0, 1, 2, ..."""
    ranks: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            token, rank = words
            ranks[int(rank)] = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"line {number} is not a token in base64 and its rank") from error
    if is_whole and (not ranks or ranks.keys() != set(range(len(ranks)))):
        raise ValueError("its ranks are not 0, 1, 2, ... without gaps")
    return [token for _, token in sorted(ranks.items())]


def _in_order(behind: Mapping[int, str], begin: int) -> list[str]:
    if behind and sorted(behind) != list(range(begin, begin + len(behind))):
        raise ValueError(f"the tokens after the ranks must have consecutive ids from {begin} on")
    return [text for _, text in sorted(behind.items())]


def _tokenizer(ranks: Sequence[bytes], pattern: str, before: Sequence[str], behind: Sequence[str]) -> Tokenizer:
    """A byte-level tokenizer of special tokens, ranked byte strings, special tokens. It looks whole pieces up first."""
    letters = {byte: letter for letter, byte in byte_level_alphabet().items()}
    texts = ["".join(letters[byte] for byte in token) for token in ranks]
    tokens = [*before, *texts]
    if len(set(tokens)) < len(tokens):
        raise ValueError("it has a token twice")
    known = frozenset(texts)
    missing = [byte for byte, letter in letters.items() if letter not in known]
    if missing:
        raise ValueError(f"it has no token for the byte 0x{missing[0]:02X}")
    vocabulary = {text: token_id for token_id, text in enumerate(tokens)}
    model: Any = models.BPE(vocab=vocabulary, merges=all_merges(texts, known), ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*before, *behind)])
    return tokenizer
