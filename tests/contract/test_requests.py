"""What requests get from an engine: tokens, ends, log-probabilities, several sequences, limits and errors."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from dragoman.errors import CapacityError, InvalidParameter, InvalidRequest, ServerError, UnsupportedFeature
from dragoman.types import EngineRequest, FinishReason, Grammar, Picture, PictureSpan, StopStrings
from tests.contract.asking import (
    Answer,
    asking,
    assert_same,
    collect,
    collect_if,
    first_output,
    is_able,
    run,
    running,
)
from tests.contract.engines import MAX_MODEL_LEN, EngineUnderTest
from tests.support.tables import table

VARIED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "top_p": 0.9, "seed": 4, "n": 2, "logprobs": 2},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"logit_bias": {5: 4.0}, "logprobs": 0},
    {"prompt_logprobs": 1},
]


# --- determinism ------------------------------------------------------------------------------------------------------


def test_requests_get_the_same_together_as_alone(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            requests = [asking(under_test, 12, **values) for values in VARIED]
            requests = [request for request in requests if is_able(engine, request)]
            together = await asyncio.gather(*(collect(engine, request) for request in requests))
            for request, answer in zip(requests, together, strict=True):
                assert_same(await collect(engine, request), answer, under_test)

    run(test())


def test_another_engine_of_the_kind_gives_the_same_and_another_seed_does_not(under_test: EngineUnderTest) -> None:
    async def answer(seed: int) -> Answer:
        async with running(under_test) as engine:
            return await collect(engine, asking(under_test, 24, temperature=under_test.hottest, seed=seed))

    async def test() -> None:
        first = await answer(5)
        assert await answer(5) == first
        assert (await answer(6)).tokens != first.tokens

    run(test())


@table("form", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_a_request_that_was_written_and_read_is_answered_like_the_original(
    form: Any, under_test: EngineUnderTest
) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            for values in VARIED:
                request = asking(under_test, **values)
                again = form.decode(form.encode(request), type=EngineRequest)
                assert again == request
                if is_able(engine, request):
                    assert_same(await collect(engine, again), await collect(engine, request), under_test)

    run(test())


# --- ends -------------------------------------------------------------------------------------------------------------


async def plain(engine: Any, under_test: EngineUnderTest) -> list[int]:
    """What greedy decoding gives if nothing ends it."""
    answer = await collect(engine, asking(under_test, 20))
    assert answer.reasons == [FinishReason.LENGTH]
    assert len(answer.tokens[0]) == 20
    return answer.tokens[0]


@table("kind", ["eos", "stop token", "both"])
def test_end_tokens_end_a_sequence_and_belong_to_it(kind: str, under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            tokens = await plain(engine, under_test)
            end = tokens[6]
            request = asking(
                under_test,
                20,
                ignore_eos=kind == "stop token",
                eos_token_ids=frozenset() if kind == "stop token" else frozenset({end}),
                stop_token_ids=() if kind == "eos" else (end,),
            )
            answer = await collect(engine, request)
            assert answer.tokens == [tokens[: tokens.index(end) + 1]]
            reason = FinishReason.STOP_TOKEN if kind == "stop token" else FinishReason.EOS
            assert answer.reasons == [reason]

    run(test())


def test_ends_do_not_come_before_the_least_number_of_tokens(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            tokens = await plain(engine, under_test)
            ends = frozenset(tokens[:3])
            request = asking(under_test, 20, ignore_eos=False, eos_token_ids=ends, min_tokens=5)
            answer = await collect_if(is_able(engine, request), engine, request)
            if answer is None:
                return
            (sequence,) = answer.sequences
            assert len(sequence.token_ids) >= 5
            assert not ends & set(sequence.token_ids[:4])

    run(test())


def test_stop_strings_end_ranked_sequences_with_the_token_that_completes_them(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            tokens = await plain(engine, under_test)
            stop = under_test.text_of(tokens[3:5])
            able = engine.capabilities
            ranked = asking(under_test, 20, best_of=2, stop=StopStrings((stop,)))
            answer = await collect_if(able.best_of and able.stop_strings, engine, ranked)
            if answer is None:
                return
            assert answer.reasons == [FinishReason.STOP_STRING]
            (got,) = answer.tokens
            assert got == tokens[: len(got)]
            assert stop in under_test.text_of(got)
            assert stop not in under_test.text_of(got[:-1])
            held = msgspec.structs.replace(ranked, sampling=_with(ranked, min_tokens=8))
            later = await collect_if(is_able(engine, held), engine, held)
            assert later is None or len(later.tokens[0]) >= 8

    run(test())


def _with(request: EngineRequest, **sampling: Any) -> Any:
    return msgspec.structs.replace(request.sampling, **sampling)


def test_nothing_is_generated_where_only_the_prompt_is_wanted(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            answer = await collect(engine, asking(under_test, 0, n=2))
            assert answer.tokens == [[], []]
            assert answer.reasons == [FinishReason.LENGTH] * 2

    run(test())


# --- log-probabilities ------------------------------------------------------------------------------------------------


@table("num_top", [0, 1, 4])
def test_log_probabilities_come_with_every_token(num_top: int, under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            quiet = await collect(engine, asking(under_test))
            assert all(output.logprobs is None for output in quiet.outputs)
            (sequence,) = (await collect(engine, asking(under_test, logprobs=num_top))).sequences
            assert sequence.token_ids == quiet.tokens[0]
            assert len(sequence.logprobs) == len(sequence.tops) == len(sequence.token_ids)
            assert all(logprob <= 0 for logprob in sequence.logprobs)
            assert sequence.cumulative_logprob == pytest.approx(sum(sequence.logprobs))
            for token_id, logprob, top in zip(sequence.token_ids, sequence.logprobs, sequence.tops, strict=True):
                assert len(top) == num_top
                assert [one.logprob for one in top] == sorted((one.logprob for one in top), reverse=True)
                if top:
                    assert (top[0].token_id, top[0].logprob) == (token_id, logprob)

    run(test())


def test_the_prompts_log_probabilities_come_once_with_the_first_output(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            for max_tokens in (0, 6):
                request = asking(under_test, max_tokens, prompt_logprobs=2)
                answer = await collect_if(engine.capabilities.prompt_logprobs, engine, request)
                if answer is None:
                    return
                assert answer.prompt_logprobs is not None
                first, *others = answer.prompt_logprobs
                assert first is None
                assert len(others) == len(under_test.prompt) - 1
                assert all(one is not None and one.logprob <= 0 and len(one.top) == 2 for one in others)

    run(test())


# --- several sequences ------------------------------------------------------------------------------------------------


def test_several_sequences_are_drawn_apart_and_greedy_ones_are_the_same(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test, max_num_seqs=2) as engine:
            drawn = await collect(engine, asking(under_test, 16, n=3, temperature=under_test.hottest))
            assert len({tuple(tokens) for tokens in drawn.tokens}) == 3
            greedy = await collect(engine, asking(under_test, 16, n=3))
            assert len({tuple(tokens) for tokens in greedy.tokens}) == 1

    run(test())


def test_the_best_of_several_come_whole_and_best_first(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            request = asking(under_test, 10, n=2, best_of=4, temperature=1.0, logprobs=0)
            answer = await collect_if(engine.capabilities.best_of, engine, request)
            if answer is None:
                return
            assert len(answer.outputs) == 2
            scores = [sequence.cumulative_logprob for sequence in answer.sequences]
            assert None not in scores
            assert scores == [pytest.approx(sum(sequence.logprobs)) for sequence in answer.sequences]
            assert scores[0] >= scores[1]  # type: ignore[operator]

    run(test())


def test_beams_come_whole_and_are_no_worse_than_greedy_decoding_allows(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            request = asking(under_test, 8, num_beams=4, n=2, logprobs=0)
            answer = await collect_if(engine.capabilities.beam_search, engine, request)
            if answer is None:
                return
            assert len(answer.outputs) == 2
            assert answer.tokens[0] != answer.tokens[1]
            first, second = (sequence.cumulative_logprob for sequence in answer.sequences)
            assert first is not None
            assert second is not None
            assert first >= second  # of the same length: nothing else counts
            assert await collect(engine, request) == answer

    run(test())


# --- grammars ---------------------------------------------------------------------------------------------------------


@table("values", [{}, {"n": 3, "temperature": 1.0}, {"num_beams": 2}], ids=["one", "several", "beams"])
def test_a_grammar_is_followed_to_its_end(values: dict[str, Any], under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            grammar = Grammar("regex", "[a-f]{3}x?[a-f]{3}")
            request = asking(under_test, 20, ignore_eos=False, grammar=grammar, **values)
            answer = await collect_if(is_able(engine, request), engine, request)
            if answer is None:
                return
            for sequence in answer.sequences:
                assert re.fullmatch(grammar.source, under_test.text_of(sequence.token_ids))
                assert sequence.reason is FinishReason.EOS

    run(test())


def test_a_grammar_that_does_not_compile_is_that_requests_error(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            good, bad = await asyncio.gather(
                collect(engine, asking(under_test)),
                collect(engine, asking(under_test, grammar=Grammar("regex", "a["))),
                return_exceptions=True,
            )
            assert isinstance(bad, InvalidRequest)
            assert good == await collect(engine, asking(under_test))

    run(test())


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_sequence_may_fill_the_context_and_not_a_token_more(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            room = engine.capabilities.max_model_len - len(under_test.prompt)
            with pytest.raises(CapacityError, match=str(engine.capabilities.max_model_len)):
                await collect(engine, asking(under_test, room + 1))
            prompt = (under_test.prompt * MAX_MODEL_LEN)[: engine.capabilities.max_model_len - 3]
            answer = await collect(engine, asking(under_test, 3, prompt_ids=prompt))
            assert [len(tokens) for tokens in answer.tokens] == [3]
            with pytest.raises(CapacityError):
                await collect(engine, asking(under_test, 4, prompt_ids=prompt))

    run(test())


WRONG: dict[str, dict[str, Any]] = {
    "no prompt": {"prompt_ids": ()},
    "too long": {"max_tokens": 10**6},
    "too many log-probabilities": {"logprobs": 10**6 + 1},
    "unknown adapter": {"adapter": "nobody-has-this"},
}


@table("name", WRONG)
def test_a_wrong_request_is_refused_alone(name: str, under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            expected = await collect(engine, asking(under_test, 30))
            values = dict(WRONG[name])
            wrong = asking(under_test, values.pop("max_tokens", 8), **values)
            good, bad = await asyncio.gather(
                collect(engine, asking(under_test, 30)), collect(engine, wrong), return_exceptions=True
            )
            assert isinstance(bad, CapacityError | InvalidRequest | InvalidParameter)
            assert "\n" not in bad.message
            assert isinstance(bad, ServerError)
            assert good == expected
            assert engine.health().is_alive

    run(test())


def test_two_requests_of_the_same_id_do_not_meet(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            first, second = asking(under_test, 12), asking(under_test, 7)
            answers = await asyncio.gather(collect(engine, first), collect(engine, second))
            assert [len(answer.tokens[0]) for answer in answers] == [12, 7]

    run(test())


# --- adapters, salts, priorities --------------------------------------------------------------------------------------


def test_every_adapter_that_the_engine_names_can_be_asked_for(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            for name in engine.capabilities.adapters:
                assert (await collect(engine, asking(under_test, adapter=name))).tokens[0]

    run(test())


def test_prompts_are_shared_within_a_salt_and_an_owner_only_and_answers_do_not_change(
    under_test: EngineUnderTest,
) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            prompt = (under_test.prompt * 50)[:100]
            answers = []
            for salt, owner in (("a", ""), ("b", ""), ("a", "x"), ("a", "y"), ("a", "x")):
                request = asking(under_test, prompt_ids=prompt, cache_salt=salt, cache_owner=owner)
                answer = await collect_if(engine.capabilities.cache_salt, engine, request)
                if answer is None:
                    return
                answers.append(answer)
            assert all(answer == answers[0] for answer in answers)
            cached = [answer.outputs[0].num_cached_tokens for answer in answers]
            assert cached[:4] == [0, 0, 0, 0]

    run(test())


def test_how_long_a_prompt_is_kept_and_which_key_it_has_change_no_answer(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            plain = await collect(engine, asking(under_test))
            for keep_s in (0.0, 300.0):
                request = asking(under_test, cache_keep_s=keep_s, cache_key="a conversation")
                answer = await collect_if(not keep_s or engine.capabilities.cache_keep, engine, request)
                assert answer is None or answer.tokens == plain.tokens

    run(test())


def test_those_of_higher_priority_overtake_others_who_wait(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test, max_num_seqs=1) as engine:
            if not engine.capabilities.priority:
                await collect_if(False, engine, asking(under_test, priority=1))
                return
            order: list[int] = []

            async def note(priority: int) -> None:
                await collect(engine, asking(under_test, 5, priority=priority))
                order.append(priority)

            running_one = engine.generate(asking(under_test, 150))
            await first_output(running_one)
            await asyncio.gather(*(note(priority) for priority in (0, -1, 2, 1)))
            assert order == [2, 1, 0, -1]
            await running_one.aclose()

    run(test())


# --- pictures ---------------------------------------------------------------------------------------------------------


def _showing(under_test: EngineUnderTest, *pictures: Picture) -> EngineRequest:
    """A request whose prompt has the pictures behind its first token, a token between them."""
    prompt, spans = under_test.prompt[:1], []
    for picture in pictures:
        tokens = under_test.stands_for(picture)
        spans.append(PictureSpan(picture, len(prompt), len(tokens)))
        prompt += tokens + under_test.prompt[:1]
    return asking(
        under_test, 12, prompt_ids=prompt + under_test.prompt[1:], pictures=tuple(spans), logprobs=0, prompt_logprobs=0
    )


def test_pictures_are_part_of_the_prompt_or_refused_by_name(under_test: EngineUnderTest) -> None:
    white, black = (Picture(28, 28, bytes([grey]) * 28 * 28 * 3, f"{grey:02x}") for grey in (255, 0))

    async def test() -> None:
        async with running(under_test) as engine:
            requests = [_showing(under_test, *shown) for shown in [(white, black), (black, white), (white, black)]]
            if not engine.capabilities.pictures:
                shown = msgspec.structs.replace(requests[0], sampling=_with(requests[0], prompt_logprobs=None))
                with pytest.raises(UnsupportedFeature, match="pictures 2 is not supported by this engine"):
                    await collect(engine, shown)
                return
            first, second, third = await asyncio.gather(*(collect(engine, request) for request in requests))
            assert first == third
            assert first.prompt_logprobs != second.prompt_logprobs
            assert await collect(engine, requests[0]) == first

    run(test())
