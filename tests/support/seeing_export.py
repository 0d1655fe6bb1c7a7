"""Reads the exported model of tests/models/exported_seeing that sees: its case, its directory, what it has to compute.

Does: say where its files are, write its directory. Does not: know families. Used by tests and by
scripts/record_phi3_vision.py.

The case is as tests/support/vision_checkpoint.py explains them, with the config of the tower as `vision`.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tests.support.exported_model import unpacked
from tests.support.family_checkpoint import Case, case_tensors

SEEING = Path(__file__).parents[1] / "models" / "exported_seeing"
NAME = "phi3_v"
ARCHIVE, REFERENCE = SEEING / f"{NAME}.tar.xz", SEEING / f"{NAME}.npz"
PARTS = (
    "openvino_language_model", "openvino_text_embeddings_model", "openvino_vision_embeddings_model",
    "openvino_vision_projection_model",
)  # fmt: skip
BOS, PLACEHOLDER = 1, 310
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def read_seeing_case() -> Case:
    """What the case's file says."""
    case: Case = json.loads((SEEING / f"{NAME}.json").read_text(encoding="utf-8"))
    return case


def write_seeing_export(directory: Path) -> Path:
    """Write the exported directory, with a small tokenizer; returns `directory`."""
    unpacked(ARCHIVE, directory, lambda: case_tensors(NAME, read_seeing_case()))
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """Letters, and the special tokens of Phi-3.5-vision; texts begin with one, as there."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {"<unk>": 0, "<s>": BOS, "</s>": 2, **{letter: index for index, letter in enumerate(letters, start=3)}}
    table |= {"<|user|>": 301, "<|end|>": 302, "<|assistant|>": 303, "<|system|>": 304, "<|image|>": PLACEHOLDER}
    special = [text for text in table if text.startswith("<") and len(text) > 1]
    tokenizer = Tokenizer(models.BPE(vocab=table, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.save(str(directory / "tokenizer.json"))
    described = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": TEMPLATE,
        "tokenizer_class": "LlamaTokenizer",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
