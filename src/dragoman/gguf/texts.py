"""The texts of the files that a GGUF model has none of, made from its metadata.

Does: choose who makes which. Does not: keep the texts, which may be large. Called by `model_texts`.
"""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.gguf.config import make_config
from dragoman.gguf.files import read_gguf
from dragoman.gguf.mmproj import described_pictures, seeing_config, seeing_part


def gguf_text(model: Path, name: str) -> str | None:
    """The text of the file of that name that a checkpoint would have; None if it would have none. Raises: ModelError."""
    if name in ("config.json", "preprocessor_config.json"):
        part = seeing_part(model)
        if part is None:
            return json.dumps(make_config(read_gguf(model))) if name == "config.json" else None
        return json.dumps(seeing_config(model, part) if name == "config.json" else described_pictures(part))
    if name not in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        return None
    from dragoman.gguf.tokenizer import generation_text, tokenizer_config_text, tokenizer_text

    makers = {
        "tokenizer.json": tokenizer_text,
        "tokenizer_config.json": tokenizer_config_text,
        "generation_config.json": generation_text,
    }
    return makers[name](read_gguf(model))
