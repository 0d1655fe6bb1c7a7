"""Answers that go on beyond the context, on the real service and engine, in the APIs that have words for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from dragoman.server.generation.prepare import ServiceLimits
from tests.support.byte_tokenizer import BOS_ID, ByteTokenizer
from tests.support.small_server import LetterRunner, Parts, SmallServer, small_server

CONTEXT = 32
TEXT = "Once upon"
PROMPT = [BOS_ID, *TEXT.encode()]
SHIFTING = ServiceLimits(shifts_context=True)
NUM_BEFORE = CONTEXT - len(PROMPT)  # tokens of the answer that fit beside the prompt


def parts(limits: ServiceLimits = SHIFTING) -> Parts:
    runner = LetterRunner(max_model_len=CONTEXT)
    return Parts(runner, tokenizer=ByteTokenizer(adds_bos=True), limits=limits)


async def ask(server: SmallServer, path: str, **body: Any) -> tuple[dict[str, Any], str]:
    """A whole answer, or a refusal; and what was named as without effect."""
    call = await server.call(path, body).ended()
    return json.loads(call.body), call.headers.get("x-dragoman-ignored", "")


async def complete(server: SmallServer, prompt: Any = TEXT, **body: Any) -> dict[str, Any]:
    """llama.cpp's answer; nothing of the body is without effect."""
    told, ignored = await ask(server, "/completion", prompt=prompt, temperature=0, return_tokens=True, **body)
    assert ignored == ""
    return told


async def check_llamacpp() -> None:
    async with small_server(parts()) as server:
        for n_keep, n_discard, kept in (
            (0, 0, [0, *range(16, 32)]),  # the token that texts begin with stays; of 30 others half go
            (3, 0, [*range(4), *range(17, 32)]),
            (3, 5, [*range(4), *range(9, 32)]),
            (-1, 0, [*range(10), *range(20, 32)]),
        ):
            told = await complete(server, n_predict=50, n_keep=n_keep, n_discard=n_discard)
            assert (told["tokens_evaluated"], told["tokens_predicted"], told["stop_type"]) == (10, 50, "limit")
            assert (told["truncated"], len(told["tokens"])) == (True, 50)
            assert told["timings"]["prompt_n"] + told["timings"]["cache_n"] == 10
            settings = told["generation_settings"]
            assert (settings["n_keep"], settings["n_discard"]) == (n_keep, n_discard)
            read = [*PROMPT, *told["tokens"]][:CONTEXT]
            again = await complete(server, [read[place] for place in kept], n_predict=CONTEXT - len(kept))
            assert again["tokens"] == told["tokens"][NUM_BEFORE : NUM_BEFORE + CONTEXT - len(kept)]
            assert not again["truncated"]
        fitting = await complete(server, n_predict=NUM_BEFORE)
        assert (fitting["tokens_predicted"], fitting["truncated"]) == (NUM_BEFORE, False)
        endless = await complete(server)
        assert (endless["tokens_predicted"], endless["truncated"]) == (NUM_BEFORE, True)
        long, _ = await ask(server, "/completion", prompt="x" * CONTEXT, n_predict=5)
        assert long["error"]["type"] == "exceed_context_size_error"


def test_llama_cpps_fields_say_what_stays() -> None:
    asyncio.run(check_llamacpp())


async def check_others() -> None:
    async with small_server(parts()) as server:
        expected = (await complete(server, n_predict=50, n_keep=3))["content"]
        body = {"prompt": TEXT, "max_tokens": 50, "temperature": 0, "n_keep": 3}
        told, ignored = await ask(server, "/v1/completions", model="fake", **body)
        assert (told["choices"][0]["text"], told["choices"][0]["finish_reason"]) == (expected, "length")
        assert (told["usage"]["completion_tokens"], ignored) == (50, "")
        stopped, _ = await ask(server, "/v1/completions", model="fake", **body, stop=expected[40:44])
        assert stopped["choices"][0]["text"] == expected[: expected.index(expected[40:44])]
        beams, _ = await ask(server, "/v1/completions", model="fake", **{**body, "use_beam_search": True, "best_of": 2})
        assert "maximum context length is 32" in beams["error"]["message"]
        options = {"num_predict": 50, "temperature": 0, "num_keep": 3}
        body = {"model": "fake", "prompt": TEXT, "raw": True, "stream": False}
        told, ignored = await ask(server, "/api/generate", **body, options=options, shift=True)
        assert (told["response"], told["done_reason"], ignored) == (expected, "length", "")
        told, ignored = await ask(server, "/api/generate", **body, options=options, shift=False)
        assert (told["response"], ignored) == (expected[:NUM_BEFORE], "")
        kept = (await complete(server, n_predict=50, n_keep=4))["content"]
        del options["num_keep"]
        assert (await ask(server, "/api/generate", **body, options=options))[0]["response"] == kept != expected


def test_other_apis_go_on_as_well() -> None:
    asyncio.run(check_others())


async def check_bound() -> None:
    for most in (NUM_BEFORE - 1, 50):
        async with small_server(parts(replace(SHIFTING, max_completion_tokens=most))) as server:
            told = await complete(server)
            assert (told["tokens_predicted"], told["truncated"]) == (most, most == 50)


def test_answers_without_a_limit_end_at_the_operators() -> None:
    asyncio.run(check_bound())


async def check_off() -> None:
    async with small_server(parts(ServiceLimits())) as server:
        told, ignored = await ask(server, "/completion", prompt=TEXT, n_predict=50, n_keep=3, n_discard=0)
        assert (told["tokens_predicted"], told["truncated"], ignored) == (NUM_BEFORE, True, "n_keep")
        told, _ = await ask(server, "/v1/completions", model="fake", prompt=TEXT, max_tokens=50)
        assert "maximum context length is 32" in told["error"]["message"]


def test_a_server_that_does_not_shift_says_so() -> None:
    asyncio.run(check_off())
