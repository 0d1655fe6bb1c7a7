"""What the engine finds out of its upstreams, and what it makes of servers and options that do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.compose import engine_tools
from dragoman.engine.factory import EngineOptionError
from dragoman.engine.remote import fleet
from dragoman.engine.remote.factory import factory
from dragoman.errors import UnsupportedFeature
from dragoman.types import FinishReason, FurtherSampling, RepetitionDetection, TraceContext
from tests.contract.asking import run
from tests.engine.remote.asking import PROMPT, TOKENIZER, load, outputs, remote, request, setup, text
from tests.support.fake_upstream import OPENAI, FakeUpstream, listening
from tests.support.patience import until

IDS = TOKENIZER.encode_continuation("one two three")
PIECES = [TOKENIZER.token_bytes(token).decode() for token in IDS]


def rich(**values: object) -> FakeUpstream:
    """Like vLLM, as far as tokens go."""
    known = {"pieces": PIECES, "owner": "vllm", "accepts": None, "takes_ids": True, "token_ids": IDS, "logprobs": "ids"}
    return FakeUpstream(**(known | values))  # type: ignore[arg-type]


def rich_fields() -> frozenset[str]:
    """What such a server takes of requests for its tokens."""
    return OPENAI | {
        "top_k", "min_p", "repetition_penalty", "frequency_penalty", "stop_token_ids", "return_token_ids", "logprobs",
        "return_tokens_as_token_ids", "logit_bias", "min_tokens", "ignore_eos",
    }  # fmt: skip


def test_a_server_that_names_its_tokens_is_asked_for_tokens_only() -> None:
    upstream = rich()

    async def test() -> None:
        async with remote(upstream) as engine:
            found = await outputs(engine, request(max_tokens=len(IDS), logprobs=1))
            assert [token for output in found for token in output.token_ids] == IDS
            (body,) = upstream.bodies
            assert body["prompt"] == TOKENIZER.encode(PROMPT)
            assert engine.capabilities.max_logprobs == 20
            assert engine.capabilities.max_model_len == 64

    run(test())


def test_a_parameter_that_a_release_refuses_is_refused_by_name_from_then_on() -> None:
    async def test() -> None:
        upstream = rich(accepts=rich_fields())
        async with listening(upstream):
            able = (await load(upstream.url)).common.capabilities
            refused = {"bad_words", "allowed_token_ids", "thinking_token_budget", "repetition_detection"}
            refused |= {"typical_p", "post_sampling_probs", "infill"}
            assert able.unsupported == {*refused, *FurtherSampling.__struct_fields__}
            assert able.best_of

    run(test())


def test_the_server_ends_reasoning_and_loops_where_it_can() -> None:
    upstream = rich(ended="repetition")

    async def test() -> None:
        async with remote(upstream) as engine:
            rule = RepetitionDetection(4, 1, 3)
            found = await outputs(engine, request(max_tokens=40, thinking_token_budget=7, repetition_detection=rule))
            (body,) = upstream.bodies
            assert body["thinking_token_budget"] == 7
            assert body["repetition_detection"] == {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3}
            assert found[-1].finish_reason is FinishReason.REPETITION

    run(test())


def test_grammars_that_are_ignored_are_none() -> None:
    async def test() -> None:
        upstream = rich()  # it takes everything, and says what it always says
        async with listening(upstream):
            assert not (await load(upstream.url)).common.capabilities.grammar

    run(test())


def test_a_key_goes_to_the_servers_and_is_shown_to_nobody() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with listening(upstream):
            loaded = await load(upstream.url, secrets={"upstream_api_key": "hush"})
            assert all(headers["authorization"] == "Bearer hush" for headers in upstream.headers)
            assert "hush" not in repr(loaded)
            assert "hush" not in repr(setup(upstream.url, secrets={"upstream_api_key": "hush"}))

    run(test())


def test_each_request_can_be_traced() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            await outputs(engine, request(request_id="this-one"))
            await outputs(engine, request())
            first, second = upstream.headers
            assert first["x-request-id"] == "this-one"
            assert len(first["traceparent"].split("-")[1]) == 32
            assert first["traceparent"] != second["traceparent"]

    run(test())


def test_a_clients_trace_is_continued_in_each_request_upstream() -> None:
    upstream = FakeUpstream()
    trace = TraceContext("0af7651916cd43dd8448eb211c80319c", is_sampled=True, state="congo=t61rcWkgMzE")

    async def test() -> None:
        async with remote(upstream) as engine:
            await outputs(engine, request(n=2, temperature=1.0, trace=trace))
            parents = [headers["traceparent"].split("-") for headers in upstream.headers]
            assert [(version, trace_id, flags) for version, trace_id, _, flags in parents] == [
                ("00", trace.trace_id, "01")
            ] * 2
            assert len({span for _, _, span, _ in parents}) == 2
            assert all(headers["tracestate"] == trace.state for headers in upstream.headers)
            upstream.forget()
            await outputs(engine, request(trace=TraceContext(trace.trace_id)))
            (headers,) = upstream.headers
            assert headers["traceparent"].endswith("-00")
            assert "tracestate" not in headers

    run(test())


def test_a_salt_goes_with_the_prompt_wherever_it_is_sent() -> None:
    upstream = rich()

    async def test() -> None:
        async with remote(upstream) as engine:
            await outputs(engine, request(prompt_logprobs=1, cache_salt="mine"))
            await outputs(engine, request())
            assert [body.get("cache_salt") for body in upstream.bodies] == ["mine", "mine", None]
            assert ["prompt_logprobs" in body for body in upstream.bodies] == [True, False, False]

    run(test())


def test_the_span_that_is_recorded_for_a_call_is_the_parent_of_what_servers_record() -> None:
    """Any other parent would be known to nobody, and their spans would hang in the air."""
    upstream = FakeUpstream()
    trace = TraceContext("0af7651916cd43dd8448eb211c80319c", is_sampled=True, span_id="b7ad6b7169203331")

    async def test() -> None:
        async with remote(upstream) as engine:
            await outputs(engine, request(n=2, temperature=1.0, trace=trace))
            assert [headers["traceparent"] for headers in upstream.headers] == [
                f"00-{trace.trace_id}-{trace.span_id}-01"
            ] * 2

    run(test())


def test_salt_and_priority_go_to_servers_that_go_by_them() -> None:
    behind = rich(owner="dragoman", max_model_len=64)

    async def test() -> None:
        async with remote(behind) as engine:
            await outputs(engine, request(cache_salt="mine", priority=-3))
            await outputs(engine, request(prompt_logprobs=1, priority=2))
            assert [body.get("cache_salt") for body in behind.bodies] == ["mine", None, None]
            assert [body.get("priority") for body in behind.bodies] == [3, -2, -2]

    run(test())


def test_a_priority_that_may_be_ignored_is_refused_by_name() -> None:
    ignoring, refusing = rich(), rich(owner="dragoman", accepts=frozenset({*rich_fields(), "cache_salt"}))

    async def test() -> None:
        for upstream in (ignoring, refusing):
            async with remote(upstream) as engine:
                assert engine.capabilities.cache_salt
                with pytest.raises(UnsupportedFeature, match=r"^priority 3 is not supported"):
                    await outputs(engine, request(priority=-3))
        async with listening(ignoring, refusing, poor := FakeUpstream()):
            assert (await load(ignoring.url, refusing.url)).common.capabilities.cache_salt
            assert not (await load(ignoring.url, poor.url)).common.capabilities.cache_salt

    run(test())


def test_of_those_that_wait_here_the_highest_priority_is_sent_first() -> None:
    behind = rich(owner="dragoman")

    async def test() -> None:
        async with remote(behind, max_num_seqs=1) as engine:
            behind.hangs_after = 0
            first = asyncio.create_task(outputs(engine, request()))
            await until(lambda: behind.num_hanging == 1)
            waiting = [asyncio.create_task(outputs(engine, request(priority=value))) for value in (0, -1, 2, 2, 1)]
            await until(lambda: engine.health().num_waiting == len(waiting))
            waiting[3].cancel()
            behind.hangs_after = None
            first.cancel()
            await asyncio.gather(first, *waiting, return_exceptions=True)
            assert [body.get("priority", 0) for body in behind.bodies] == [0, -2, -1, 0, 1]

    run(test())


@pytest.mark.parametrize("max_tokens", [2, 9], ids=["full length", "its own end"])
def test_prompt_tokens_that_the_upstream_had_cached_are_told_once(max_tokens: int) -> None:
    upstream = rich(num_cached_tokens=3)

    async def test() -> None:
        async with remote(upstream) as engine:
            found = await outputs(engine, request(max_tokens=max_tokens, n=2, logprobs=0))
            assert sum(output.num_cached_tokens for output in found) == 3
            assert all(body["stream_options"] == {"include_usage": True} for body in upstream.bodies)
            upstream.num_cached_tokens = None
            assert all(not output.num_cached_tokens for output in await outputs(engine, request()))

    run(test())


def test_a_server_that_has_no_counts_to_tell_is_not_asked_for_them() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            await outputs(engine, request())
            assert "stream_options" not in upstream.bodies[0]

    run(test())


def test_the_context_is_what_llama_cpp_says_of_one_sequence() -> None:
    upstream = FakeUpstream(max_model_len=None, meta={"n_ctx": 50, "n_ctx_train": 2048})

    async def test() -> None:
        async with listening(upstream):
            assert (await load(upstream.url)).common.capabilities.max_model_len == 50

    run(test())


def test_a_server_that_comes_later_joins_if_it_can_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_EVERY_S", "FIRST_RETRY_S", "LAST_RETRY_S"):
        monkeypatch.setattr(fleet, name, 0.02)
    first, same, poor = rich(), rich(), FakeUpstream()

    async def test() -> None:
        async with listening(first, same, poor):
            await same.stop()
            await poor.stop()
            loaded = await load(first.url, same.url, poor.url)
            assert "1 of 3 servers: vLLM" in loaded.build(engine_tools(TOKENIZER), 0).facts
            engine = loaded.build(engine_tools(TOKENIZER), 0).engine
            await engine.start()
            try:
                await same.start()
                await until(lambda: [one.is_healthy for one in engine.health().upstreams] == [True, True, False])
                await poor.start()
                await until(lambda: bool(poor.bodies))
                await first.stop()
                await until(lambda: [one.is_healthy for one in engine.health().upstreams] == [False, True, False])
                assert await text(engine, request(max_tokens=len(IDS))) == "one two three"
            finally:
                await engine.shutdown(0.0)

    run(test())


def test_servers_and_options_that_do_not_fit_are_told_on_one_line() -> None:
    upstream = FakeUpstream(max_model_len=64)

    async def test() -> None:
        async with listening(upstream):
            cases = {
                ("upstream_model", "upstream"): "has no model another",
                ("max_model_len", "max_model_len"): "must be at most 64",
            }
            values: dict[str, Any] = {"upstream_model": "another", "max_model_len": 65}
            for (name, blamed), words in cases.items():
                with pytest.raises(EngineOptionError, match=words) as caught:
                    await load(upstream.url, **{name: values[name]})
                assert caught.value.option == blamed
                assert "\n" not in str(caught.value)
            assert (await load(upstream.url, max_model_len=50)).common.capabilities.max_model_len == 50
        with pytest.raises(EngineOptionError, match="none of the servers can be used"):
            await load(upstream.url)

    run(test())


def test_without_a_length_from_the_server_config_json_tells_it() -> None:
    upstream = FakeUpstream(max_model_len=None)

    async def test() -> None:
        async with listening(upstream):
            assert (await load(upstream.url)).common.capabilities.max_model_len == 2048

    run(test())


def test_no_server_is_no_engine_and_no_memory_is_needed() -> None:
    with pytest.raises(EngineOptionError, match="must name at least one server") as caught:
        factory.load(setup())
    assert caught.value.option == "upstream"
    assert factory.needs(setup()).least == 0
