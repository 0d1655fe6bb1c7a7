"""The texts of the files that a GGUF model has none of, made from its metadata. Called by `model_texts`."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from dragoman.gguf.config import make_config
from dragoman.gguf.files import GgufModel, read_gguf
from dragoman.gguf.mmproj import described_pictures, seeing_config, seeing_part


def gguf_text(model: Path, name: str) -> str | None:
    if name in ("config.json", "preprocessor_config.json"):
        part = seeing_part(model)
        if part is None:
            return json.dumps(make_config(read_gguf(model))) if name == "config.json" else None
        return json.dumps(seeing_config(model, part) if name == "config.json" else described_pictures(part))
    if name not in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        return None
    if name != "tokenizer.json":
        return _short_text(read_gguf(model), name)
    from dragoman.gguf.tokenizer import tokenizer_text

    return tokenizer_text(read_gguf(model))


@lru_cache(maxsize=8)
def _short_text(model: GgufModel, name: str) -> str:
    from dragoman.gguf.tokenizer import generation_text, tokenizer_config_text

    return generation_text(model) if name == "generation_config.json" else tokenizer_config_text(model)
