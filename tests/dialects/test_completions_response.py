"""What a completion answers: every row of the response table, echo, logprobs, streams, usage."""

from __future__ import annotations

import json
from typing import Any

from dragoman.errors import EngineFailed
from dragoman.server.generation.service import ResultFold
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    TokenOutput,
    TopToken,
)
from tests.dialects.openai_calls import (
    SERVED,
    CompletionsApi,
    answer,
    chunks,
    complete,
    completions,
    http_call,
    request,
    stream_bytes,
    token,
)
from tests.support.scripted import WORDS
from tests.support.tables import table

BOTH: tuple[CompletionsApi, ...] = ("v1", "v3")
ALL: tuple[CompletionsApi, ...] = ("v1", "v3", "lmi")
TEXT = "".join(WORDS)


# --- the response table of the OVMS completions page ------------------------------------------------------------------


@table("api", ALL)
def test_choices_hold_index_text_finish_reason_and_logprobs(api: CompletionsApi) -> None:
    assert answer(complete(api, max_tokens=9))["choices"] == [
        {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}
    ]


@table("api", ALL)
def test_choices_index_numbers_the_choices_prompt_by_prompt(api: CompletionsApi) -> None:
    choices = answer(complete(api, prompt=["a", "b c"], n=2, echo=True, max_tokens=1))["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [
        (0, "a Deep"),
        (1, "a Deep"),
        (2, "b c Deep"),
        (3, "b c Deep"),
    ]


@table(
    ("reason", "word"),
    [
        (FinishReason.EOS, "stop"),
        (FinishReason.STOP_STRING, "stop"),
        (FinishReason.STOP_TOKEN, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.REPETITION, "repetition"),
        (FinishReason.ABORT, "length"),
    ],
)
@table("api", ALL)
def test_choices_end_with_the_word_of_their_reason(api: CompletionsApi, reason: FinishReason, word: str) -> None:
    [chunk] = chunks(complete(api, stream=True), [GenerationEvent(0, "x", (token("x"),), reason)])
    assert chunk["choices"][0]["finish_reason"] == word


@table("api", ALL)
def test_choices_finish_reason_is_null_while_generation_continues(api: CompletionsApi) -> None:
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks(complete(api, stream=True, max_tokens=3))]
    assert reasons == [None, None, "length"]


@table("api", ALL)
def test_choices_logprobs_hold_one_row_per_token(api: CompletionsApi) -> None:
    logprobs = answer(complete(api, logprobs=2, max_tokens=2))["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": [" Deep", " learning"],
        "token_logprobs": [-0.25, -0.5],
        "top_logprobs": [{" Deep": -0.25, " alt0": -0.75}, {" learning": -0.5, " alt0": -1.0}],
        "text_offset": [0, 5],
    }


@table("api", ALL)
def test_created_is_the_unix_time_in_whole_seconds(api: CompletionsApi) -> None:
    assert answer(complete(api))["created"] == 1_716_825_108


@table(
    ("api", "named", "shown"),
    [
        ("v1", "llama3", "llama3"),
        ("v1", "dummy", SERVED),
        ("v1", None, SERVED),
        ("v3", "llama3", "llama3"),
        ("lmi", "llama3", SERVED),
    ],
)
def test_model_is_the_name_that_chose_the_model(api: CompletionsApi, named: str | None, shown: str) -> None:
    assert answer(complete(api, model=named))["model"] == shown


@table("api", ALL)
def test_object_is_text_completion(api: CompletionsApi) -> None:
    assert answer(complete(api))["object"] == "text_completion"


@table(("api", "name"), [("v1", "text_completion"), ("v3", "text_completion.chunk"), ("lmi", "text_completion")])
def test_object_of_chunks_is_what_each_prefix_calls_them(api: CompletionsApi, name: str) -> None:
    assert {chunk["object"] for chunk in chunks(complete(api, stream=True))} == {name}


@table("api", ALL)
def test_usage_counts_prompts_once_and_the_tokens_of_all_choices(api: CompletionsApi) -> None:
    usage = answer(complete(api, prompt=["a b", "c"], n=2, max_tokens=3))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 12, 15)


@table("api", BOTH)
def test_id_and_system_fingerprint_are_returned(api: CompletionsApi) -> None:
    body = answer(complete(api))
    assert body["id"] == "cmpl-req-1"
    assert body["system_fingerprint"]
    assert {chunk["id"] for chunk in chunks(complete(api, stream=True))} == {"cmpl-req-1"}


# --- echo -------------------------------------------------------------------------------------------------------------


@table("api", BOTH)
def test_echo_repeats_the_prompt_before_the_completion(api: CompletionsApi) -> None:
    assert answer(complete(api, prompt="Say it", echo=True, max_tokens=1))["choices"][0]["text"] == "Say it Deep"


@table("api", BOTH)
def test_echo_without_generation_returns_the_prompt_and_its_logprobs(api: CompletionsApi) -> None:
    body = answer(complete(api, prompt="Say it now", echo=True, max_tokens=0, logprobs=1))
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Say it now", "length")
    assert choice["logprobs"] == {
        "tokens": ["Say", " it", " now"],
        "token_logprobs": [None, -2.0, -3.0],
        "top_logprobs": [None, {" it": -2.0}, {" now": -3.0}],
        "text_offset": [0, 3, 6],
    }
    assert body["usage"]["completion_tokens"] == 0


def test_echo_of_a_fill_in_the_middle_prompt_is_the_text_before_the_gap() -> None:
    call = complete(prompt="def f(", suffix="return", echo=True)
    info = PromptInfo(text="<PRE>def f(<SUF>return<MID>", token_ids=(1, 2, 3))
    [chunk] = chunks(
        complete(prompt="def f(", suffix="return", echo=True, stream=True),
        [GenerationEvent(0, "x", (token("x"),), FinishReason.EOS, prompt=info)],
    )
    assert chunk["choices"][0]["text"] == "def f(x"
    assert call.requests[0].prompt == complete(prompt="def f(", suffix="return").requests[0].prompt


def test_offsets_of_an_echoed_prompt_leave_out_the_special_tokens_that_were_added_to_it() -> None:
    marks = [TokenOutput(7, text, text, text.encode(), special=True) for text in ("<s>", "<|a|>", "</s>")]
    tokens = (marks[0], token("Hi"), marks[1], token(" you"), marks[2])
    info = PromptInfo("Hi<|a|> you", (7, 1, 7, 1, 7), tokens)
    for is_stream in (False, True):
        call = complete(prompt="Hi<|a|> you", echo=True, logprobs=0, stream=is_stream)
        event = GenerationEvent(0, "!", (token("!"),), FinishReason.EOS, prompt=info)
        fold = ResultFold(request(call))
        fold.push(event)
        told = chunks(call, [event])[0] if is_stream else json.loads(call.encoder.full([fold.result()]).body)
        [choice] = told["choices"]
        assert choice["text"] == "Hi<|a|> you!"
        assert choice["logprobs"]["text_offset"] == [0, 0, 2, 7, 11, 11]


@table("api", BOTH)
def test_echo_in_a_stream_comes_with_the_first_chunk_of_every_choice(api: CompletionsApi) -> None:
    call = complete(api, prompt=["Say it", "Go"], echo=True, n=2, stream=True, max_tokens=2)
    texts: dict[int, list[str]] = {}
    for chunk in chunks(call):
        [choice] = chunk["choices"]
        texts.setdefault(choice["index"], []).append(choice["text"])
    say, go = ["Say it Deep", " learning"], ["Go Deep", " learning"]
    assert texts == {0: say, 1: say, 2: go, 3: go}


# --- logprobs ---------------------------------------------------------------------------------------------------------


@table("api", BOTH)
@table("echo", [False, True])
def test_streamed_logprobs_add_up_to_the_whole_answers(api: CompletionsApi, echo: bool) -> None:
    body: dict[str, Any] = {"prompt": "Say it", "logprobs": 2, "echo": echo, "max_tokens": 9, "n": 2}
    whole = answer(complete(api, **body))["choices"]
    joined: list[dict[str, list[Any]]] = [{name: [] for name in whole[0]["logprobs"]} for _ in whole]
    for chunk in chunks(complete(api, stream=True, **body)):
        [choice] = chunk["choices"]
        for name, rows in choice["logprobs"].items():
            joined[choice["index"]][name] += rows
    assert joined == [choice["logprobs"] for choice in whole]


def test_logprobs_zero_shows_the_chosen_token_alone() -> None:
    logprobs = answer(complete(logprobs=0, max_tokens=1))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{" Deep": -0.25}]


def one_token_answer(chosen: TokenOutput) -> dict[str, Any]:
    """The logprobs of an answer of one token."""
    call = complete(logprobs=1, stream=True)
    [chunk] = chunks(call, [GenerationEvent(0, chosen.text, (chosen,), FinishReason.EOS)])
    rows: dict[str, Any] = chunk["choices"][0]["logprobs"]
    return rows


def test_top_logprobs_hold_the_chosen_token_even_if_it_is_not_among_the_likeliest() -> None:
    best = TopToken(8, " best", -0.1, b" best")
    rows = one_token_answer(TokenOutput(9, " odd", " odd", b" odd", -4.0, (best,)))
    assert rows["top_logprobs"] == [{" best": -0.1, " odd": -4.0}]


def test_of_two_tokens_that_read_the_same_the_likelier_one_is_shown() -> None:
    """Otherwise a harness that compares with the maximum would take the unlikely half character for the greedy one."""
    best = TopToken(8, "\ufffd", -0.1, b"\xf0")
    rows = one_token_answer(TokenOutput(9, "", "\ufffd", b"\x9f", -4.0, (best,)))
    assert rows["token_logprobs"] == [-4.0]
    assert rows["top_logprobs"] == [{"\ufffd": -0.1}]


def test_an_impossible_token_has_a_finite_logprob() -> None:
    rows = one_token_answer(TokenOutput(9, "x", "x", b"x", float("-inf"), ()))
    assert (rows["token_logprobs"], rows["top_logprobs"]) == ([-9999.0], [{"x": -9999.0}])


def test_text_offsets_follow_the_text_and_not_the_tokens() -> None:
    """Halves of a character, and tokens a stop string swallowed, add no text."""
    pieces = (token("\ufffd", shown="", data=b"\xf0\x9f"), token("\ufffd", shown="🍊", data=b"\x8d\x8a"), token("!"))
    call = complete(logprobs=0, stream=True)
    [chunk] = chunks(call, [GenerationEvent(0, "🍊!", pieces, FinishReason.STOP_STRING)])
    assert chunk["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1]


@table("is_stream", [False, True])
def test_prompt_logprobs_list_the_candidates_of_every_prompt_token(is_stream: bool) -> None:
    call = complete(prompt="Say it", prompt_logprobs=1, max_tokens=2, stream=is_stream)
    choice = (chunks(call)[0] if is_stream else answer(call))["choices"][0]
    assert choice["prompt_logprobs"] == [None, {"101": {"logprob": -2.0, "rank": 1, "decoded_token": " it"}}]


@table("rank", [None, 73])
def test_prompt_logprobs_tell_the_rank_outside_the_candidates_where_the_engine_does(rank: int | None) -> None:
    chosen = TokenOutput(5, "a", "a", b"a", -3.0, (TopToken(6, "b", -0.1, b"b"),), rank=rank)
    info = PromptInfo("a", (5,), (chosen,))
    [chunk] = chunks(
        complete(prompt_logprobs=1, stream=True), [GenerationEvent(0, "", (), FinishReason.EOS, prompt=info)]
    )
    assert chunk["choices"][0]["prompt_logprobs"] == [
        {
            "5": {"logprob": -3.0, "rank": rank, "decoded_token": "a"},
            "6": {"logprob": -0.1, "rank": 1, "decoded_token": "b"},
        }
    ]


# --- what evaluation harnesses read -----------------------------------------------------------------------------------


@table("api", BOTH)
@table("max_tokens", [1, 7])
def test_a_loglikelihood_call_gets_one_row_per_prompt_token_and_per_generated_token(
    api: CompletionsApi, max_tokens: int
) -> None:
    """lm-eval slices `token_logprobs[ctxlen:-1]`: a missing or an extra row would score the wrong tokens."""
    prompts = [[5, 6, 7, 8], [9, 10]]
    body = {"prompt": prompts, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234, "echo": True, "temperature": 0}
    call = complete(api, **body)
    assert [one.sampling.prompt_logprobs for one in call.requests] == [1, 1]
    choices = sorted(answer(call)["choices"], key=lambda choice: choice["index"])
    for prompt, choice in zip(prompts, choices, strict=True):
        rows = choice["logprobs"]
        assert {len(column) for column in rows.values()} == {len(prompt) + max_tokens}
        assert rows["token_logprobs"][0] is None
        pairs = zip(rows["token_logprobs"][1:], rows["top_logprobs"][1:], strict=True)
        assert all(own == max(top.values()) for own, top in pairs)


def test_the_end_of_sequence_token_has_a_row_of_its_own() -> None:
    rows = answer(complete(logprobs=1, max_tokens=9))["choices"][0]["logprobs"]
    assert rows["tokens"][-1] == "</s>"
    assert rows["text_offset"][-1] == len(TEXT)


# --- token ids --------------------------------------------------------------------------------------------------------


def test_detokenize_false_lists_token_ids_and_no_text() -> None:
    [choice] = answer(complete(detokenize=False, echo=True, max_tokens=2))["choices"]
    assert (choice["text"], choice["token_ids"], choice["prompt_token_ids"]) == ("", [300, 301], [100, 101])


def test_return_token_ids_lists_them_beside_the_text() -> None:
    parts = [chunk["choices"][0] for chunk in chunks(complete(return_token_ids=True, stream=True, max_tokens=2))]
    assert [part["text"] for part in parts] == [" Deep", " learning"]
    assert [part["token_ids"] for part in parts] == [[300], [301]]
    assert parts[0]["prompt_token_ids"] == [100, 101]
    assert "prompt_token_ids" not in parts[1]


def test_log_probabilities_may_name_tokens_by_their_ids() -> None:
    plain, by_id = (
        answer(complete(logprobs=2, max_tokens=2, return_tokens_as_token_ids=flag))["choices"][0]["logprobs"]
        for flag in (False, True)
    )
    assert by_id["tokens"] == ["token_id:300", "token_id:301"]
    assert by_id["token_logprobs"] == plain["token_logprobs"]
    assert by_id["text_offset"] == plain["text_offset"]
    for names, ids, chosen in zip(plain["top_logprobs"], by_id["top_logprobs"], by_id["tokens"], strict=True):
        assert list(ids.values()) == list(names.values())
        assert chosen in ids
        assert all(name.startswith("token_id:") for name in ids)


def test_detokenize_true_changes_nothing() -> None:
    assert answer(complete(detokenize=True)) == answer(complete())


# --- streams ----------------------------------------------------------------------------------------------------------


@table("api", ALL)
def test_stream_texts_add_up_to_the_whole_text(api: CompletionsApi) -> None:
    parts = chunks(complete(api, stream=True, max_tokens=9))
    assert "".join(part["choices"][0]["text"] for part in parts) == TEXT


@table("api", BOTH)
def test_the_last_chunk_carries_text_and_finish_reason(api: CompletionsApi) -> None:
    last = chunks(complete(api, stream=True, max_tokens=2))[-1]["choices"][0]
    assert (last["text"], last["finish_reason"]) == (" learning", "length")


@table("api", BOTH)
def test_a_stream_is_server_sent_events_that_end_in_done(api: CompletionsApi) -> None:
    call = complete(api, stream=True, max_tokens=1)
    assert call.stream
    assert call.encoder.head([]).media_type == "text/event-stream"
    assert stream_bytes(call).endswith(b"}\n\ndata: [DONE]\n\n")
    assert call.encoder.trailers() == ()


def test_usage_is_absent_from_streams_unless_asked_for() -> None:
    for options in (None, {}, {"include_usage": False}):
        assert all("usage" not in chunk for chunk in chunks(complete(stream=True, stream_options=options)))


@table("api", BOTH)
def test_stream_options_include_usage_adds_a_chunk_without_choices_and_null_elsewhere(api: CompletionsApi) -> None:
    call = complete(api, prompt=["a b", "c"], stream=True, max_tokens=2, stream_options={"include_usage": True})
    *others, last = chunks(call)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (3, 4)
    assert all(chunk["usage"] is None for chunk in others)


def test_continuous_usage_is_told_by_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    call = complete(prompt="a b", stream=True, max_tokens=3, stream_options=options)
    usages = [chunk["usage"] for chunk in chunks(call)]
    assert [one["completion_tokens"] for one in usages] == [1, 2, 3, 3]
    assert {one["prompt_tokens"] for one in usages} == {2}
    assert call.ignored == ()
    alone = complete(stream=True, stream_options={"continuous_usage_stats": True})
    assert alone.ignored == ("stream_options.continuous_usage_stats",)
    assert all("usage" not in chunk for chunk in chunks(alone))


def test_cached_prompt_tokens_are_told_on_v1() -> None:
    info = PromptInfo("a b", (1, 2), num_cached_tokens=1)
    events = [GenerationEvent(0, "x", (token("x"),), FinishReason.EOS, prompt=info)]
    call = complete(stream=True, stream_options={"include_usage": True})
    assert chunks(call, events)[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_no_chunk_is_sent_while_a_character_is_incomplete() -> None:
    half, rest = token("\ufffd", shown="", data=b"\xf0\x9f"), token("\ufffd", shown="🍊", data=b"\x8d\x8a")
    call = complete(stream=True)
    assert call.encoder.event(0, GenerationEvent(0, "", (half,))) == b""
    assert "🍊".encode() in call.encoder.event(0, GenerationEvent(0, "🍊", (rest,)))


def test_a_chunk_is_sent_for_a_token_without_text_if_its_logprobs_were_asked_for() -> None:
    call = complete(stream=True, logprobs=0)
    assert call.encoder.event(0, GenerationEvent(0, "", (token("\ufffd", shown=""),))) != b""


# --- completions on /invocations --------------------------------------------------------------------------------------


def test_a_completion_on_invocations_streams_json_lines() -> None:
    call = complete("lmi", stream=True, max_tokens=2)
    assert call.encoder.head([]).media_type == "application/jsonlines"
    lines = stream_bytes(call).split(b"\n")
    assert len(lines) == 3
    assert lines[-1] == b""


def test_a_completion_on_invocations_streams_server_sent_events_if_asked() -> None:
    body = {"prompt": "x", "stream": True, "max_tokens": 1}
    call = completions("lmi").parse(http_call(body, accept="application/json, text/event-stream"))
    assert call.encoder.head([]).media_type == "text/event-stream"
    assert stream_bytes(call).endswith(b"data: [DONE]\n\n")


@table(
    ("api", "expected"),
    [
        (
            "v1",
            b'data: {"error":{"message":"it broke","type":"server_error","param":null,"code":null}}\n\n'
            b"data: [DONE]\n\n",
        ),
        ("v3", b'data: {"error":"it broke"}\n\ndata: [DONE]\n\n'),
        ("lmi", b'{"error":"it broke","code":424}\n'),
    ],
)
def test_an_error_inside_a_stream_is_its_last_event(api: CompletionsApi, expected: bytes) -> None:
    assert complete(api, stream=True).encoder.stream_error(EngineFailed("it broke")) == expected


def test_results_of_several_sequences_are_numbered_by_their_index() -> None:
    call = complete(n=2)
    sequences = tuple(SequenceResult(i, f"t{i}", (token(f"t{i}"),), FinishReason.EOS) for i in (0, 1))
    result = GenerationResult(call.requests[0], PromptInfo("x", (1,)), sequences)
    body = call.encoder.full([result]).body
    assert b'"index":0,"text":"t0"' in body
    assert b'"index":1,"text":"t1"' in body
