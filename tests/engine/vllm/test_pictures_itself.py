"""Pictures on vLLM itself: in f32 what comes of a prompt is what the built-in engine makes of it, whatever it asks for."""

from __future__ import annotations

import asyncio
import hashlib
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from random import Random
from typing import Any

import msgspec
import pytest

from dragoman.compose import engine_tools
from dragoman.config.bundled import BUNDLED
from dragoman.engine.base import Engine, PictureRules
from dragoman.engine.factory import BuiltEngine, EngineSetup
from dragoman.engine.rolling.factory import factory as rolling_factory
from dragoman.engine.vllm.factory import factory
from dragoman.errors import RequestTimeout, UnsupportedFeature
from dragoman.tokenizer.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.types import Detail, EngineRequest, Picture, PictureSpan, SamplingParams
from tests.contract.asking import Answer, collect

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed: make test-vllm"),
]

MODEL = BUNDLED["demo-vision"]
OPTIONS = {
    "dtype": "f32",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "kv_cache_gb": 0.125,
    "limit_mm_per_prompt": 3,
    "mm_processor_kwargs": '{"do_image_splitting": true}',
}
Shown = tuple[Picture, Detail]


def noise(seed: int, width: int, height: int) -> Picture:
    """A picture of random pixels."""
    rgb = Random(seed).randbytes(width * height * 3)
    return Picture(width, height, rgb, hashlib.sha256(rgb).hexdigest())


WIDE, TALL, OTHER = noise(1, 200, 100), noise(2, 60, 90), noise(3, 200, 100)
ASKED: list[tuple[tuple[Shown, ...], dict[str, Any]]] = [
    (((WIDE, "auto"),), {}),
    (((WIDE, "high"), (TALL, "auto")), {}),
    (((TALL, "auto"), (WIDE, "auto"), (WIDE, "auto")), {}),
    (((OTHER, "auto"),), {"n": 2}),
    (((WIDE, "auto"),), {"num_beams": 3}),
    (((WIDE, "auto"),), {"repetition_penalty": 1.3, "presence_penalty": 0.5}),
    ((), {}),
]


def request(
    rules: PictureRules, tokenizer: HfTokenizer, *shown: Shown, num_after: int = 1, salt: str = "", **sampling: Any
) -> EngineRequest:
    """A prompt of some tokens, with pictures in the places that the service would give them."""
    ids, spans = [5, 6], []
    for picture, detail in shown:
        text = rules.processor.layout(picture.width, picture.height, detail).text
        part = tokenizer.encode(text, add_special_tokens=False)
        places = [place for place, token_id in enumerate(part) if token_id == rules.placeholder_id]
        spans.append(PictureSpan(picture, len(ids) + places[0], places[-1] + 1 - places[0], detail))
        ids += [*part, 9]
    ids += [7] * num_after
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "logprobs": 1, "prompt_logprobs": 1, **sampling})
    return EngineRequest("r", tuple(ids), params, 12, 7, cache_salt=salt, pictures=tuple(spans))


async def answers(engine: Engine, rules: PictureRules, tokenizer: HfTokenizer) -> list[Answer]:
    """All that is asked, at the same time."""
    requests = [request(rules, tokenizer, *shown, **sampling) for shown, sampling in ASKED]
    return list(await asyncio.gather(*(collect(engine, one) for one in requests)))


async def num_cached(engine: Engine, asked: EngineRequest) -> int:
    """The prompt tokens that were found in the prefix cache."""
    return (await collect(engine, asked)).outputs[0].num_cached_tokens


async def check_caching(engine: Engine, rules: PictureRules, tokenizer: HfTokenizer) -> None:
    """Blocks with a picture are found by its pixels, and by the salt."""
    shown = {
        name: request(rules, tokenizer, (picture, "auto"), num_after=140, salt=salt, prompt_logprobs=None)
        for name, picture, salt in [("wide", WIDE, ""), ("other", OTHER, ""), ("salted", WIDE, "s")]
    }
    assert shown["wide"].prompt_ids == shown["other"].prompt_ids
    found = [await num_cached(engine, shown[name]) for name in ("wide", "wide", "other", "salted", "salted", "other")]
    assert [count > 0 for count in found] == [False, True, False, False, True, True]


async def check_endings(engine: Engine, rules: PictureRules, tokenizer: HfTokenizer) -> None:
    """Requests that are given up while their pictures are prepared, or computed, leave the engine as it was.

    A fast machine has a token by the last moment: the request is given up while it decodes then.
    """
    asked = request(rules, tokenizer, (noise(4, 1500, 1200), "auto"), (noise(5, 1500, 1200), "auto"))
    for seconds in (0.0, 0.02, 0.2):
        outputs = engine.generate(asked)
        with suppress(TimeoutError):
            await asyncio.wait_for(anext(aiter(outputs)), seconds)
        await outputs.aclose()
    with pytest.raises(RequestTimeout):
        await collect(engine, msgspec.structs.replace(asked, deadline_s=time.time() + 0.02))
    assert engine.health().num_running + engine.health().num_waiting == 0
    assert (await collect(engine, asked)).tokens[0]


async def ask(built: BuiltEngine, tokenizer: HfTokenizer, *, is_vllm: bool) -> list[Answer]:
    engine, rules = built.engine, built.pictures
    assert rules is not None
    assert engine.capabilities.pictures
    await engine.start()
    try:
        found = await answers(engine, rules, tokenizer)
        if is_vllm:
            with pytest.raises(UnsupportedFeature, match=r"picture 2 .*detail low.* 41 tokens .*auto or high"):
                await collect(engine, request(rules, tokenizer, (WIDE, "auto"), (WIDE, "low")))
            await check_caching(engine, rules, tokenizer)
            await check_endings(engine, rules, tokenizer)
            assert await answers(engine, rules, tokenizer) == found
            assert (engine.stats().num_pictures or 0) > 2 * sum(len(shown) for shown, _ in ASKED)
        return found
    finally:
        await engine.shutdown(0.0)


def test_pictures_are_computed_as_on_the_built_in_engine() -> None:
    tokenizer = load_tokenizer(MODEL)
    setup = EngineSetup(MODEL, OPTIONS, extra={"enforce_eager": "true"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of vLLM and torch, which they give themselves
        built = factory.load(setup).build(engine_tools(tokenizer), 2**30)
        theirs = asyncio.run(ask(built, tokenizer, is_vllm=True))
    rolling = rolling_factory.load(replace(setup, extra={})).build(engine_tools(tokenizer), 2**30)
    ours = asyncio.run(ask(rolling, tokenizer, is_vllm=False))
    for one, other in zip(theirs, ours, strict=True):
        assert one.tokens == other.tokens
        for sequence, expected in zip(one.sequences, other.sequences, strict=True):
            assert sequence.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert [told and told.logprob for told in one.prompt_logprobs or ()] == [
            told and pytest.approx(told.logprob, abs=1e-3) for told in other.prompt_logprobs or ()
        ]
    assert ours[0].tokens != ours[3].tokens or ours[0].prompt_logprobs != ours[3].prompt_logprobs, "pictures matter"
