"""Weights in pickles, which can run any code when they are read, and are therefore never read here.

Does: tell them by their names, and name the command that makes safetensors of them. Does not: open one. Used where a
model's weights are searched.
"""

from __future__ import annotations

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_pickle(name: str) -> bool:
    """True if weights in a file of this name are a pickle. OpenVINO's weights are called so too, beside an .xml."""
    return name.endswith(_SUFFIXES)


def conversion(source: str, target: str) -> str:
    """The command that makes a directory of safetensors of a checkpoint in pickles; it needs torch and transformers."""
    return (
        f'python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; s, t = {source!r}, {target!r}; '
        "M.from_pretrained(s, torch_dtype='auto').save_pretrained(t); T.from_pretrained(s).save_pretrained(t)\""
    )
