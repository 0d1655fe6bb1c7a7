"""What `dragoman compress` writes, as vLLM and transformers read it: the same likely tokens, log-probabilities alike.

vLLM multiplies 4-bit weights on a processor in bf16, if it has AVX-512, and has no kernels for 8 bits there;
transformers with the package compressed-tensors, which vLLM needs too, computes both in f32.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.cli import main
from dragoman.config.bundled import BUNDLED
from dragoman.engine.base import Engine
from dragoman.engine.factory import EngineSetup
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.vllm.factory import factory
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.types import EngineOutput, EngineRequest, SamplingParams
from tests.support import vllm_on_demo
from tests.support.forward import forward_batch

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed: make test-vllm"),
]

DEMO = BUNDLED["demo"]
PROMPTS = ((419, 295, 1453, 1367, 42), (5, 77, 300, 12, 9, 1000, 43), (11, 640, 7, 8, 1200, 95, 3, 210, 44))
NUM_TOKENS, NUM_TOP = 12, 5
LIKELY = -4.6  # 1 %: what is less likely is rounded more
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What calibrates: with it columns are scaled, and what stands before them."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. What is deep learning? " * 40)
    return path


@pytest.fixture(autouse=True)
def _their_warnings() -> Iterator[None]:
    """They are vLLM's and torch's own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def has_kernels() -> bool:
    """Whether vLLM multiplies 4-bit weights on this processor; its build for AVX2 cannot."""
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    return hasattr(torch.ops._C, "cpu_gemm_wna16")


def compressed(out: Path, *words: str) -> Path:
    assert main(["compress", str(DEMO), str(out), *words]) == 0
    return out


def ours(model: Path, sequences: list[tuple[int, ...]]) -> list[Array]:
    """Log-probabilities after every token of these sequences, as the built-in engine computes them in f32."""
    runner = OpenVinoRunner(load_model(model, ModelOptions("f32")), 8)
    found = []
    for tokens in sequences:
        batch = forward_batch([(tokens, 0, [0, 1])], range(len(tokens)))
        found.append(log_softmax(runner.forward(batch).astype(np.float64)))
    runner.close()
    return found


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


async def answer(engine: Engine, prompt: tuple[int, ...]) -> list[EngineOutput]:
    params = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=NUM_TOP)
    return [output async for output in engine.generate(EngineRequest(f"r{prompt[0]}", prompt, params, NUM_TOKENS, 7))]


async def answers(engine: Engine) -> list[list[EngineOutput]]:
    await engine.start()
    try:
        return await asyncio.gather(*(answer(engine, prompt) for prompt in PROMPTS))
    finally:
        await engine.shutdown(0.0)


@pytest.mark.parametrize("words", [(), ("--text", "{text}", "--group-size", "64", "--skip", r"layers\.0\.")], ids=str)
def test_vllm_answers_with_it_as_the_built_in_engine_does(words: tuple[str, ...], text: Path, tmp_path: Path) -> None:
    model = compressed(tmp_path / "out", *(word.format(text=text) for word in words))
    options = {"dtype": "bf16", "max_model_len": 64, "max_num_seqs": 4, "kv_cache_gb": 0.125}
    setup = EngineSetup(model, options, extra={"enforce_eager": "true"})
    engine = factory.load(setup).build(vllm_on_demo.tools(), 2**30).engine
    if not has_kernels():
        with pytest.raises(ModelError, match=r"cannot compute a token: vLLM's engine has died"):
            asyncio.run(answers(engine))
        return
    told = asyncio.run(answers(engine))
    sequences = [
        (*prompt, *(token for output in outputs for token in output.token_ids))
        for prompt, outputs in zip(PROMPTS, told, strict=True)
    ]
    num_likely = 0
    for prompt, outputs, rows in zip(PROMPTS, told, ours(model, sequences), strict=True):
        tops = [top for output in outputs for top in output.top_logprobs or []]
        assert len(tops) == NUM_TOKENS
        for top, row in zip(tops, rows[len(prompt) - 1 :], strict=False):
            likely = [one for one in top if one.logprob > LIKELY]
            num_likely += len(likely)
            for one in likely:
                assert abs(one.logprob - row[one.token_id]) < 0.15
            best, next_best = np.sort(row)[[-1, -2]]
            if best - next_best > 0.3:
                assert top[0].token_id == row.argmax()
    assert num_likely > 40


@pytest.mark.parametrize("bits", ["4", "8"])
@pytest.mark.parametrize("has_text", [False, True])
def test_transformers_computes_with_it_what_the_built_in_engine_does(
    bits: str, has_text: bool, text: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    words = ["--text", str(text)] if has_text else []
    model = compressed(tmp_path / "out", "--bits", bits, "--group-size", "64", *words)
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    mine, plain = ours(model, list(PROMPTS)), ours(DEMO, list(PROMPTS))
    for prompt, found, uncompressed in zip(PROMPTS, mine, plain, strict=True):
        with torch.no_grad():
            expected = log_softmax(theirs(torch.tensor([prompt])).logits[0].double().numpy())
        assert np.abs(found - expected).max() < 1e-4
        assert np.abs(found - uncompressed).max() > 0.02, "compression changes nothing"
        divergence = (np.exp(uncompressed) * (uncompressed - found)).sum(axis=-1).mean()
        assert divergence < {"4": 0.3, "8": 0.01}[bits], "what is read is not the model"
