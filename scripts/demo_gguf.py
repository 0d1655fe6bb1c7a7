"""Writes the demo model as GGUF, with llama.cpp's own converter, for the tests that have its server behind dragoman.

Does: call convert_hf_to_gguf.py of a checkout, and tell it which pre-tokenizer the demo model has: the converter knows the
tokenizers of published models by their hashes, and this one splits text as Qwen2's does. Does not: convert by itself.

    PYTHONPATH=LLAMA_CPP/gguf-py python scripts/demo_gguf.py LLAMA_CPP demo.gguf

Run by hand, where torch, transformers and sentencepiece are installed (docs/testing.md).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

DEMO_MODEL = Path(__file__).parents[1] / "src" / "dragoman" / "demo_model"


def main() -> None:
    """Read the arguments and convert, all in f32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_cpp", type=Path, help="a checkout of llama.cpp")
    parser.add_argument("output", type=Path, help="the file to write")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.llama_cpp))
    converter = importlib.import_module("convert_hf_to_gguf")
    base = importlib.import_module("conversion.base")
    base.TextModel.get_vocab_base_pre = lambda model, tokenizer: "qwen2"
    sys.argv = ["convert_hf_to_gguf.py", str(DEMO_MODEL), "--outtype", "f32", "--outfile", str(arguments.output)]
    converter.main()


if __name__ == "__main__":
    main()
