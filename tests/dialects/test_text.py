"""What the plain-text service reads from a body, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.errors import InvalidPayload, ServerError
from dragoman.server.api import Call, HttpCall
from dragoman.server.apis.text import TextDialect
from dragoman.types import ChatPrompt, FinishReason, GenerationEvent, Limits, SamplingParams, TextPrompt
from tests.support.tables import table

ONE = "/api/generate-one"
BATCH = "/api/generate-batch"
GOOD = {"id": 1, "prompt": "Once", "maxLength": 5}


def http(path: str, body: Any, **query: str) -> HttpCall:
    """A call; `body` is sent as JSON unless it is bytes already."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpCall("POST", path, content, query=query, request_id="req-1")


def parse(path: str, body: Any, **options: Any) -> Call:
    """The call as the dialect reads it."""
    return TextDialect(**options).parse(http(path, body))


def refusal(path: str, body: Any, **query: str) -> tuple[int, str]:
    """Status and message of a call that is refused."""
    call = http(path, body, **query)
    dialect = TextDialect(limits=Limits(max_prompts=3))
    with pytest.raises(ServerError) as caught:
        dialect.parse(call)
    reply = dialect.error_reply(caught.value, call)
    assert reply.body.count(b"\n") == (1 if path == ONE else 0)
    return reply.status, caught.value.message


class TestRequests:
    def test_a_prompt_goes_to_the_model_as_it_is_and_greedily(self) -> None:
        [request] = parse(ONE, {**GOOD, "prompt": "  <s>Once\n"}).requests
        assert request.prompt == TextPrompt("  <s>Once\n")
        assert request.sampling.is_greedy
        assert (request.max_tokens, request.on_overflow, request.request_id) == (5, "clip", "req-1")

    def test_the_operators_sampling_applies(self) -> None:
        sampling = SamplingParams(temperature=0.7, top_p=0.9)
        for path, body in ((ONE, GOOD), (BATCH, {"prompts": [GOOD]})):
            assert parse(path, body, sampling=sampling).requests[0].sampling == sampling

    def test_the_chat_template_takes_the_prompt_as_one_user_turn(self) -> None:
        [request] = parse(ONE, GOOD, chat_template=True).requests
        assert request.prompt == ChatPrompt(({"role": "user", "content": "Once"},))

    def test_the_prompts_own_limit_wins_over_the_shared_one(self) -> None:
        prompts = [{"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b", "maxLength": 2}]
        call = parse(BATCH, {"prompts": prompts, "maxLength": 9})
        assert [request.max_tokens for request in call.requests] == [9, 2]
        assert len({request.request_id for request in call.requests}) == 2

    def test_a_limit_may_be_written_with_a_fraction_of_zero(self) -> None:
        assert parse(ONE, {**GOOD, "maxLength": 5.0}).requests[0].max_tokens == 5

    @table(
        ("query", "is_stream"),
        [({}, True), *(({"stream": word}, word in ("true", "")) for word in ("true", "", "False", "0"))],
        ids=str,
    )
    def test_generate_one_streams_unless_told_otherwise(self, query: dict[str, str], is_stream: bool) -> None:
        call = TextDialect(hold_ms=300).parse(http(ONE, GOOD, **query))
        assert (call.stream, call.hold_s) == (is_stream, 0.3 if is_stream else 0.0)

    @table(("query", "ignored"), [({}, ()), ({"stream": "true"}, ("stream",))], ids=str)
    def test_a_batch_never_streams_and_says_so(self, query: dict[str, str], ignored: tuple[str, ...]) -> None:
        call = TextDialect().parse(http(BATCH, {"prompts": [GOOD]}, **query))
        assert (call.stream, call.ignored) == (False, ignored)

    def test_unknown_fields_are_reported_with_their_place(self) -> None:
        body = {"prompts": [{**GOOD, "top_p": 1, "none": None}], "speed": 9}
        assert parse(BATCH, body).ignored == ("speed", "prompts[0].top_p")


BAD_ONE: list[tuple[Any, str]] = [
    (b"", "The request body is not valid JSON"),
    (b"\xff\xfe", "The request body is not valid JSON"),
    (b'{"id": 1} x', "The request body is not valid JSON"),
    (b'{"id": ' + b"[" * 100_000, "The request body is too large in structure: it is nested more than 100 levels"),
    ([GOOD], "The request body must be a JSON object, got [{"),
    ("text", 'The request body must be a JSON object, got "text"'),
    ({"prompt": "x", "maxLength": 1}, "id is missing: it must be a string or a number"),
    ({**GOOD, "id": None}, "id is missing"),
    ({**GOOD, "id": True}, "id must be a string or a number, got true"),
    ({**GOOD, "id": [1]}, "id must be a string or a number, got [1]"),
    ({"id": 1, "maxLength": 1}, "prompt is missing: it must be a string"),
    ({**GOOD, "prompt": ""}, 'prompt must be a string that is not empty, got ""'),
    ({**GOOD, "prompt": ["x"]}, 'prompt must be a string that is not empty, got ["x"]'),
    ({**GOOD, "prompt": {"long": "x" * 1000}}, "prompt must be a string that is not empty, got {"),
    ({"id": 1, "prompt": "x"}, "maxLength is missing: it must be an integer of at least 1"),
    ({**GOOD, "maxLength": None}, "maxLength is missing"),
    ({**GOOD, "maxLength": 0}, "maxLength must be an integer of at least 1, got 0"),
    ({**GOOD, "maxLength": -3}, "got -3"),
    ({**GOOD, "maxLength": 1.5}, "got 1.5"),
    ({**GOOD, "maxLength": "5"}, 'maxLength must be an integer of at least 1, got "5"'),
    ({**GOOD, "maxLength": True}, "got true"),
    (b'{"id": 1, "prompt": "x", "maxLength": 1e999}', "maxLength"),
]

BAD_BATCH: list[tuple[Any, str]] = [
    ({"maxLength": 5}, "prompts is missing"),
    ({"prompts": None}, "prompts is missing"),
    ({"prompts": {}}, "prompts must be an array of {id, prompt, maxLength}, got {}"),
    ({"prompts": []}, "prompts has 0 entries, 1 to 3 are allowed"),
    ({"prompts": [{**GOOD, "id": number} for number in range(4)]}, "prompts has 4 entries"),
    ({"prompts": [GOOD, "x"]}, 'prompts[1] must be a JSON object, got "x"'),
    ({"prompts": [GOOD, {"id": 2, "maxLength": 1}]}, "prompts[1].prompt is missing: it must be a string (id 2)"),
    ({"prompts": [GOOD, {"id": "b", "prompt": "x"}]}, 'must be an integer of at least 1 (id "b")'),
    ({"prompts": [GOOD, {"id": [2], "prompt": "x"}]}, "prompts[1].id must be a string or a number, got [2]"),
    ({"prompts": [GOOD, {"prompt": "x"}]}, "prompts[1].id is missing: it must be a string or a number"),
    ({"prompts": [GOOD], "maxLength": 0}, "maxLength must be an integer of at least 1, got 0"),
    ({"prompts": [{**GOOD, "maxLength": 0}], "maxLength": 5}, "prompts[0].maxLength must be"),
    ({"prompts": [GOOD, GOOD]}, "id 1 occurs twice"),
    ({"prompts": [{**GOOD, "id": "a"}, {**GOOD, "id": "a"}]}, 'id "a" occurs twice'),
    (b'{"prompts": [{"id":"a","prompt":"x"},{"id":"\\u0061","prompt":"y"}],"maxLength":1}', "occurs twice"),
]


class TestRefusals:
    @table(("body", "message"), BAD_ONE)
    def test_a_bad_single_body_is_400_and_says_why(self, body: Any, message: str) -> None:
        status, text = refusal(ONE, body)
        assert status == 400
        assert message in text
        assert len(text) < 200

    @table(("body", "message"), BAD_BATCH)
    def test_a_bad_batch_is_400_and_says_where(self, body: Any, message: str) -> None:
        status, text = refusal(BATCH, body)
        assert status == 400
        assert message in text

    @table("path", [ONE, BATCH])
    def test_a_stream_query_that_is_no_truth_value_is_400(self, path: str) -> None:
        body = GOOD if path == ONE else {"prompts": [GOOD]}
        assert refusal(path, body, stream="maybe") == (400, "stream must be true or false, got 'maybe'")

    def test_batch_errors_are_json_and_single_ones_are_text(self) -> None:
        dialect, error = TextDialect(), InvalidPayload("no")
        assert dialect.error_reply(error, http(ONE, b"")).body == b"no\n"
        assert dialect.error_reply(error, http(BATCH, b"")).body == b'{"error":"no"}'


class TestAnswers:
    @table(
        ("reason", "status", "word"),
        [
            (FinishReason.EOS, "200", "eos"),
            (FinishReason.LENGTH, "206", "length"),
            (FinishReason.ABORT, "206", "length"),
        ],
    )
    def test_the_trailers_tell_how_the_text_ended(self, reason: FinishReason, status: str, word: str) -> None:
        encoder = parse(ONE, GOOD).encoder
        assert encoder.head([]).status == 206
        encoder.event(0, GenerationEvent(0, "x"))
        encoder.event(0, GenerationEvent(0, "", finish_reason=reason))
        assert list(encoder.trailers()) == [("X-Status", status), ("X-Finish-Reason", word)]

    def test_text_that_has_no_utf_8_form_does_not_end_the_answer(self) -> None:
        assert parse(ONE, GOOD).encoder.event(0, GenerationEvent(0, "a\ud800b")) == b"a?b"
