"""Writes the small checkpoints of tests/models/pooling: models that embed or score texts, with tokenizers, random values.

Does: makes the same bytes for the same case on every machine, without torch. Does not: know any family; what a case's file
says is all there is. Used by the tests of embedding and reranking and by scripts/record_embedding_references.py, which must
see identical directories. `python -m tests.support.pooling_checkpoint ROOT CASE...` writes some below ROOT, for tests whose
own Python has no dragoman, and prints what is known of them.

A case is tests/models/pooling/<case>.json with these keys:
    config         config.json as checkpoints of the family have it, with tiny sizes
    files          other JSON files by their paths
    tensors        name -> shape, as the family's files name them (recorded)
    dense          directory of a Dense module -> [inputs, outputs]
    tokenizer      "bert", "roberta" or "qwen": whose special tokens stand around texts; "qwen_plain": none
    values         see tests/support/family_checkpoint.py
    texts, pairs   what is recorded of it; `prompts`: names of prompts that are recorded besides
    records        "words" or "tokens": weights of words, or tokens' vectors, of texts; absent: embeddings
    classified     texts and pairs whose labels are recorded
    added          tokens that the tokenizer has besides
    directory      the name that the directory has
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.support.family_checkpoint import case_tensors

Case = dict[str, Any]
Array = np.ndarray[Any, Any]

CASES = Path(__file__).parents[1] / "models" / "pooling"

_TEXT = """
the of and to in is a that it was for on are as with his they at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many
then them these so some her would make like him into time has look two more write go see number no way could
people my than first water been call who oil its now find long down day did get come made may part
"""
WORDS = _TEXT.split()


def case_names() -> list[str]:
    """Every case, sorted."""
    return sorted(path.stem for path in CASES.glob("*.json"))


def read_case(name: str) -> Case:
    """What tests/models/pooling/<name>.json says."""
    case: Case = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    return case


def recorded(name: str) -> dict[str, Array]:
    """The arrays that were recorded of a case."""
    with np.load(CASES / f"{name}.npz") as arrays:
        return dict(arrays)


def words(length: int, seed: int = 0) -> str:
    """A text of so many words, always the same."""
    chosen = np.random.RandomState(seed + length).randint(0, len(WORDS), size=length)
    return " ".join(WORDS[index] for index in chosen)


def case_texts(case: Case) -> list[str]:
    """The texts that are recorded of a case: those it lists, and some of many words."""
    return [text if isinstance(text, str) else words(text) for text in case.get("texts", [])]


def case_pairs(case: Case) -> list[tuple[str, str]]:
    """The pairs that are recorded of a case."""
    return [
        (words(first, 7) if isinstance(first, int) else first, words(second) if isinstance(second, int) else second)
        for first, second in case.get("pairs", [])
    ]


def case_classified(case: Case) -> list[str | tuple[str, str]]:
    """The texts and pairs of a case whose labels are recorded."""
    parts = [
        [words(one) if isinstance(one, int) else one for one in (text if isinstance(text, list) else [text])]
        for text in case.get("classified", [])
    ]
    return [one[0] if len(one) == 1 else (one[0], one[1]) for one in parts]


def write_pooling_case(name: str, root: Path, case: Case | None = None) -> Path:
    """Write the directory of the case below `root`, and return it."""
    case = case or read_case(name)
    directory = root / str(case.get("directory", name))
    directory.mkdir(parents=True, exist_ok=True)
    save_file(case_tensors(name, case), directory / "model.safetensors", metadata={"format": "pt"})
    for path, content in {"config.json": case["config"], **case.get("files", {})}.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(json.dumps(content), encoding="utf-8")
    for path, (num_inputs, num_outputs) in case.get("dense", {}).items():
        stream = np.random.RandomState(crc32(f"{name}/{path}".encode()))
        weight = stream.standard_normal((num_outputs, num_inputs)) / num_inputs**0.5
        tensors = {"linear.weight": weight}
        if case["files"][f"{path}/config.json"]["bias"]:
            tensors["linear.bias"] = 0.1 * stream.standard_normal(num_outputs)
        save_file(
            {key: value.astype(np.float32) for key, value in tensors.items()}, directory / path / "model.safetensors"
        )
    tokenizer, special = case_tokenizer(case)
    tokenizer.save(str(directory / "tokenizer.json"))
    longest = case.get("model_max_length", 512)
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest, **special}
    if case["config"]["model_type"] == "bert":
        described["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (directory / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    return directory


def describe(name: str, root: Path) -> dict[str, Any]:
    """Write a case below `root`: its `directory`, its `texts`, and as lists what was recorded of it, by its names."""
    known = {key: array.tolist() for key, array in recorded(name).items()}
    return {"directory": str(write_pooling_case(name, root)), "texts": case_texts(read_case(name)), **known}


def vocabulary(case: Case) -> int:
    """How many tokens the case's tokenizer has."""
    size: int = case_tokenizer(case)[0].get_vocab_size()
    return size


def case_tokenizer(case: Case) -> tuple[Tokenizer, dict[str, str]]:
    """The case's tokenizer, and the names of its special tokens."""
    tokenizer, special = TOKENIZERS[case["tokenizer"]]()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in case.get("added", [])])
    return tokenizer, special


def _letters() -> list[str]:
    return [chr(code) for code in range(ord("a"), ord("z") + 1)]


def _bert() -> tuple[Tokenizer, dict[str, str]]:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [
        *special,
        *_letters(),
        *(f"##{letter}" for letter in _letters()),
        *"0123456789.,?!'",
        *dict.fromkeys(WORDS),
    ]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    file = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    file.normalizer = normalizers.BertNormalizer(lowercase=True)
    file.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    file.decoder = decoders.WordPiece()
    file.add_special_tokens(special)
    file.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return file, names


def _roberta() -> tuple[Tokenizer, dict[str, str]]:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [*special, "▁", *(f"▁{word}" for word in dict.fromkeys(WORDS)), *_letters(), *"0123456789.,?!'"]
    scores = [
        (piece, 0.0 if piece in special else -float(index) / 10) for index, piece in enumerate(dict.fromkeys(pieces))
    ]
    file = Tokenizer(models.Unigram(scores, unk_id=special.index("<unk>"), byte_fallback=False))
    file.normalizer = normalizers.NFKC()
    file.pre_tokenizer = pre_tokenizers.Metaspace()
    file.decoder = decoders.Metaspace()
    file.add_special_tokens(special)
    file.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {
        "bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>",
        "sep_token": "</s>", "mask_token": "<mask>",
    }  # fmt: skip
    return file, names


def _qwen() -> tuple[Tokenizer, dict[str, str]]:
    merges = [("y", "e"), ("ye", "s"), ("n", "o")]
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(first + second for first, second in merges)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    file = Tokenizer(models.BPE(vocab, merges))
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    file.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    file.add_special_tokens(special)
    end = file.token_to_id("<|endoftext|>")
    file.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B:1 <|endoftext|>:1", special_tokens=[("<|endoftext|>", end)]
    )
    return file, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}


def _qwen_plain() -> tuple[Tokenizer, dict[str, str]]:
    file, names = _qwen()
    file.post_processor = processors.ByteLevel(trim_offsets=False)  # which adds nothing
    return file, names


TOKENIZERS = {"bert": _bert, "roberta": _roberta, "qwen": _qwen, "qwen_plain": _qwen_plain}


if __name__ == "__main__":
    print(json.dumps({name: describe(name, Path(sys.argv[1])) for name in sys.argv[2:]}))
