"""Writes tokenizer.json and its like for a GGUF model, from the vocabulary in its metadata. Called at load time.

Byte-level BPE ("gpt2"), SentencePiece's BPE with scores ("llama") or pairs ("gemma4"), unigrams ("t5").
Sources: the GGUF specification, "tokenizer"; of what holds without a key: llama.cpp's llama-vocab.cpp.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.errors import ModelError
from dragoman.gguf.files import GgufModel
from dragoman.gguf.pre_tokenizers import KINDS, Kind

Spec = dict[str, Any]

_KEY = "tokenizer.ggml"
_MOST_TOKENS = 1 << 20
_MOST_CHARS = 1 << 24  # of all tokens together; the largest vocabularies have 2 million
_MOST_MERGED = 1 << 25  # characters of all pairs that become tokens; Gemma's 256,000 tokens have 5 million
_LONGEST = 1 << 10  # characters of a token, several times what any has: the time for one grows with its square
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_FILLING = re.compile(r"\[PAD\d+\]")  # what the converter writes for rows that have no token
_BLANK = "▁"
_FIM_KEY = "fim_token_ids"  # our own key: `tokenizer.model_files` reads it
_FIM_NAMES = {
    "prefix": ("prefix", "fim_pre"),
    "suffix": ("suffix", "fim_suf"),
    "middle": ("middle", "fim_mid"),
    "repository": ("fim_rep",),
    "file": ("fim_sep",),
}
"""The keys of the marks of fill-in-the-middle prompts, of older files first, as newer ones count."""
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_ENDS = frozenset((
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<｜end▁of▁sentence｜>", "<|im_end|>",
    "<|end|>", "<|eot_id|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "<end_of_turn>", "<turn|>",
    "<end_of_utterance>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>", "[e~[",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
    "<REPO>", "<reponame>", "<|file_sep|>",
))  # fmt: skip
"""Tokens that end a text by their name: files name one end, and models were trained with several."""
_NO_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|calls|>"}, "<|end|>"),
)
"""Tokens beside which another one is no end: it parts the messages of one answer."""
_KEPT_BLANKS = ("<unk>", "<s>", "<|endoftext|>")  # Phi-3's other special tokens take the blanks behind them


class _Vocabulary(NamedTuple):
    tokens: list[str]
    types: list[int]
    scores: list[float]

    def added(self) -> Iterator[tuple[int, str, bool]]:
        """Tokens that are looked for before anything else: id, text, whether it is special."""
        for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token:
                yield index, token, kind != _USER_DEFINED

    def ids(self) -> dict[str, int]:
        """Every token's id; of two equal tokens the first one's."""
        found: dict[str, int] = {}
        for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if not (kind == _UNUSED and _FILLING.fullmatch(token)):
                found.setdefault(token, index)
        return found


def tokenizer_text(model: GgufModel) -> str:
    values = model.metadata
    kind = values.text(f"{_KEY}.model")
    vocabulary = _vocabulary(model)
    match kind:
        case "gpt2":
            spec = _byte_level(model, vocabulary)
        case "llama" | "gemma4":
            spec = _scored_pairs(model, vocabulary, are_told=kind == "gemma4")
        case "t5":
            spec = _unigrams(model, vocabulary)
        case _:
            raise values.error(f"{_KEY}.model", "gpt2, llama, gemma4 or t5")
    whole = {"version": "1.0", "added_tokens": _added_tokens(model, vocabulary), **spec}
    return msgspec.json.encode(whole).decode()  # json takes several times as long for a large vocabulary


def tokenizer_config_text(model: GgufModel) -> str:
    values, tokens = model.metadata, _tokens(model)
    named = {name: _token_id(model, name, len(tokens)) for name in _NAMES}
    config: Spec = {f"{name}_token": tokens[index] for name, index in named.items() if index is not None}
    templates = {"default": values.text("tokenizer.chat_template")}
    for key in values:
        if key.startswith("tokenizer.chat_template."):
            templates[key.removeprefix("tokenizer.chat_template.")] = values.text(key)
    config["chat_template"] = [{"name": name, "template": template} for name, template in templates.items() if template]
    fim = {
        part: index
        for part, names in _FIM_NAMES.items()
        for name in names
        if (index := _token_id(model, name, len(tokens))) is not None
    }
    if fim:
        config[_FIM_KEY] = fim
    return json.dumps(config, ensure_ascii=False)


def generation_text(model: GgufModel) -> str:
    if f"{_KEY}.tokens" not in model.metadata:
        return "{}"
    vocabulary = _vocabulary(model)
    most = len(vocabulary.tokens)
    ends = (_token_id(model, name, most) for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"))
    named = (index for index in ends if index is not None)
    config: Spec = {"eos_token_id": list(dict.fromkeys((*named, *_ends_by_name(vocabulary))))}
    begin = _token_id(model, "bos", most)
    return json.dumps(config if begin is None else config | {"bos_token_id": begin})


def _ends_by_name(vocabulary: _Vocabulary) -> list[int]:
    """The ids of tokens that end a text by their name; not words of the language, as </s> among tags of HTML."""
    found = {
        token: index for index, token, special in vocabulary.added() if token in _ENDS and (special or token != "</s>")
    }
    for present, other in _NO_ENDS:
        if present <= found.keys():
            found.pop(other, None)
    return list(found.values())


# --- the metadata -----------------------------------------------------------------------------------------------------


def _tokens(model: GgufModel) -> list[str]:
    tokens = model.metadata.listed(f"{_KEY}.tokens", str)
    if not tokens or len(tokens) > _MOST_TOKENS:
        raise ModelError(f"{model.path} {_KEY}.tokens has {len(tokens)} tokens, allowed: 1 to {_MOST_TOKENS}")
    longest, count = max(map(len, tokens)), sum(map(len, tokens))
    if longest > _LONGEST or count > _MOST_CHARS:
        problem = f"has {count} characters, {longest} in one token, allowed: {_MOST_CHARS}, {_LONGEST} in one"
        raise ModelError(f"{model.path} {_KEY}.tokens {problem}")
    return tokens


def _vocabulary(model: GgufModel) -> _Vocabulary:
    values, tokens = model.metadata, _tokens(model)
    types = values.listed(f"{_KEY}.token_type", int) or [_NORMAL] * len(tokens)
    scores = values.listed(f"{_KEY}.scores", float) or [0.0] * len(tokens)
    for name, items in (("token_type", types), ("scores", scores)):
        if len(items) != len(tokens):
            raise ModelError(f"{model.path} {_KEY}.{name} has {len(items)} values, allowed: {len(tokens)}, as tokens")
    if not all(map(math.isfinite, scores)):
        raise values.error(f"{_KEY}.scores", "finite numbers")
    return _Vocabulary(tokens, types, scores)


def _token_id(model: GgufModel, name: str, num_tokens: int) -> int | None:
    key = f"{_KEY}.{_ID_KEYS.get(name, name)}_token_id"
    if key not in model.metadata:
        return None
    index = model.metadata.get(key)
    if not isinstance(index, int) or isinstance(index, bool):
        raise model.metadata.error(key, "the id of a token")
    if index in (-1, 0xFFFFFFFF):  # llama.cpp's "none"
        return None
    if not 0 <= index < num_tokens:
        raise model.metadata.error(key, f"an id below {num_tokens}")
    return index


_ID_KEYS = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # as the format spells them


def _added_tokens(model: GgufModel, vocabulary: _Vocabulary) -> list[Spec]:
    takes_blanks = model.architecture == "phi3" and model.metadata.text(f"{_KEY}.model") == "llama"
    seen: set[str] = set()
    added = []
    for index, token, is_special in vocabulary.added():
        if token not in seen:
            rstrip = takes_blanks and is_special and token not in _KEPT_BLANKS
            flags = {"single_word": False, "lstrip": False, "rstrip": rstrip, "normalized": False}
            added.append({"id": index, "content": token, **flags, "special": is_special})
        seen.add(token)
    return added


# --- the three kinds of models ----------------------------------------------------------------------------------------


def _byte_level(model: GgufModel, vocabulary: _Vocabulary) -> Spec:
    name = model.metadata.text(f"{_KEY}.pre")
    kind = KINDS.get(name)
    if kind is None:
        raise ModelError(f"{model.path} {_KEY}.pre is {name!r:.80}, allowed: {', '.join(KINDS)}")
    parts = list(kind.parts)
    return {
        "normalizer": {"type": kind.normalizer} if kind.normalizer else None,
        "pre_tokenizer": parts[0] if len(parts) == 1 else {"type": "Sequence", "pretokenizers": parts},
        "post_processor": _post_processor(model, vocabulary, kind),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": kind.ignores_merges,
            "vocab": vocabulary.ids(),
            "merges": _merges(model),
        },
    }


def _merges(model: GgufModel) -> list[list[str]]:
    merges = [merge.split(" ") for merge in model.metadata.listed(f"{_KEY}.merges", str)]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        raise ModelError(f"{model.path} {_KEY}.merges holds {' '.join(wrong)!r:.80}, allowed: two tokens and a blank")
    return merges


def _scored_pairs(model: GgufModel, vocabulary: _Vocabulary, *, are_told: bool) -> Spec:
    """`are_told`: the file has the pairs, whose order its tokens' scores do not tell."""
    prefix = model.metadata.flag(f"{_KEY}.add_space_prefix", True)
    normalizers: list[Spec] = [{"type": "Prepend", "prepend": _BLANK}] if prefix else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": _BLANK})
    decoders: list[Spec] = [
        {"type": "Replace", "pattern": {"String": _BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    ids = vocabulary.ids()
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _post_processor(model, vocabulary, Kind((), adds_bos=True)),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": _unknown(model, vocabulary),
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": _merges(model) if are_told else _merges_by_score(model, vocabulary, ids),
        },
    }


def _merges_by_score(model: GgufModel, vocabulary: _Vocabulary, ids: Mapping[str, int]) -> list[list[str]]:
    """The pairs that become a token, in the order of scores. Raises: ModelError if there are too many ways."""
    pairs: list[tuple[float, int, int, str, str]] = []
    lengths, num_chars = frozenset(map(len, ids)), 0
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind != _NORMAL or ids.get(token) != index:
            continue
        for cut in range(1, len(token)):
            if cut not in lengths or len(token) - cut not in lengths:
                continue
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                num_chars += len(token)
                if num_chars > _MOST_MERGED:
                    raise ModelError(f"{model.path} {_KEY}.tokens can be merged in too many ways, up to {token!r:.40}")
                pairs.append((-vocabulary.scores[index], ids[left], ids[right], left, right))
    pairs.sort(key=lambda pair: pair[:3])
    return [[left, right] for *_, left, right in pairs]


def _unigrams(model: GgufModel, vocabulary: _Vocabulary) -> Spec:
    values = model.metadata
    prefix = values.flag(f"{_KEY}.add_space_prefix", True)
    normalizers: list[Spec] = []
    table = bytes(byte & 0xFF for byte in values.listed(f"{_KEY}.precompiled_charsmap", int))
    if table:
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()})
    if values.flag(f"{_KEY}.remove_extra_whitespaces", False):
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    blank = {
        "type": "Metaspace",
        "replacement": _BLANK,
        "prepend_scheme": "always" if prefix else "never",
        "split": True,
    }
    unknown = next((index for index, kind in enumerate(vocabulary.types) if kind == _UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": blank,
        "post_processor": _post_processor(model, vocabulary, Kind(())),
        "decoder": blank,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": [[token, score] for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True)],
            "byte_fallback": 6 in vocabulary.types,
        },
    }


def _unknown(model: GgufModel, vocabulary: _Vocabulary) -> str | None:
    index = _token_id(model, "unk", len(vocabulary.tokens))
    if index is not None:
        return vocabulary.tokens[index]
    return next(
        (token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == _UNKNOWN), None
    )


def _post_processor(model: GgufModel, vocabulary: _Vocabulary, kind: Kind) -> Spec | None:
    values, count = model.metadata, len(vocabulary.tokens)
    wanted = (
        ("bos", values.flag(f"{_KEY}.add_bos_token", kind.adds_bos)),
        ("eos", values.flag(f"{_KEY}.add_eos_token", False)),
    )
    ids = {name: _token_id(model, name, count) for name, adds in wanted if adds}
    tokens = {name: (vocabulary.tokens[index], index) for name, index in ids.items() if index is not None}
    if not tokens:
        return None

    def around(sequence: str, number: int) -> list[Spec]:
        special = {name: {"SpecialToken": {"id": token, "type_id": number}} for name, (token, _) in tokens.items()}
        middle = {"Sequence": {"id": sequence, "type_id": number}}
        return [part for part in (special.get("bos"), middle, special.get("eos")) if part is not None]

    described = {token: {"id": token, "ids": [index], "tokens": [token]} for token, index in tokens.values()}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": described,
    }
