"""Makes the demo model's tokenizer: byte-level BPE over our own corpus, with single digits and special tokens.

Writes ``tokenizer.json``, ``tokenizer_config.json`` (with the chat template) and ``special_tokens_map.json``.
Run once (``python -m demo.tokenizer OUT_DIR``); after that the vocabulary stays, since the weights depend on it.
"""

import json
import sys
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.corpus.dialog import EOS, MARKUP, SPECIAL
from demo.corpus.mix import sample_document

VOCAB_SIZE = 4096
DOCUMENTS = 60_000
SEED = 11
# Words with one leading space or mark, single digits, runs of marks, line ends, other white space.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def corpus_texts() -> list[str]:
    """A sample of the training text, without the special tokens."""
    rng = Random(SEED)
    texts = []
    for _ in range(DOCUMENTS):
        text = "".join(part for part, _ in sample_document(rng))
        for token in SPECIAL + MARKUP:
            text = text.replace(token, "\n")
        texts.append(text)
    return texts


def train_tokenizer() -> Tokenizer:
    """The trained tokenizer; ids 0..5 are the special tokens, then the markup tokens, bytes and merges."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    added += [AddedToken(token, special=False, normalized=False) for token in MARKUP]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus_texts(), trainer)
    return tokenizer


def mark_plain(path: Path) -> None:
    """Make the markup tokens ordinary added tokens, so that decoding without special tokens keeps them."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for token in data["added_tokens"]:
        token["special"] = token["content"] in SPECIAL
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_config(folder: Path) -> None:
    """The two small files beside ``tokenizer.json``."""
    decoder = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL,
        }
        for index, token in enumerate(SPECIAL + MARKUP)
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": decoder,
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "eos_token": EOS,
        "pad_token": EOS,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": TEMPLATE.read_text(encoding="utf-8").rstrip("\n"),
    }
    special = {"eos_token": EOS, "pad_token": EOS, "additional_special_tokens": SPECIAL[1:]}
    for name, value in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Write the tokenizer's files into the folder given on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if "--config-only" not in sys.argv:
        train_tokenizer().save(str(folder / "tokenizer.json"))
        mark_plain(folder / "tokenizer.json")
    write_config(folder)


if __name__ == "__main__":
    main()
