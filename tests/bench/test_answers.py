"""The reading of answers in the form of each API, however the network cuts them."""

from __future__ import annotations

import json

import pytest

from dragoman.tools.bench.answer import AnswerReader, Sample, message_of
from dragoman.tools.bench.apis import APIS
from tests.bench.fake_server import ANSWERS, OUTPUT_TOKENS, PIECES, PROMPT_TOKENS, lines, sse
from tests.support.tables import table

STREAMED = [name for name, api in APIS.items() if api.generates and name not in ("text", "text-batch")]


def read(name: str, body: bytes, size: int = 10**6, status: int = 200) -> Sample:
    """The answer when the body comes in parts of `size` bytes, one a second."""
    sample = Sample(0.0, 0.0)
    reader = AnswerReader(sample, APIS[name].read, is_whole=APIS[name].is_batch)
    reader.begin(status, {})
    for number, start in enumerate(range(0, len(body), size)):
        reader.feed(body[start : start + size], float(number))
    reader.finish(1e9)
    return sample


@pytest.mark.parametrize("size", [1, 7, 64, 10**6])
@pytest.mark.parametrize("name", STREAMED)
def test_pieces_and_tokens_are_counted_however_the_body_is_cut(name: str, size: int) -> None:
    answer = read(name, b"".join(ANSWERS[name][1]()), size)
    assert answer.error == ""
    # The token that ends a text is an event of its own in LMI's and TGI's streams.
    assert len(answer.piece_times_s) == len(PIECES) + (name in ("lmi", "tgi"))
    assert (answer.prompt_tokens, answer.output_tokens) == (PROMPT_TOKENS, OUTPUT_TOKENS)
    assert answer.piece_times_s == sorted(answer.piece_times_s)


@table("name", STREAMED)
def test_an_answer_without_its_end_has_failed(name: str) -> None:
    answer = read(name, ANSWERS[name][1]()[0])
    assert answer.error == "broken off"


@table(
    ("name", "body"),
    [
        ("chat", sse({"error": {"message": "out of luck", "code": 500}})),
        ("chat", sse({"object": "error", "message": "out of luck"})),
        ("ovms", sse({"error": "out of luck"})),
        ("responses", sse({"type": "response.failed", "response": {"error": {"message": "out of luck"}}})),
        ("responses", sse({"type": "error", "message": "out of luck"})),
        ("messages", sse({"type": "error", "error": {"type": "api_error", "message": "out of luck"}})),
        (
            "lmi",
            lines({"generated_text": "", "details": {"finish_reason": "error"}, "error": "out of luck", "code": 424}),
        ),
        ("tgi", sse({"error": "out of luck", "error_type": "generation"})),
        ("ollama", lines({"error": "out of luck"})),
    ],
)
def test_an_error_inside_a_stream_is_told_in_the_servers_words(name: str, body: list[bytes]) -> None:
    answer = read(name, b"".join(body))
    assert (answer.error, answer.message) == ("error in the answer", "out of luck")


def test_lines_end_in_any_way_and_comments_are_passed_over() -> None:
    body = b': alive\r\nevent: x\r\ndata:{"choices":[{"text":"a"}]}\r\n\r\ndata: [DONE]'
    answer = read("completions", body)
    assert (answer.error, len(answer.piece_times_s)) == ("", 1)


def test_what_is_no_event_of_the_api_is_named() -> None:
    answer = read("completions", b'data: {"choices": 5}\n\n')
    assert answer.error == "not understood"
    assert '{"choices": 5}' in answer.message


def test_servers_that_do_not_stream_are_read_as_well() -> None:
    whole = json.dumps(
        {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    )
    answer = read("chat", whole.encode())
    assert (answer.error, len(answer.piece_times_s), answer.output_tokens) == ("", 1, 1)
    assert read("lmi", b'[{"generated_text": "Hi"}]').error == ""
    dynamic = read("lmi", b"".join(lines({"outputs": ["a"]}, {"outputs": ["b"]})))
    assert (dynamic.error, len(dynamic.piece_times_s)) == ("", 2)


def test_plain_text_has_a_piece_for_every_chunk() -> None:
    sample = Sample(0.0, 0.0)
    reader = AnswerReader(sample, APIS["text"].read)
    reader.begin(206, {})
    reader.feed(b"One", 1.0)
    reader.feed(b" two", 2.0)
    reader.finish(3.0)
    assert (sample.piece_times_s, sample.error) == ([1.0, 2.0], "")


def test_a_batch_is_one_piece_over_several_lines() -> None:
    answer = read("text-batch", b'[{"id": "0",\n  "data": "One"}]', 5)
    assert (answer.error, len(answer.piece_times_s)) == ("", 1)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": {"message": "the queue\\n is full", "code": 1}}', "the queue is full"),
        (b'{"error": "no such model", "error_type": "validation"}', "no such model"),
        (b'{"code": 404, "type": "T", "message": "Failed to find model"}', "Failed to find model"),
        (b'{"detail": [{"msg": "m"}]}', "{'msg': 'm'}"),
        (b'[{"error": "in a list"}]', "in a list"),
        (b"plain\ntext", "plain text"),
        (b"", ""),
    ],
)
def test_the_words_of_an_error_are_found_in_every_form(body: bytes, told: str) -> None:
    assert message_of(body) == told
    answer = read("completions", body, status=503)
    assert (answer.error, answer.message) == ("HTTP 503", told)
    assert len(message_of(b"x" * 5000)) == 200
