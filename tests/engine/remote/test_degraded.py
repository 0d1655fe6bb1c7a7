"""Over a server that tells only texts: the texts are the server's, and what cannot be had is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.engine.remote.answer import Retokeniser
from dragoman.errors import EngineFailed, InvalidRequest, UnsupportedFeature
from dragoman.types import FinishReason, RepetitionDetection
from tests.contract.asking import run
from tests.engine.remote.asking import PROMPT, TOKENIZER, load, outputs, remote, request, text
from tests.support.fake_upstream import FakeUpstream, listening
from tests.support.patience import until

ODD = ("  two  blanks\n\n", "ünïcödé ", "日本", "\U0001f409", "\ttab", "</s> is <unk> text", "{}[]\\\"'", " fi\u0301n")


def test_the_text_is_the_upstreams_to_the_last_character() -> None:
    upstream = FakeUpstream(pieces=ODD)

    async def test() -> None:
        async with remote(upstream) as engine:
            assert await text(engine, request(max_tokens=40)) == "".join(ODD)
            (body,) = upstream.bodies
            assert body["prompt"] == PROMPT
            assert "return_token_ids" not in body

    run(test())


def test_why_it_ended_is_told() -> None:
    async def test() -> None:
        async with remote(FakeUpstream()) as engine:
            assert (await outputs(engine, request(max_tokens=3)))[-1].finish_reason is FinishReason.LENGTH
            assert (await outputs(engine, request(max_tokens=9)))[-1].finish_reason is FinishReason.EOS

    run(test())


REFUSED: dict[str, Any] = {
    "logprobs": 0,
    "prompt_logprobs": 0,
    "top_k": 4,
    "min_p": 0.5,
    "typical_p": 0.5,
    "repetition_penalty": 1.5,
    "min_tokens": 2,
    "ignore_eos": True,
    "bad_words": ("x",),
    "allowed_token_ids": (5,),
    "stop_token_ids": (5,),
    "thinking_token_budget": 4,
    "repetition_detection": RepetitionDetection(4, 1, 3),
}


def test_what_the_upstream_does_not_know_is_refused_by_name_before_it_is_asked() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            for name, value in REFUSED.items():
                with pytest.raises(UnsupportedFeature, match=f"^{name} ") as caught:
                    await outputs(engine, request(**{name: value}))
                assert caught.value.param == name
            with pytest.raises(UnsupportedFeature, match=r"^best_of "):
                await outputs(engine, request(n=1, best_of=2))
            assert not upstream.bodies
            await outputs(engine, request(presence_penalty=0.5, logit_bias={5: 1.0}))
            assert upstream.bodies[0]["presence_penalty"] == 0.5
            assert upstream.bodies[0]["logit_bias"] == {"5": 1.0}

    run(test())


def test_several_sequences_are_requests_of_their_own_with_seeds_that_follow() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            asked = request(n=3, temperature=1.0)
            assert [await text(engine, asked, index) for index in range(3)] == [
                f"{seed}one two three" for seed in (5, 6, 7)
            ]
            assert sorted(body["seed"] for body in upstream.bodies) == sorted([5, 6, 7] * 3)
            assert all("n" not in body for body in upstream.bodies)

    run(test())


def test_tokens_that_no_text_stands_for_are_refused() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            single = TOKENIZER.encode("deep")
            letters = tuple(token for letter in "deep" for token in TOKENIZER.encode(letter))
            assert list(letters) != single
            with pytest.raises(InvalidRequest, match="prompt cannot be sent as text"):
                await outputs(engine, request(prompt_ids=letters))
            assert not upstream.bodies

    run(test())


@pytest.mark.parametrize("written", [PROMPT, " leading", "a\n\nb", "日本 \U0001f409", "<unk> as text"])
def test_prompts_survive_the_way_through_text(written: str) -> None:
    ids = tuple(TOKENIZER.encode(written))
    assert tuple(TOKENIZER.encode(Retokeniser(TOKENIZER).prompt_text(ids))) == ids


def test_control_tokens_in_an_answer_are_written_as_text() -> None:
    ids = Retokeniser(TOKENIZER).ids("a </s> b")
    assert not any(map(TOKENIZER.is_special, ids))
    assert b"".join(map(TOKENIZER.token_bytes, ids)) == b"a </s> b"


def test_token_ids_may_come_with_log_probabilities_only() -> None:
    ids = TOKENIZER.encode_continuation("one two three")
    pieces = [TOKENIZER.token_bytes(token).decode() for token in ids]
    upstream = FakeUpstream(pieces, "llamacpp", accepts=None, takes_ids=True, token_ids=ids, logprobs="content")

    async def test() -> None:
        async with remote(upstream) as engine:
            found = await outputs(engine, request(max_tokens=len(ids)))
            assert [token for output in found for token in output.token_ids] == ids
            assert all(output.logprobs is None for output in found)
            (body,) = upstream.bodies
            assert body["prompt"] == TOKENIZER.encode(PROMPT)
            told = await outputs(engine, request(max_tokens=len(ids), logprobs=1))
            assert [output.logprobs for output in told if output.token_ids] == [[-0.5]] * len(ids)
            assert [output.top_logprobs[0][0].token_id for output in told if output.top_logprobs] == ids

    run(test())


def test_a_stop_token_that_the_upstream_cannot_be_told_ends_the_sequence_here() -> None:
    ids = TOKENIZER.encode_continuation("one two three")
    pieces = [TOKENIZER.token_bytes(token).decode() for token in ids]
    upstream = FakeUpstream(pieces, "llamacpp", accepts=None, takes_ids=True, token_ids=ids, logprobs="content")

    async def test() -> None:
        async with remote(upstream) as engine:
            upstream.hangs_after = 2
            found = await outputs(engine, request(max_tokens=40, stop_token_ids=(ids[1],)))
            assert [token for output in found for token in output.token_ids] == ids[:2]
            assert found[-1].finish_reason is FinishReason.STOP_TOKEN
            await until(lambda: upstream.num_running == 0)  # the connection is closed, although there was more to come

    run(test())


def test_the_poorest_of_several_servers_decides_what_can_be_asked() -> None:
    ids = TOKENIZER.encode_continuation("one two three")
    pieces = [TOKENIZER.token_bytes(token).decode() for token in ids]
    rich = FakeUpstream(pieces, "vllm", accepts=None, takes_ids=True, token_ids=ids, logprobs="ids")
    poor = FakeUpstream()

    async def test() -> None:
        async with listening(rich, poor):
            alone = (await load(rich.url)).common
            assert (alone.takes_ids, alone.gives_ids) == (True, True)
            assert alone.capabilities.max_logprobs == 20
            both = (await load(rich.url, poor.url)).common
            assert (both.takes_ids, both.gives_ids) == (False, False)
            assert {"logprobs", "top_k", "stop_token_ids"} <= both.capabilities.unsupported
            assert both.capabilities == (await load(poor.url)).common.capabilities

    run(test())


def test_tokens_within_a_character_that_are_not_told_are_found_and_their_log_probabilities_are_not() -> None:
    pieces = ["one", "\U0001f409", " two"]
    ids = [TOKENIZER.encode_continuation(piece) for piece in pieces]
    assert len(ids[1]) > 1
    upstream = FakeUpstream(
        pieces, "llamacpp", accepts=None, takes_ids=True, token_ids=[one[-1] for one in ids], logprobs="content"
    )

    async def test() -> None:
        async with remote(upstream) as engine:
            found = await outputs(engine, request(max_tokens=40))
            assert [token for output in found for token in output.token_ids] == [token for one in ids for token in one]
            with pytest.raises(EngineFailed, match="returned 1 log-probabilities"):
                await outputs(engine, request(max_tokens=40, logprobs=0))

    run(test())


def test_the_last_token_that_was_asked_for_tells_that_it_is_the_last() -> None:
    ids = TOKENIZER.encode_continuation("one two three")
    pieces = [TOKENIZER.token_bytes(token).decode() for token in ids]
    upstream = FakeUpstream(pieces, "llamacpp", accepts=None, takes_ids=True, token_ids=ids, logprobs="content")

    async def test() -> None:
        async with remote(upstream) as engine:
            last = (await outputs(engine, request(max_tokens=2)))[-1]
            assert (last.token_ids, last.finish_reason) == ([ids[1]], FinishReason.LENGTH)

    run(test())
