"""The rules for cutting texts before byte-level BPE, for each kind that a GGUF's metadata names, as in tokenizer.json.

Source: the tokenizer.json files of the models that llama.cpp's converter names the kinds after.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Part = dict[str, Any]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_CASED_END = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> Part:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, cuts: bool) -> Part:
    """Bytes as characters; `cuts`: by GPT-2's own pattern, too."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": cuts}


def _digits(*, individual: bool) -> Part:
    return {"type": "Digits", "individual_digits": individual}


_LLAMA3 = (_split(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _END),)
_QWEN2 = (_split(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _END),)
_QWEN35 = (
    _split(
        _CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_SEED = (_split(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"),)
_GPT4O = (_split("|".join(f"{word}{_CONTRACTIONS}?" for word in _CASED) + r"|\p{N}{1,3}" + _CASED_END),)
_KIMI = (
    _split(
        r"[\p{Han}]+|"
        + "|".join(word.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") + f"{_CONTRACTIONS}?" for word in _CASED)
        + r"|\p{N}{1,3}"
        + _END
    ),
)
_TEKKEN = (_split("|".join(_CASED) + r"|\p{N}" + _CASED_END),)
_DEEPSEEK3 = (
    _split(r"\p{N}{1,3}"),
    _split("[一-龥぀-ゟ゠-ヿ]+"),
    _split(
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
)
_DEEPSEEK_CODER = (
    _split("[\r\n]"),
    _split(r"\s?\p{L}+"),
    _split(r"\s?\p{P}+"),
    _split("[一-龥ࠀ-一가-퟿]+"),
    _digits(individual=True),
)
_BLOOM = (_split(r" ?[^(\s|[.,!?…。，、।۔،])]+"),)

_WHOLE, _CUT = _byte_level(cuts=False), _byte_level(cuts=True)
_FALCON = (
    {"type": "Punctuation", "behavior": "Contiguous"},
    _CUT,
    _digits(individual=False),
    _split("[0-9][0-9][0-9]"),
)


class Kind(NamedTuple):
    """The rules of a kind. `ignores_merges`: words of the vocabulary stay whole. `adds_bos`: by default."""

    parts: tuple[Part, ...]
    normalizer: str | None = None
    ignores_merges: bool = False
    adds_bos: bool = False


_LLAMA_KIND = Kind((*_LLAMA3, _WHOLE), None, ignores_merges=True, adds_bos=True)
_QWEN_KIND = Kind((*_QWEN2, _WHOLE), "NFC")
_CODE_KIND = Kind((_digits(individual=True), _CUT))

KINDS: dict[str, Kind] = {
    "bloom": Kind((*_BLOOM, _WHOLE)),
    "command-r": Kind(_CODE_KIND.parts, "NFC"),
    "dbrx": Kind((*_LLAMA3, _WHOLE)),
    "deepseek-coder": Kind((*_DEEPSEEK_CODER, _WHOLE)),
    "deepseek-r1-qwen": _QWEN_KIND,
    "deepseek-v3": Kind((*_DEEPSEEK3, _WHOLE)),
    "exaone": Kind(_CODE_KIND.parts, "NFC"),
    "exaone4": Kind((_CUT,)),
    "falcon": Kind(_FALCON),
    "falcon-h1": _LLAMA_KIND,
    "falcon3": _LLAMA_KIND,
    "glm4": Kind((*_LLAMA3, _WHOLE), None, ignores_merges=True),
    "chatglm-bpe": Kind((*_LLAMA3, _WHOLE)),
    "gpt-2": Kind((_CUT,)),
    "gpt-4o": Kind((*_GPT4O, _WHOLE)),
    "gpt3-finnish": Kind((*_BLOOM, _WHOLE)),
    "hunyuan": Kind((*_QWEN2, _WHOLE)),
    "hunyuan-dense": Kind((*_DEEPSEEK3, _WHOLE)),
    "kimi-k2": Kind((*_KIMI, _WHOLE), None, ignores_merges=True),
    "lfm2": _LLAMA_KIND,
    "llama-bpe": _LLAMA_KIND,
    "llama-v3": _LLAMA_KIND,
    "llama3": _LLAMA_KIND,
    "mpt": Kind((_CUT,), "NFC"),
    "olmo": Kind((_CUT,), "NFC"),
    "phi-2": Kind((_CUT,)),
    "pixtral": _LLAMA_KIND,
    "poro-chat": Kind((*_BLOOM, _WHOLE)),
    "qwen2": _QWEN_KIND,
    "qwen35": Kind((*_QWEN35, _WHOLE), "NFC"),
    "refact": _CODE_KIND,
    "seed-coder": Kind((*_SEED, _WHOLE)),
    "smaug-bpe": Kind((*_LLAMA3, _WHOLE)),
    "smollm": _CODE_KIND,
    "stablelm2": Kind((*_QWEN2, _WHOLE), "NFC"),
    "starcoder": _CODE_KIND,
    "tekken": Kind((*_TEKKEN, _WHOLE), None, ignores_merges=True, adds_bos=True),
    "viking": Kind((*_BLOOM, _digits(individual=True), _WHOLE)),
}
"""By tokenizer.ggml.pre."""
