"""What the compiler of grammars makes of a tokenizer in vLLM: it takes those tokens for control tokens that we think."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import pytest

from dragoman.config.resolve import demo_model_dir
from dragoman.tokenizer.hf_tokenizer import load_tokenizer

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed: make test-vllm"),
]


def test_added_tokens_in_angle_brackets_are_control_tokens() -> None:
    tokenizer = load_tokenizer(demo_model_dir())
    theirs = importlib.import_module("transformers").AutoTokenizer.from_pretrained(str(demo_model_dir()))
    compiled = importlib.import_module("llguidance.hf").from_tokenizer(theirs, len(theirs))
    ids = sorted(theirs.added_tokens_decoder)
    assert [one for one in ids if compiled.is_special_token(one)] == [
        one for one in ids if tokenizer.is_control_to_llguidance(one)
    ]
    assert tokenizer.token_to_id("<tool_call>") in [one for one in ids if not tokenizer.is_special(one)]
