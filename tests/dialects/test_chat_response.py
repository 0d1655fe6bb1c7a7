"""What a conversation answers: every row of LMI's chat response tables, in both shapes, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from dragoman.errors import EngineFailed
from dragoman.server.api import ModelProfile
from dragoman.server.apis.lmi.dialects import lmi_route
from dragoman.server.apis.openai_wire.chat import ChatDialect
from dragoman.server.generation.service import ResultFold
from dragoman.types import FinishReason, GenerationEvent, PromptInfo, TokenOutput, TopToken
from tests.dialects.openai_calls import SERVED, answer, chat, chunks, http_call, stream_bytes, token
from tests.support.scripted import WORDS
from tests.support.tables import table

ROUTES = ("v1", "v3", "invocations")
OPENAI, LMI = "v1", "invocations"
TEXT = "".join(WORDS)
DEEP = [32, 68, 101, 101, 112]


def end(reason: FinishReason, text: str = "x") -> GenerationEvent:
    """A last event."""
    return GenerationEvent(0, text, (token(text),), reason, content=text)


# --- top level --------------------------------------------------------------------------------------------------------


@table("route", ROUTES)
def test_id_is_the_same_in_every_object(route: str) -> None:
    assert answer(chat(route))["id"] == "chatcmpl-req-1"
    assert {chunk["id"] for chunk in chunks(chat(route, stream=True))} == {"chatcmpl-req-1"}


@table("route", ROUTES)
def test_object_tells_answers_from_chunks(route: str) -> None:
    assert answer(chat(route))["object"] == "chat.completion"
    assert {chunk["object"] for chunk in chunks(chat(route, stream=True))} == {"chat.completion.chunk"}


@table("route", ROUTES)
def test_created_is_the_unix_time_in_whole_seconds(route: str) -> None:
    assert answer(chat(route))["created"] == 1_716_825_108


@table(("accept", "expected"), [("*/*", [11, 12]), ("text/event-stream", [10, 10])])
def test_created_is_per_chunk_in_lmis_streams_and_per_answer_in_openais(accept: str, expected: list[int]) -> None:
    ticks = iter([10.5, 11.5, 12.5])
    dialect = ChatDialect(ModelProfile(), lmi_route, clock=lambda: next(ticks))
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 2}
    assert [chunk["created"] for chunk in chunks(dialect.parse(http_call(body, accept=accept)))] == expected


@table("route", ROUTES)
def test_model_is_in_every_object(route: str) -> None:
    assert answer(chat(route))["model"] == SERVED
    assert {chunk["model"] for chunk in chunks(chat(route, stream=True))} == {SERVED}


@table("route", ROUTES)
def test_usage_counts_prompt_and_completion_tokens(route: str) -> None:
    messages = [{"role": "user", "content": "a b c"}]
    usage = answer(chat(route, messages=messages, n=2, max_tokens=3))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 6, 10)


def test_system_fingerprint_is_openais() -> None:
    assert answer(chat(OPENAI))["system_fingerprint"]
    assert "system_fingerprint" not in answer(chat(LMI))


# --- choices ----------------------------------------------------------------------------------------------------------


@table(("route", "reason"), [("v1", "stop"), ("v3", "stop"), ("invocations", "eos_token")])
def test_choices_hold_index_message_logprobs_and_finish_reason(route: str, reason: str) -> None:
    message = {"role": "assistant", "content": TEXT}
    assert answer(chat(route))["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    ]


@table("route", ROUTES)
def test_n_choices_are_numbered(route: str) -> None:
    assert [choice["index"] for choice in answer(chat(route, n=3))["choices"]] == [0, 1, 2]


@table(
    ("reason", "openai", "lmi"),
    [
        (FinishReason.EOS, "stop", "eos_token"),
        (FinishReason.STOP_TOKEN, "stop", "eos_token"),
        (FinishReason.STOP_STRING, "stop", "stop_sequence"),
        (FinishReason.LENGTH, "length", "length"),
        (FinishReason.REPETITION, "repetition", "repetition"),
        (FinishReason.ABORT, "length", "abort"),
    ],
)
def test_finish_reasons_have_the_words_of_each_shape(reason: FinishReason, openai: str, lmi: str) -> None:
    for route, word in ((OPENAI, openai), (LMI, lmi)):
        [chunk] = chunks(chat(route, stream=True), [end(reason)])
        assert chunk["choices"][0]["finish_reason"] == word


# --- streams ----------------------------------------------------------------------------------------------------------


def test_lmi_streams_json_lines_and_openai_server_sent_events() -> None:
    lmi, openai = chat(LMI, stream=True, max_tokens=2), chat(OPENAI, stream=True, max_tokens=2)
    assert lmi.encoder.head([]).media_type == "application/jsonlines"
    assert openai.encoder.head([]).media_type == "text/event-stream"
    assert stream_bytes(lmi).count(b"\n") == 2
    assert stream_bytes(openai).endswith(b"}\n\ndata: [DONE]\n\n")
    assert openai.encoder.trailers() == ()


@table("route", ROUTES)
def test_the_role_travels_with_the_first_token_of_each_choice_and_never_again(route: str) -> None:
    deltas: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for chunk in chunks(chat(route, stream=True, n=2, max_tokens=3)):
        [choice] = chunk["choices"]
        deltas[choice["index"]].append(choice["delta"])
    expected = [{"role": "assistant", "content": " Deep"}, {"content": " learning"}, {"content": " is"}]
    assert deltas == {0: expected, 1: expected}


@table("route", ROUTES)
def test_the_last_chunk_carries_text_and_finish_reason(route: str) -> None:
    *others, last = [chunk["choices"][0] for chunk in chunks(chat(route, stream=True, max_tokens=2))]
    assert (last["delta"], last["finish_reason"]) == ({"content": " learning"}, "length")
    assert {choice["finish_reason"] for choice in others} == {None}


@table("route", ROUTES)
def test_streamed_contents_add_up_to_the_message(route: str) -> None:
    parts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks(chat(route, stream=True))]
    assert "".join(parts) == TEXT


def test_no_chunk_is_sent_while_a_character_is_incomplete_and_the_role_waits() -> None:
    call = chat(OPENAI, stream=True)
    half = GenerationEvent(0, "", (token("\ufffd", shown="", data=b"\xf0\x9f"),))
    assert call.encoder.event(0, half) == b""
    [chunk] = chunks(call, [end(FinishReason.EOS, "🍊")])
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "🍊"}


def test_only_the_content_of_an_event_is_shown() -> None:
    call = chat(OPENAI, stream=True)
    event = GenerationEvent(0, "<call>x", (token("<call>x"),), content="x")
    assert json.loads(call.encoder.event(0, event)[6:])["choices"][0]["delta"]["content"] == "x"


@table("route", ROUTES)
def test_usage_is_absent_from_streams_unless_asked_for(route: str) -> None:
    assert all("usage" not in chunk for chunk in chunks(chat(route, stream=True)))


@table("route", ["v1", "v3"])
def test_include_usage_adds_a_chunk_without_choices_and_null_elsewhere(route: str) -> None:
    *others, last = chunks(chat(route, stream=True, max_tokens=2, stream_options={"include_usage": True}))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)
    assert all(chunk["usage"] is None for chunk in others)


def test_continuous_usage_is_told_by_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    usages = [chunk["usage"] for chunk in chunks(chat(OPENAI, stream=True, max_tokens=3, stream_options=options))]
    assert [one["completion_tokens"] for one in usages] == [1, 2, 3, 3]
    assert {one["total_tokens"] - one["completion_tokens"] for one in usages} == {usages[0]["prompt_tokens"]}


def test_include_usage_adds_a_line_to_lmis_streams_too() -> None:
    *others, last = chunks(chat(LMI, stream=True, max_tokens=2, stream_options={"include_usage": True}))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)
    assert all("usage" not in chunk for chunk in others)


@table(
    ("route", "expected"),
    [
        (
            "v1",
            b'data: {"error":{"message":"it broke","type":"server_error","param":null,"code":null}}\n\n'
            b"data: [DONE]\n\n",
        ),
        ("v3", b'data: {"error":"it broke"}\n\ndata: [DONE]\n\n'),
        ("invocations", b'{"error":"it broke","code":424}\n'),
    ],
)
def test_an_error_inside_a_stream_is_its_last_event(route: str, expected: bytes) -> None:
    assert chat(route, stream=True).encoder.stream_error(EngineFailed("it broke")) == expected


# --- logprobs ---------------------------------------------------------------------------------------------------------


@table("is_stream", [False, True])
@table("route", ROUTES)
def test_logprobs_hold_token_logprob_bytes_and_top_logprobs(route: str, is_stream: bool) -> None:
    call = chat(route, logprobs=True, top_logprobs=2, max_tokens=1, stream=is_stream)
    choice = (chunks(call)[0] if is_stream else answer(call))["choices"][0]
    alternative = {"token": " alt0", "logprob": -0.75, "bytes": [32, 97, 108, 116, 48]}
    own = {"token": " Deep", "logprob": -0.25, "bytes": DEEP}
    assert choice["logprobs"] == {"content": [{**own, "top_logprobs": [own, alternative]}]}


@table("route", ROUTES)
def test_logprobs_alone_show_the_chosen_tokens_without_alternatives(route: str) -> None:
    [entry] = answer(chat(route, logprobs=True, max_tokens=1))["choices"][0]["logprobs"]["content"]
    assert entry == {"token": " Deep", "logprob": -0.25, "bytes": DEEP, "top_logprobs": []}


@table("route", ROUTES)
def test_bytes_are_the_tokens_own_where_a_character_has_several_tokens(route: str) -> None:
    """Clients join the bytes of neighbours to get the character; the joined text would be U+FFFD twice."""
    halves = (token("\ufffd", shown="", data=b"\xf0\x9f"), token("\ufffd", shown="🍊", data=b"\x8d\x8a"))
    event = GenerationEvent(0, "🍊", halves, FinishReason.LENGTH, content="🍊")
    [chunk] = chunks(chat(route, stream=True, logprobs=True), [event])
    content = chunk["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["\ufffd", "\ufffd"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "🍊"


def test_a_token_without_bytes_has_null_bytes() -> None:
    chosen = TokenOutput(9, "", "", b"", -1.0, (TopToken(9, "", -1.0, b""),))
    event = GenerationEvent(0, "", (chosen,), FinishReason.EOS)
    [chunk] = chunks(chat(OPENAI, stream=True, logprobs=True, top_logprobs=1), [event])
    [entry] = chunk["choices"][0]["logprobs"]["content"]
    assert (entry["bytes"], entry["top_logprobs"][0]["bytes"]) == (None, None)


def test_impossible_tokens_have_finite_logprobs() -> None:
    chosen = TokenOutput(9, "x", "x", b"x", float("-inf"))
    event = GenerationEvent(0, "x", (chosen,), FinishReason.EOS, content="x")
    [chunk] = chunks(chat(OPENAI, stream=True, logprobs=True), [event])
    assert chunk["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_strict_lmi_streams_have_logprobs_in_a_list_and_numbers_for_tokens() -> None:
    strict = {"lmi_strict": True}
    body: dict[str, Any] = {"logprobs": True, "top_logprobs": 1, "max_tokens": 1}
    [chunk] = chunks(chat(LMI, options=strict, stream=True, **body))
    top = {"token": -0.25, "logprob": -0.25, "bytes": DEEP}
    entry = {"token": " Deep", "logprob": -0.25, "bytes": DEEP, "top_logprobs": [top]}
    assert chunk["choices"][0]["logprobs"] == [{"content": [entry]}]
    whole = answer(chat(LMI, options=strict, **body))["choices"][0]["logprobs"]
    assert whole["content"][0]["top_logprobs"][0]["token"] == " Deep"


@table("is_stream", [False, True])
def test_prompt_logprobs_are_beside_the_choices(is_stream: bool) -> None:
    call = chat(OPENAI, prompt_logprobs=1, stream=is_stream, max_tokens=2)
    objects = chunks(call) if is_stream else [answer(call)]
    assert objects[0]["prompt_logprobs"][0] is None
    assert objects[0]["prompt_logprobs"][1]["101"]["rank"] == 1
    assert all("prompt_logprobs" not in later for later in objects[1:])


@table("is_stream", [False, True])
def test_token_ids_are_listed_beside_the_text(is_stream: bool) -> None:
    call = chat(OPENAI, return_token_ids=True, stream=is_stream, max_tokens=2)
    first, *others = chunks(call) if is_stream else [answer(call)]
    expected = list(range(100, 100 + len(first["prompt_token_ids"])))
    assert first["prompt_token_ids"] == expected
    ids = [one["choices"][0]["token_ids"] for one in (first, *others)]
    assert ids == ([[300], [301]] if is_stream else [[300, 301]])
    assert all("prompt_token_ids" not in later for later in others)
    assert "token_ids" not in stream_bytes(chat(OPENAI, stream=True)).decode()


def test_echo_repeats_what_the_assistant_has_said_before() -> None:
    user, said = {"role": "user", "content": "x"}, {"role": "assistant", "content": "I say:"}
    options: Any = {"messages": [user, said], "continue_final_message": True, "echo": True, "n": 2, "max_tokens": 2}
    whole = answer(chat(OPENAI, **options))["choices"]
    assert [choice["message"]["content"] for choice in whole] == ["I say: Deep learning"] * 2
    texts = ["", ""]
    for chunk in chunks(chat(OPENAI, stream=True, **options)):
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == ["I say: Deep learning"] * 2
    assert chat(OPENAI, messages=[user], echo=True).ignored == ("echo",)


# --- reasoning --------------------------------------------------------------------------------------------------------

THOUGHT = GenerationEvent(0, "hm", (token("hm"),), reasoning="hm", prompt=PromptInfo("x", (1,)))


@table("route", ROUTES)
def test_reasoning_goes_out_under_both_its_names(route: str) -> None:
    first, second = chunks(chat(route, stream=True), [THOUGHT, end(FinishReason.EOS, "yes")])
    assert first["choices"][0]["delta"] == {"role": "assistant", "reasoning_content": "hm", "reasoning": "hm"}
    assert second["choices"][0]["delta"] == {"content": "yes"}


@table("route", ["v1", "v3"])
def test_tokens_of_the_reasoning_are_counted_apart(route: str) -> None:
    events = [
        GenerationEvent(0, "<t>", (token("<t>"),), prompt=PromptInfo("x", (1,))),
        GenerationEvent(0, "hm", (token("hm"),), reasoning="hm"),
        GenerationEvent(0, "</t>", (token("</t>"),)),
        end(FinishReason.EOS, "yes"),
    ]
    streamed = chunks(chat(route, stream=True, stream_options={"include_usage": True}), events)[-1]["usage"]
    call = chat(route)
    fold = ResultFold(call.requests[0])
    for event in events:
        fold.push(event)
    whole = json.loads(call.encoder.full([fold.result()]).body)["usage"]
    assert whole == streamed
    assert whole.get("completion_tokens_details") == ({"reasoning_tokens": 2} if route == "v1" else None)


def test_reasoning_can_be_left_out() -> None:
    [chunk] = chunks(chat(OPENAI, stream=True, include_reasoning=False), [THOUGHT, end(FinishReason.EOS, "yes")])
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "yes"}
