"""Recognises weights in pickles, which can run any code when read and are therefore never read."""

from __future__ import annotations

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_pickle(name: str) -> bool:
    """OpenVINO's weights have such names too, next to an .xml."""
    return name.endswith(_SUFFIXES)


def conversion(source: str, target: str) -> str:
    """The command that converts a pickled checkpoint to safetensors; it needs torch and transformers."""
    return (
        f'python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; s, t = {source!r}, {target!r}; '
        "M.from_pretrained(s, torch_dtype='auto').save_pretrained(t); T.from_pretrained(s).save_pretrained(t)\""
    )
