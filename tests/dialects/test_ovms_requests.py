"""What `/v3` does differently from `/v1`: defaults, limits, stop strings in streams, chunk names, seeds."""

from __future__ import annotations

from typing import Any

from dragoman.server.api import Call
from tests.dialects.openai_calls import answer, chat, chunks, complete, request, sampling
from tests.support.tables import table


def on_both(**body: Any) -> list[Call]:
    """The same parameters as a completion and as a conversation."""
    return [complete("v3", **body), chat("v3", **body)]


def test_answers_repeat_because_the_seed_is_zero_by_default() -> None:
    assert [sampling(call).seed for call in on_both()] == [0, 0]
    assert [sampling(call).seed for call in on_both(seed=9)] == [9, 9]


def test_there_is_no_limit_but_the_context_unless_the_client_sets_one() -> None:
    assert [request(call).max_tokens for call in on_both()] == [None, None]


def test_ignoring_the_end_of_sequence_stops_at_4000_tokens() -> None:
    calls = on_both(ignore_eos=True)
    assert [(request(call).max_tokens, request(call).on_overflow) for call in calls] == [(4000, "clip")] * 2
    assert [request(call).max_tokens for call in on_both(ignore_eos=True, max_tokens=4000)] == [4000, 4000]


@table(
    ("body", "is_included"),
    [
        ({}, False),
        ({"include_stop_str_in_output": True}, True),
        ({"stream": True}, True),
        ({"stream": True, "include_stop_str_in_output": True}, True),
        ({"stream": True, "include_stop_str_in_output": None}, True),
        ({"stream": False, "include_stop_str_in_output": False}, False),
    ],
)
def test_the_stop_string_is_part_of_streamed_text_only(body: dict[str, Any], is_included: bool) -> None:
    assert [request(call).include_stop_in_text for call in on_both(stop="x", **body)] == [is_included] * 2


def test_sixteen_stop_strings_are_allowed() -> None:
    stop = [f"s{number}" for number in range(16)]
    assert [len(request(call).stop) for call in on_both(stop=stop)] == [16, 16]


def test_nineteen_beams_are_the_most() -> None:
    assert [sampling(call).num_beams for call in on_both(best_of=19)] == [19, 19]


def test_top_p_may_be_zero_where_nothing_is_sampled() -> None:
    for body in ({"temperature": 0}, {"best_of": 2}):
        assert [sampling(call).n for call in on_both(top_p=0, **body)] == [1, 1]


def test_top_k_may_be_set_to_empty() -> None:
    for call in [*on_both(top_k=""), complete("v1", top_k=""), chat("v1", top_k="")]:
        assert (sampling(call).top_k, call.ignored) == (0, ())


def test_chunks_are_named_as_chunks() -> None:
    names = [{chunk["object"] for chunk in chunks(call)} for call in on_both(stream=True)]
    assert names == [{"text_completion.chunk"}, {"chat.completion.chunk"}]


def test_usage_holds_the_three_documented_counts_and_nothing_else() -> None:
    for call in on_both():
        assert set(answer(call)["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}


def test_null_stream_and_null_max_tokens_are_not_given() -> None:
    for call in on_both(stream=None, max_tokens=None):
        assert (call.stream, request(call).max_tokens) == (False, None)


def test_the_model_named_in_the_body_is_echoed() -> None:
    for call in on_both(model="llama3"):
        assert answer(call)["model"] == "llama3"
        assert request(call).model == "llama3"


def test_chat_is_always_in_openais_shape() -> None:
    body = answer(chat("v3", options={"chat_format": "lmi", "lmi_strict": True}))
    assert body["choices"][0]["finish_reason"] == "stop"


def test_chat_takes_the_beam_search_parameters() -> None:
    params = sampling(chat("v3", best_of=3, n=2, length_penalty=0.5))
    assert (params.num_beams, params.n, params.length_penalty) == (3, 2, 0.5)
