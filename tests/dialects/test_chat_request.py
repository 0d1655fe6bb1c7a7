"""What a conversation becomes: every row of LMI's chat request table, messages, parts, images, prefills."""

from __future__ import annotations

import base64
from typing import Any

from dragoman.pictures.limits import PictureLimits
from dragoman.pictures.loader import read_data_url
from dragoman.server.apis.openai_wire.conversation import ChatBody
from dragoman.types import ChatPrompt, Grammar
from tests.dialects.openai_calls import SERVED, answer, chat, chats, http_call, refusal, request, sampling
from tests.support.tables import table

ROUTES = ("v1", "v3", "invocations")
USER = {"role": "user", "content": "hi"}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPhfDwAChAGA60e6kgAAAABJRU5ErkJggg=="


def prompt(call: Any) -> ChatPrompt:
    """The conversation of a call."""
    asked = request(call).prompt
    assert isinstance(asked, ChatPrompt)
    return asked


def content_of(*parts: dict[str, Any], route: str = "v1") -> Any:
    """What a template sees of a user's message made of `parts`."""
    return prompt(chat(route, messages=[{"role": "user", "content": list(parts)}])).messages[0]["content"]


# --- the request table of LMI's chat page ------------------------------------------------------------------------------

SAMPLING_ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("frequency_penalty", {"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
    ("logit_bias", {"logit_bias": {"2435": -100.0, "640": 100}}, {"logit_bias": {2435: -100.0, 640: 100.0}}),
    ("logprobs", {"logprobs": True}, {"logprobs": 0}),
    ("logprobs false", {"logprobs": False}, {"logprobs": None}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
    ("top_logprobs 0", {"logprobs": True, "top_logprobs": 0}, {"logprobs": 0}),
    ("n", {"n": 3}, {"n": 3}),
    ("presence_penalty", {"presence_penalty": -0.5}, {"presence_penalty": -0.5}),
    ("seed", {"seed": 7}, {"seed": 7}),
    ("temperature", {"temperature": 0.2}, {"temperature": 0.2}),
    ("temperature default", {}, {"temperature": 1.0, "is_greedy": False}),
    ("temperature 0", {"temperature": 0}, {"is_greedy": True}),
    ("top_p", {"top_p": 0.9}, {"top_p": 0.9}),
    ("ignore_eos", {"ignore_eos": True}, {"ignore_eos": True}),
    ("top_k", {"top_k": 5}, {"top_k": 5}),
    ("min_p", {"min_p": 0.05}, {"min_p": 0.05}),
    ("repetition_penalty", {"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ("stop_token_ids", {"stop_token_ids": [3]}, {"stop_token_ids": (3,)}),
    ("response_format", {"response_format": {"type": "json_object"}}, {"grammar": Grammar("json_object")}),
]


@table("route", ROUTES)
@table(("name", "body", "expected"), SAMPLING_ROWS, ids=[row[0] for row in SAMPLING_ROWS])
def test_sampling_parameters_reach_the_engine(
    route: str, name: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    params = sampling(chat(route, **body))
    assert {key: getattr(params, key) for key in expected} == expected


@table("route", ROUTES)
def test_messages_reach_the_template(route: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is deep learning?"}]
    assert list(prompt(chat(route, messages=messages)).messages) == messages


def test_model_chooses_except_on_invocations() -> None:
    assert [request(chat(route, model="gpt2")).model for route in ROUTES] == ["gpt2", "gpt2", None]
    assert answer(chat("v1", model="gpt2"))["model"] == "gpt2"
    assert answer(chat("invocations", model="gpt2"))["model"] == SERVED


@table("route", ROUTES)
@table(
    ("body", "expected"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"n_predict": 8}, 8),
        ({"n_predict": 0}, 0),
        ({"n_predict": -1}, None),
        ({"max_tokens": 7, "n_predict": 8}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 8),
    ],
)
def test_max_tokens_is_the_newer_name_if_both_are_given_and_the_context_if_none_is(
    route: str, body: dict[str, Any], expected: int | None
) -> None:
    assert request(chat(route, **body)).max_tokens == expected


def test_max_tokens_is_thirty_where_lmi_is_reproduced_strictly() -> None:
    call = chat("invocations", options={"lmi_strict": True})
    assert (request(call).max_tokens, request(call).on_overflow) == (30, "clip")
    assert request(chat("v1", options={"lmi_strict": True, "chat_format": "openai"})).max_tokens is None


@table("route", ROUTES)
@table(("stop", "expected"), [("test", ("test",)), (["a", "b"], ("a", "b")), (None, ())])
def test_stop_is_a_string_or_an_array(route: str, stop: Any, expected: tuple[str, ...]) -> None:
    assert request(chat(route, stop=stop)).stop == expected


@table("route", ROUTES)
@table(("stream", "expected"), [(True, True), (False, False), (None, False)])
def test_stream_selects_a_streamed_answer(route: str, stream: bool | None, expected: bool) -> None:
    assert chat(route, stream=stream).stream is expected


@table("route", ROUTES)
def test_user_is_accepted_and_told_to_have_no_effect(route: str) -> None:
    assert chat(route, user="test").ignored == ("user",)


@table(("route", "expected"), [("v1", "refuse"), ("v3", "refuse"), ("invocations", "clip")])
def test_lmi_generates_what_fits_where_openai_refuses(route: str, expected: str) -> None:
    assert request(chat(route, max_tokens=5)).on_overflow == expected


@table("route", ROUTES)
def test_null_means_not_given_for_every_parameter(route: str) -> None:
    given: dict[str, Any] = {"messages": [USER], "model": SERVED}
    nulls = {name: None for name in ChatBody.__struct_fields__ if name not in given}
    plain, padded = chat(route, **given), chat(route, **given, **nulls)
    assert padded.requests == plain.requests
    assert (padded.stream, padded.ignored) == (False, ())


def test_numbers_and_booleans_may_come_as_strings_where_lmi_takes_them() -> None:
    call = chat("invocations", max_tokens="256", temperature="0.5", logprobs="true", top_logprobs="1")
    assert (request(call).max_tokens, sampling(call).temperature, sampling(call).logprobs) == (256, 0.5, 1)


@table(
    "body",
    [
        {"frequency_penalty": 2.1},
        {"presence_penalty": -2.1},
        {"temperature": 2.1},
        {"top_logprobs": 21, "logprobs": True},
        {"top_logprobs": -1, "logprobs": True},
        {"max_tokens": 0},
        {"n": 0},
        {"logit_bias": {"x": 1}},
        {"messages": []},
        {"messages": [{"role": "user", "content": 5}]},
    ],
)
def test_values_outside_the_table_are_424_on_invocations(body: dict[str, Any]) -> None:
    answer = refusal(chats("invocations"), http_call({"messages": [USER], **body}))
    assert answer.status == 424
    assert answer.body == {"error": answer.message, "code": 424}


def test_top_logprobs_without_logprobs_is_an_error_for_openai_and_reported_by_lmi() -> None:
    openai = refusal(chats("v1", chat_format="openai"), http_call({"messages": [USER], "top_logprobs": 2}))
    assert (openai.status, openai.param) == (400, "top_logprobs")
    call = chat("invocations", top_logprobs=2)
    assert (sampling(call).logprobs, call.ignored) == (None, ("top_logprobs",))


def test_logprobs_alone_does_nothing_where_lmi_is_reproduced_strictly() -> None:
    strict = {"lmi_strict": True}
    assert sampling(chat("invocations", options=strict, logprobs=True)).logprobs is None
    assert sampling(chat("invocations", options=strict, logprobs=True, top_logprobs=1)).logprobs == 1


# --- messages ---------------------------------------------------------------------------------------------------------


@table(
    ("message", "expected"),
    [
        ({"role": "system", "content": "s"}, {"role": "system", "content": "s"}),
        ({"role": "developer", "content": "s"}, {"role": "developer", "content": "s"}),
        ({"role": "user", "content": "u", "name": "ann"}, {"role": "user", "content": "u", "name": "ann"}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        (
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "because"},
            {"role": "assistant", "content": "a", "reasoning_content": "because"},
        ),
        ({"role": "ipython", "content": "x"}, {"role": "ipython", "content": "x"}),
    ],
    ids=["system", "developer", "name", "null content", "no content", "tool", "reasoning", "a model's own role"],
)
def test_a_message_becomes_what_templates_read(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert prompt(chat(messages=[USER, message])).messages[1] == expected


def test_tool_calls_of_the_conversation_have_their_arguments_as_an_object() -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    assert prompt(chat(messages=[message])).messages[0] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
    }


@table(("arguments", "expected"), [("", {}), (None, {}), ({"a": 1}, {"a": 1}), ("{oops", "{oops"), ("[1]", "[1]")])
def test_arguments_that_are_no_json_object_stay_as_they_are(arguments: Any, expected: Any) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    [call] = prompt(chat(messages=[message])).messages[0]["tool_calls"]
    assert call == {"type": "function", "function": {"name": "f", "arguments": expected}}


# --- content parts ----------------------------------------------------------------------------------------------------


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_text_parts_join_with_a_newline() -> None:
    assert content_of(text("one"), text("two")) == "one\ntwo"


def test_a_refusal_is_text() -> None:
    assert content_of({"type": "refusal", "refusal": "no"}) == "no"


def test_no_parts_are_no_text() -> None:
    assert content_of() == ""


@table("url", [f"data:image/png;base64,{PNG}", "https://example.com/a.png", "http://example.com/a.png?b=c"])
def test_an_image_stays_a_part_and_parts_beside_it_stay_in_their_places(url: str) -> None:
    parts = [text("look"), text("here"), image(url), text("what?")]
    assert content_of(*parts) == parts


def test_bare_base64_data_becomes_a_data_address() -> None:
    assert content_of(image(PNG)) == [image(f"data:image/png;base64,{PNG}")]


def test_base64_data_may_have_that_word_before_them() -> None:
    for word in ("base64,", "BASE64,"):
        content = [{"type": "image_url", "image_url": {"url": f"{word}{PNG}"}}]
        (message,) = prompt(chat("v3", messages=[{"role": "user", "content": content}])).messages
        url = message["content"][0]["image_url"]["url"]
        assert read_data_url(url, PictureLimits(), "url") == base64.b64decode(PNG)


@table(("data", "kind"), [("/9j/4AAQ", "jpeg"), ("R0lGODlh", "gif"), ("UklGRiQA", "webp"), ("Qk1GAAAA", "bmp")])
def test_bare_base64_data_of_every_format_is_known_by_its_beginning(data: str, kind: str) -> None:
    assert content_of(image(data)) == [image(f"data:image/{kind};base64,{data}")]


@table("detail", ["auto", "low", "high"])
def test_how_closely_to_look_reaches_the_template_side(detail: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": detail}}
    assert content_of(part) == [part]


@table("route", ["v1", "v3", "invocations"])
@table("detail", ["original", "", "LOW"])
def test_another_detail_is_refused_with_what_is_allowed(route: str, detail: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": detail}}
    answer = refusal(chats(route), http_call({"model": "m", "messages": [{"role": "user", "content": [part]}]}))
    assert answer.param == "messages[0].content[0].image_url.detail"
    assert f'detail must be auto, low or high, got "{detail}"' in answer.message


def test_a_tag_that_ovms_restricts_is_text_where_there_are_no_images() -> None:
    assert content_of(text("<ov_genai_image_0>"), route="v3") == "<ov_genai_image_0>"


def test_a_refused_address_is_shown_in_short_however_long_it_is() -> None:
    answer = refusal(
        chats("v3"), http_call({"model": "m", "messages": [{"role": "user", "content": [image("x" * 10**7)]}]})
    )
    assert len(answer.message) < 300


def test_an_image_address_may_come_without_its_object() -> None:
    assert content_of({"type": "image_url", "image_url": "https://example.com/a.png"}) == [
        image("https://example.com/a.png")
    ]


@table("url", ["file:///etc/passwd", "ftp://example.com/a", "data:text/html;base64,eA==", "", "a b"])
def test_an_image_address_of_another_kind_is_refused(url: str) -> None:
    answer = refusal(chats("v3"), http_call({"model": "m", "messages": [{"role": "user", "content": [image(url)]}]}))
    assert (answer.status, answer.param) == (400, "messages[0].content[0].image_url.url")


@table("kind", ["input_audio", "video", "video_url", "file"])
@table("route", ["v1", "invocations"])
def test_a_part_of_an_unknown_type_is_refused_and_not_dropped(route: str, kind: str) -> None:
    parts = [{"type": kind, kind: {"url": "https://example.com/a", "data": "AAAA"}}]
    dialect = chats(route, chat_format="openai")
    answer = refusal(dialect, http_call({"messages": [{"role": "user", "content": parts}]}))
    assert (answer.status, answer.param) == (424 if route == "invocations" else 400, "messages[0].content[0].type")
    assert answer.message == f'messages[0].content[0].type must be text or image_url, got "{kind}"'


# --- prefills and template arguments ----------------------------------------------------------------------------------

PREFILL = [USER, {"role": "assistant", "content": "Sure, "}]


@table(
    ("body", "expected"),
    [
        ({"messages": PREFILL}, False),
        ({"messages": PREFILL, "continue_final_message": True}, True),
        ({"messages": PREFILL, "continue_final_message": True, "add_generation_prompt": False}, True),
        ({"messages": [USER, {**PREFILL[1], "prefix": True}]}, True),
    ],
)
def test_the_final_assistant_message_is_continued_if_asked(body: dict[str, Any], expected: bool) -> None:
    asked = prompt(chat(**body))
    assert asked.continue_final_message is expected
    assert asked.messages[-1] == PREFILL[1]
    assert asked.template_kwargs == {}


@table(
    ("body", "param"),
    [
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
        ({"messages": [{**USER, "prefix": True}]}, "messages[0]"),
        (
            {"messages": PREFILL, "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
    ],
)
def test_only_an_assistant_message_can_be_continued(body: dict[str, Any], param: str) -> None:
    answer = refusal(chats("v1", chat_format="openai"), http_call(body))
    assert (answer.status, answer.param) == (400, param)


def test_template_arguments_reach_the_template() -> None:
    call = chat(
        chat_template_kwargs={"enable_thinking": False},
        documents=[{"title": "a"}],
        reasoning_effort="low",
        add_generation_prompt=False,
    )
    assert prompt(call).template_kwargs == {
        "enable_thinking": False,
        "documents": [{"title": "a"}],
        "reasoning_effort": "low",
        "thinking": True,
        "add_generation_prompt": False,
    }


def test_no_effort_switches_thinking_off() -> None:
    kwargs = prompt(chat(reasoning_effort="none")).template_kwargs
    assert kwargs == {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}


def test_a_template_from_the_request_is_refused_by_name() -> None:
    answer = refusal(chats("v3"), http_call({"model": "m", "messages": [USER], "chat_template": "{{ x }}"}))
    assert (answer.status, answer.param) == (400, "chat_template")
