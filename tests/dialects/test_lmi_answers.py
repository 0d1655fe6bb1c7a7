"""What LMI answers show: details, tokens, sequences, texts, streams. Whole answers are in the goldens."""

from __future__ import annotations

import json
from typing import Any

from dragoman.server.api import Call
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    TokenOutput,
    TopToken,
)
from tests.dialects.lmi_calls import PROMPT, body_of, events_of, lines_of, parse, reply_to
from tests.support.tables import table

INFO = PromptInfo(PROMPT, (1, 2, 3), seed=9)


def token(text: str, logprob: float | None = -0.5, *, special: bool = False) -> TokenOutput:
    """A generated token with this text."""
    return TokenOutput(5, text, text, text.encode(), logprob, (TopToken(5, text, logprob or 0.0, b""),), special)


def result_of(call: Call, *sequences: SequenceResult) -> Any:
    """The JSON of the whole answer when the call's request ends with these sequences."""
    result = GenerationResult(call.requests[0], INFO, sequences)
    return json.loads(call.encoder.full([result]).body)


def sequence(
    text: str, finish: FinishReason = FinishReason.EOS, *, score: float | None = None, index: int = 0
) -> SequenceResult:
    """A finished sequence of one token."""
    return SequenceResult(index, text, (token(text),), finish, cumulative_logprob=score)


def event(text: str, *tokens: TokenOutput, finish: FinishReason | None = None) -> GenerationEvent:
    """An event of the first sequence."""
    return GenerationEvent(0, text, tokens, finish)


def stream_lines(call: Call, *events: GenerationEvent) -> list[Any]:
    """The objects of the stream that these events make."""
    body = b"".join(call.encoder.event(0, one) for one in events) + call.encoder.end()
    return [json.loads(line) for line in body.splitlines()]


@table("stream", [False, True])
@table("version", ["0.26", "0.31", "0.32"])
def test_details_appear_only_when_asked_for(stream: bool, version: str) -> None:
    for wanted in (True, False):
        reply = reply_to({"details": wanted}, stream=stream, lmi_version=version)
        last = lines_of(reply)[-1] if stream else json.loads(reply.body)
        assert ("details" in last) is wanted
        assert last["generated_text"] == " Deep learning is fun. 🍊"


@table("options", [{}, {"lmi_version": "0.26"}, {"tgi_compat": True}])
def test_token_texts_add_up_to_the_generated_text(options: dict[str, Any]) -> None:
    whole = body_of({"details": True}, **options)
    answer = whole[0] if isinstance(whole, list) else whole
    assert "".join(one["text"] for one in answer["details"]["tokens"]) == answer["generated_text"]
    reply = reply_to({"details": True, "output_formatter": "jsonlines"}, stream=True, **options)
    lines = lines_of(reply)
    assert "".join(line["token"]["text"] for line in lines) == lines[-1]["generated_text"]


@table(
    ("finish", "word"),
    [
        (FinishReason.EOS, "eos_token"),
        (FinishReason.STOP_TOKEN, "eos_token"),
        (FinishReason.STOP_STRING, "stop_sequence"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.REPETITION, "repetition"),
        (FinishReason.ABORT, "abort"),
    ],
)
def test_finish_reasons_have_lmis_words(finish: FinishReason, word: str) -> None:
    assert result_of(parse({"details": True}), sequence("a", finish))["details"]["finish_reason"] == word
    streamed = stream_lines(parse({"details": True, "stream": True}), event("a", token("a"), finish=finish))
    assert streamed[-1]["details"]["finish_reason"] == word


def test_tokens_of_a_stop_string_are_listed_with_what_remains_of_their_text() -> None:
    lines = stream_lines(
        parse({"stream": True, "details": True, "stop_sequences": ["END"]}),
        event("a", token("a")),
        event("", token(""), token(""), finish=FinishReason.STOP_STRING),
    )
    assert [line["token"]["text"] for line in lines] == ["a", "", ""]
    assert lines[-1]["generated_text"] == "a"
    assert lines[-1]["details"]["generated_tokens"] == 3


def test_a_token_that_does_not_complete_a_character_is_a_line_with_empty_text() -> None:
    lines = stream_lines(
        parse({"stream": True}), event("", token("")), event("🍊", token("🍊"), finish=FinishReason.LENGTH)
    )
    assert [line["token"]["text"] for line in lines] == ["", "🍊"]


def test_several_tokens_of_one_step_are_a_line_each() -> None:
    lines = stream_lines(
        parse({"stream": True, "details": True}),
        event("ab", token("a"), token("b")),
        event("cd", token("c"), token("d"), finish=FinishReason.LENGTH),
    )
    assert [line["token"]["text"] for line in lines] == ["a", "b", "c", "d"]
    assert ["generated_text" in line for line in lines] == [False, False, False, True]
    assert lines[-1]["details"]["generated_tokens"] == 4


def test_a_stream_without_any_token_still_ends_with_its_text_and_details() -> None:
    (line,) = stream_lines(parse({"stream": True, "details": True}), event("", finish=FinishReason.ABORT))
    assert line["token"] == {"id": -1, "text": "", "log_prob": None}
    assert (line["generated_text"], line["details"]["generated_tokens"]) == ("", 0)


def test_a_step_without_tokens_sends_nothing() -> None:
    assert parse({"stream": True}).encoder.event(0, event("")) == b""


@table("logprob", [float("-inf"), float("nan"), -1e30])
@table("tgi_compat", [False, True])
def test_json_never_has_what_json_cannot_say(logprob: float, tgi_compat: bool) -> None:
    call = parse({"stream": True, "top_n_tokens": 1, "output_formatter": "jsonlines"}, tgi_compat=tgi_compat)
    (line,) = stream_lines(call, event("a", token("a", logprob), finish=FinishReason.LENGTH))
    assert line["token"]["log_prob"] == -9999.0


def test_logprobs_of_tgi_are_floats_even_where_there_are_none() -> None:
    call = parse({"stream": True, "output_formatter": "jsonlines"}, tgi_compat=True)
    (line,) = stream_lines(call, event("a", token("a", None, special=True), finish=FinishReason.LENGTH))
    assert line["token"]["logprob"] == 0.0
    assert isinstance(line["token"]["logprob"], float)
    assert line["token"]["special"] is True


@table("parameters", [{"n": 3}, {"best_of": 3}, {"best_of": 3, "n": 3}])
def test_sequences_are_listed_by_their_log_probability(parameters: dict[str, Any]) -> None:
    answer = result_of(
        parse({**parameters, "do_sample": True}),
        sequence("a", score=-5.0),
        sequence("b", score=-1.0, index=1),
        sequence("c", score=-3.0, index=2),
    )
    assert answer["generated_text"] == "b"
    assert [other["generated_text"] for other in answer["details"]["best_of_sequences"]] == ["c", "a"]


def test_beams_keep_the_order_of_the_engine_that_ranked_them() -> None:
    answer = result_of(
        parse({"num_beams": 2, "length_penalty": 2.0}),
        sequence("a", score=-5.0),
        sequence("b", score=-1.0, index=1),
    )
    assert answer["generated_text"] == "a"


@table("parameters", [{"best_of": 3, "n": 1}, {"num_beams": 2, "n": 1}])
def test_a_single_best_sequence_has_details_but_no_others(parameters: dict[str, Any]) -> None:
    answer = result_of(parse(parameters), sequence("a"))
    assert list(answer["details"]) == ["inputs", "finish_reason", "generated_tokens", "tokens"]


def test_the_full_text_begins_with_the_prompt_in_every_form() -> None:
    text = PROMPT + " Deep learning is fun. 🍊"
    parameters = {"return_full_text": True}
    assert body_of(parameters)["generated_text"] == text
    lines = lines_of(reply_to(parameters, stream=True))
    assert lines[-1]["generated_text"] == text
    assert lines[0]["token"]["text"] == " Deep"
    assert body_of(parameters, rolling_batch="disable") == [{"generated_text": text}]
    assert body_of(parameters | {"details": True}, tgi_compat=True)[0]["generated_text"] == text


@table("stream", [False, True])
def test_prefill_lists_the_prompts_tokens_first_without_log_prob(stream: bool) -> None:
    reply = reply_to({"details": True, "decoder_input_details": True}, stream=stream)
    answer = lines_of(reply)[-1] if stream else json.loads(reply.body)
    prefill = answer["details"]["prefill"]
    assert [one["text"] for one in prefill] == ["What", " is", " it?"]
    assert [one["log_prob"] for one in prefill] == [None, -2.0, -3.0]


def test_the_tokens_of_prompt_logprobs_carry_their_alternatives() -> None:
    prefill = body_of({"details": True, "prompt_logprobs": 1})["details"]["prefill"]
    assert [len(one["top_tokens"]) for one in prefill] == [0, 1, 1]


@table("name", ["top_n_tokens", "logprobs"])
def test_top_tokens_have_one_list_per_token(name: str) -> None:
    details = body_of({"details": True, name: 2, "max_new_tokens": 3})["details"]
    assert [len(tokens) for tokens in details["top_tokens"]] == [2, 2, 2]
    assert details["top_tokens"][0][0] == details["tokens"][0]


def test_special_tokens_are_marked_in_0_26_and_for_tgi_only() -> None:
    parameters = {"details": True}
    last_31 = body_of(parameters)["details"]["tokens"][-1]
    last_26 = body_of(parameters, lmi_version="0.26")["token"][-1]
    last_tgi = body_of(parameters, tgi_compat=True)[0]["details"]["tokens"][-1]
    assert list(last_31) == ["id", "text", "log_prob"]
    assert last_26["special_token"] is True
    assert last_tgi["special"] is True


def test_each_answer_of_an_array_has_its_own_details() -> None:
    call = parse({"details": True}, inputs=["One", "Two"])
    results = [GenerationResult(request, INFO, (sequence("a"),)) for request in call.requests]
    answers = json.loads(call.encoder.full(results).body)
    assert [one["details"]["inputs"] for one in answers] == ["One", "Two"]
    assert len({request.request_id for request in call.requests}) == 2


def test_tgi_answers_to_an_array_are_one_flat_list() -> None:
    call = parse({}, inputs=["One", "Two"], tgi_compat=True)
    results = [GenerationResult(request, INFO, (sequence("a"),)) for request in call.requests]
    assert len(json.loads(call.encoder.full(results).body)) == 2


def test_details_of_tgi_can_be_turned_off() -> None:
    assert body_of({"details": False}, tgi_compat=True) == [{"generated_text": " Deep learning is fun. 🍊"}]


def test_the_streamed_details_of_tgi_count_the_prompt() -> None:
    last = events_of(reply_to({"seed": 3, "do_sample": True}, stream=True, tgi_compat=True))[-1]
    assert (last["details"]["input_length"], last["details"]["seed"], last["details"]["prefill"]) == (3, 3, [])


def test_the_seed_of_tgi_is_null_unless_tokens_were_drawn() -> None:
    for parameters, seed in (({"seed": 3}, None), ({}, None), ({"seed": 3, "do_sample": True}, 3)):
        whole = body_of({**parameters, "details": True}, tgi_compat=True)[0]
        last = events_of(reply_to(parameters, stream=True, tgi_compat=True))[-1]
        assert whole["details"]["seed"] == last["details"]["seed"] == seed
