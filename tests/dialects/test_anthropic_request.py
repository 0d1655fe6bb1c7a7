"""What becomes of a message's body: the conversation, the tools, the parameters, and what is refused or named as idle."""

from __future__ import annotations

import json
from typing import Any

from dragoman.server.api import Call
from dragoman.types import ChatPrompt, Limits
from tests.dialects.anthropic_calls import CALL, PICTURE, PNG, QUESTION, WEATHER, ask, messages, request, text, told
from tests.dialects.openai_calls import http_call, refusal
from tests.support.tables import table


def result(content: Any = "sunny", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def after_call(*blocks: Any) -> list[Any]:
    return [QUESTION, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": list(blocks)}]


class TestConversation:
    @table("system", ["Be brief.", [text("Be brief.")], [text("Be brief.", cache_control=None)]])
    def test_the_system_prompt_comes_first(self, system: Any) -> None:
        assert told(system=system)[0] == {"role": "system", "content": "Be brief."}

    def test_blocks_of_a_system_prompt_are_lines(self) -> None:
        assert told(system=[text("One."), text("Two.")])[0]["content"] == "One.\nTwo."

    @table("system", ["", [], None])
    def test_no_system_prompt_makes_no_message(self, system: Any) -> None:
        assert told(system=system) == [QUESTION]

    def test_what_one_role_says_in_several_messages_is_one_turn(self) -> None:
        asked = [{"role": "user", "content": "a"}, {"role": "user", "content": [text("b"), text("c")]}]
        assert told(messages=asked) == [{"role": "user", "content": "a\nb\nc"}]

    def test_a_system_prompt_may_stand_in_the_midst(self) -> None:
        asked = [QUESTION, {"role": "assistant", "content": "It."}, {"role": "system", "content": "Be loud."}, QUESTION]
        assert [message["role"] for message in told(messages=asked)] == ["user", "assistant", "system", "user"]

    def test_calls_and_thoughts_stand_beside_the_assistants_text(self) -> None:
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
        hidden = {"type": "redacted_thinking", "data": "x"}
        said = {"role": "assistant", "content": [thought, hidden, text("I look."), CALL]}
        call = ask(messages=[QUESTION, said, {"role": "user", "content": [result()]}])
        prompt = call.requests[0].prompt
        assert isinstance(prompt, ChatPrompt)
        function = {"name": "get_weather", "arguments": {"city": "Oslo"}}
        assert prompt.messages[1] == {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        }
        assert call.ignored == ("redacted_thinking",)

    def test_results_of_tools_come_before_what_the_user_says(self) -> None:
        conversation = told(messages=after_call(text("Well?"), result([text("a"), text("b")])))
        assert conversation[2:] == [
            {"role": "tool", "content": "a\nb", "tool_call_id": "toolu_1", "name": "get_weather"},
            {"role": "user", "content": "Well?"},
        ]

    @table("content", [None, "", []])
    def test_a_result_may_be_empty(self, content: Any) -> None:
        assert told(messages=after_call(result(content)))[2]["content"] == ""

    def test_the_model_is_told_of_a_tools_failure(self) -> None:
        assert told(messages=after_call(result("no such city", is_error=True)))[2]["content"] == "Error: no such city"

    def test_pictures_are_in_their_places(self) -> None:
        web = {"type": "image", "source": {"type": "url", "url": "https://host/a.png"}}
        parts = told(messages=[{"role": "user", "content": [text("a"), PICTURE, text("b"), web]}])[0]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url"]
        assert parts[1]["image_url"] == {"url": f"data:image/png;base64,{PNG}"}
        assert parts[3]["image_url"] == {"url": "https://host/a.png"}

    def test_pictures_of_a_result_go_to_the_users_message_where_templates_have_room_for_them(self) -> None:
        conversation = told(messages=after_call(result([text("done"), PICTURE]), text("Well?")))
        assert conversation[2]["content"] == "done"
        assert [part["type"] for part in conversation[3]["content"]] == ["image_url", "text"]

    def test_a_last_message_of_the_assistant_is_continued(self) -> None:
        begun = [QUESTION, {"role": "assistant", "content": "The answer is ("}]
        prompt = request(messages=begun).prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.continue_final_message
        assert prompt.messages[-1]["content"] == "The answer is ("
        first = request().prompt
        assert isinstance(first, ChatPrompt)
        assert not first.continue_final_message

    def test_accounting_of_claude_code_is_not_shown_to_the_model(self) -> None:
        call = ask(system=[text("x-anthropic-billing-header: cc_version=2; cch=1a;"), text("You are Claude Code.")])
        prompt = call.requests[0].prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.messages[0]["content"] == "You are Claude Code."
        assert call.ignored == ("system[0]",)


class TestParameters:
    def test_the_defaults_are_those_of_the_reference(self) -> None:
        asked = request()
        assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (1.0, 1.0, 0)
        assert (asked.max_tokens, asked.stop, asked.on_overflow, asked.parse_reasoning) == (2000, (), "clip", True)

    def test_sampling_is_as_asked(self) -> None:
        sampling = request(temperature=0.5, top_p=0.25, top_k=7).sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 7)

    def test_the_models_own_defaults_count_where_the_client_says_nothing(self) -> None:
        dialect = messages(generation_defaults={"temperature": 0.3, "top_k": 9})
        body = {"max_tokens": 5, "messages": [QUESTION]}
        sampling = dialect.parse(http_call(body)).requests[0].sampling
        assert (sampling.temperature, sampling.top_k) == (0.3, 9)

    def test_null_means_not_given(self) -> None:
        names = ("temperature", "top_p", "top_k", "stop_sequences", "stream", "system", "tools", "tool_choice", "thinking",
                 "output_config", "output_format", "metadata", "service_tier", "cache_control", "container")  # fmt: skip
        absent: dict[str, Any] = dict.fromkeys(names)
        call = ask(**absent)
        assert (call.requests, call.ignored, call.stream) == (ask().requests, (), False)

    @table("where", ["output_config", "output_format"])
    def test_a_schema_constrains_the_answer(self, where: str) -> None:
        asked = {"type": "json_schema", "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}
        grammar = request(**{where: {"format": asked} if where == "output_config" else asked}).sampling.grammar
        assert grammar is not None
        assert (grammar.kind, json.loads(grammar.source)) == ("json_schema", asked["schema"])

    @table(
        ("thinking", "is_on"),
        [
            ({"type": "enabled", "budget_tokens": 1024}, True),
            ({"type": "adaptive"}, True),
            ({"type": "disabled"}, False),
        ],
    )
    def test_templates_are_told_whether_to_think(self, thinking: Any, is_on: bool) -> None:
        asked = request(thinking=thinking)
        assert isinstance(asked.prompt, ChatPrompt)
        kwargs = asked.prompt.template_kwargs
        assert (kwargs["enable_thinking"], kwargs["thinking"]) == (is_on, is_on)
        assert asked.sampling.thinking_token_budget == thinking.get("budget_tokens")

    def test_templates_decide_for_those_who_say_nothing_of_thinking(self) -> None:
        prompt = request().prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.template_kwargs == {}

    @table(("effort", "told_as"), [("low", "low"), ("medium", "medium"), ("high", "high"), ("max", "high")])
    def test_templates_are_told_of_the_effort(self, effort: str, told_as: str) -> None:
        prompt = request(output_config={"effort": effort}).prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.template_kwargs == {"reasoning_effort": told_as}

    def test_a_budget_above_max_tokens_is_one_of_several_answers_in_the_beta_for_that(self) -> None:
        thinking = {"type": "enabled", "budget_tokens": 5000}
        assert ask(thinking=thinking, betas="a,interleaved-thinking-2025-05-14").requests

    def test_what_has_no_effect_is_named(self) -> None:
        tool = {**WEATHER, "cache_control": {"type": "ephemeral"}, "input_examples": [{"city": "Oslo"}]}
        call = ask(
            temperature=0,
            top_k=3,
            top_p=0.5,
            metadata={"user_id": "u"},
            context_management={"edits": []},
            nonsense=1,
            system=[text("x", cache_control={"type": "ephemeral"})],
            tools=[tool],
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        assert set(call.ignored) == {
            "metadata", "context_management", "nonsense", "top_k", "top_p", "thinking.budget_tokens", "cache_control",
            "tools.cache_control", "tools.input_examples",
        }  # fmt: skip
        assert [name for name, why in call.idle.items() if not why] == ["nonsense"]

    def test_what_nobody_knows_inside_other_parameters_is_named(self) -> None:
        call = ask(
            thinking={"type": "disabled", "mode": "x"},
            output_config={"effort": "low", "task_budget": {"type": "tokens", "total": 20000}},
            tools=[{**WEATHER, "colour": 1}, {**WEATHER, "name": "other", "colour": 2}],
            tool_choice={"type": "auto", "hint": "x"},
        )
        named = {"thinking.mode", "output_config.task_budget", "tools.colour", "tool_choice.hint"}
        assert set(call.ignored) == named
        assert len(call.ignored) == len(named)

    def test_markers_for_the_cache_are_found_wherever_they_are(self) -> None:
        marked = text("x", cache_control={"type": "ephemeral", "ttl": "1h"})
        for body in (
            {"messages": [{"role": "user", "content": [marked]}]},
            {"messages": after_call(result([marked]))},
            {"cache_control": {"type": "ephemeral"}},
        ):
            assert ask(**body).ignored == ("cache_control",)
            assert asked_of_keeper(**body).ignored == ()

    def test_the_longest_time_that_a_mark_asks_for_counts_where_prompts_are_kept(self) -> None:
        short, long = ({"type": "ephemeral", **more} for more in ({}, {"ttl": "1h"}))
        for body, keep_s in (
            ({"cache_control": short}, 300),
            ({"system": [text("x", cache_control=long), text("y", cache_control=short)]}, 3600),
            ({"tools": [{**WEATHER, "cache_control": long}]}, 3600),
            ({"messages": after_call(result([text("x", cache_control={**short, "ttl": "5m"})]))}, 300),
            ({}, None),
        ):
            assert asked_of_keeper(**body).requests[0].cache_keep_s == keep_s
            assert ask(**body).requests[0].cache_keep_s is None


class TestTools:
    def test_tools_reach_the_template_as_they_were_sent(self) -> None:
        asked = request(tools=[{**WEATHER, "type": "custom", "strict": True}])
        assert isinstance(asked.prompt, ChatPrompt)
        [tool] = asked.prompt.tools
        assert tool["function"] == {
            "name": "get_weather",
            "description": WEATHER["description"],
            "strict": True,
            "parameters": WEATHER["input_schema"],
        }
        assert (asked.tool_choice, asked.parse_tool_calls, asked.parallel_tool_calls) == ("auto", True, True)

    @table(
        ("choice", "wish"),
        [("auto", "auto"), ("any", "required"), ("none", "none"), ("tool", "get_weather")],
    )
    def test_the_choice_is_told_in_neutral_words(self, choice: str, wish: str) -> None:
        named = {"name": "get_weather"} if choice == "tool" else {}
        asked = request(tools=[WEATHER], tool_choice={"type": choice, "disable_parallel_tool_use": True, **named})
        assert isinstance(asked.prompt, ChatPrompt)
        assert (asked.called_tool or asked.tool_choice, asked.parallel_tool_calls) == (wish, False)
        assert len(asked.prompt.tools) == (0 if choice == "none" else 1)
        assert asked.parse_tool_calls is (choice != "none")

    def test_without_tools_there_is_no_choice(self) -> None:
        assert request(tools=[]).tool_choice is None


def asked_of_keeper(**body: Any) -> Call:
    """A parsed call to a server that keeps prompts."""
    sent = {"max_tokens": 2000, "messages": [QUESTION], **body}
    return messages(keeps_prompts=True).parse(http_call(sent))


LONG = Limits().max_word_chars + 1
USER = {"role": "user"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"cache_control": {"type": "forever"}},
        "cache_control.type",
        'cache_control.type "forever" is not offered here: it must be ephemeral',
    ),
    ({"cache_control": {}}, "cache_control.type", "cache_control.type is missing: it must be ephemeral"),
    (
        {"system": [text("x", cache_control={"type": "ephemeral", "ttl": "2h"})]},
        "system[0].cache_control.ttl",
        'system[0].cache_control.ttl must be 5m or 1h, got "2h"',
    ),
    (
        {"messages": [{**USER, "content": [text("x", cache_control={"type": "x"})]}]},
        "messages[0].content[0].cache_control.type",
        'messages[0].content[0].cache_control.type "x" is not offered here: it must be ephemeral',
    ),
    (
        {"tools": [{**WEATHER, "cache_control": {"type": "ephemeral", "ttl": "1d"}}]},
        "tools[0].cache_control.ttl",
        'tools[0].cache_control.ttl must be 5m or 1h, got "1d"',
    ),
    ({"max_tokens": None}, "max_tokens", "max_tokens is missing: it must be an integer of at least 0"),
    ({"max_tokens": -1}, "max_tokens", "max_tokens must be between 0 and 4294967295, got -1"),
    ({"messages": None}, "messages", "messages is missing: it must be an array of messages"),
    ({"messages": []}, "messages", "messages must hold at least one message, got []"),
    ({"messages": "x"}, "messages", 'messages must be an array, got "x"'),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is missing"),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages[0].role",
        'messages[0].role must be user, assistant or system, got "tool"',
    ),
    ({"messages": [USER]}, "messages[0].content", "messages[0].content is missing"),
    (
        {"messages": [{**USER, "content": [{"type": "thinking", "thinking": "x"}]}]},
        "messages[0].content[0].type",
        'messages[0].content[0].type must be text, image or tool_result in a message of role user, got "thinking"',
    ),
    (
        {"messages": [{**USER, "content": [{"type": "document", "source": "x"}]}]},
        "messages[0].content[0].type",
        'messages[0].content[0].type "document" is not offered here',
    ),
    (
        {"messages": [{**USER, "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
        "messages[0].content[0].source.type",
        'messages[0].content[0].source.type "file" is not offered here: send the image as base64 or url',
    ),
    (
        {"messages": [{**USER, "content": [{"type": "image", "source": {"type": "url", "url": "file:///x"}}]}]},
        "messages[0].content[0].source.url",
        'messages[0].content[0].source.url must be an http(s) address, got "file:///x"',
    ),
    (
        {"messages": [{**USER, "content": [{"type": "image"}]}]},
        "messages[0].content[0].source.type",
        "messages[0].content[0].source.type must be base64 or url, got null",
    ),
    (
        {"messages": [{**USER, "content": [{**PICTURE, "source": {**PICTURE["source"], "media_type": "image/tiff"}}]}]},
        "messages[0].content[0].source.media_type",
        'source.media_type must be one of image/jpeg, image/png, image/gif, image/webp, got "image/tiff"',
    ),
    ({"messages": [{**USER, "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "is missing"),
    (
        {"messages": [{**USER, "content": [result()]}]},
        "messages[0].content[0].tool_use_id",
        'messages[0].content[0].tool_use_id must be the id of a tool_use block before it, got "toolu_1"',
    ),
    (
        {"messages": after_call(result([{"type": "tool_use"}]))},
        "messages[2].content[0].content[0].type",
        'messages[2].content[0].content[0].type must be text or image, got "tool_use"',
    ),
    (
        {"messages": after_call(result([{"type": "search_result", "source": "x"}]))},
        "messages[2].content[0].content[0].type",
        "is not offered here",
    ),
    (
        {"messages": [QUESTION, {"role": "assistant", "content": [CALL]}]},
        "messages[1].content",
        "messages[1].content must not end the conversation: the results of its tool_use blocks have to follow",
    ),
    (
        {"messages": [QUESTION, {"role": "assistant", "content": [{**CALL, "input": None}]}]},
        "messages[1].content[0].input",
        "messages[1].content[0].input is missing: it must be an object",
    ),
    ({"system": [PICTURE]}, "system[0].type", 'system[0].type must be text, got "image"'),
    ({"temperature": 1.5}, "temperature", "temperature must be between 0.0 and 1.0, got 1.5"),
    ({"top_p": 1.5}, "top_p", "top_p must be between 0.0 and 1.0, got 1.5"),
    ({"top_k": -1}, "top_k", "top_k must be between 0 and 4294967295, got -1"),
    ({"stop_sequences": [""]}, "stop_sequences", 'stop_sequences must hold non-empty strings, got [""]'),
    ({"stop_sequences": ["x"] * 65}, "stop_sequences", "stop_sequences must have at most 64 strings, got 65"),
    ({"stop_sequences": ["x" * LONG]}, "stop_sequences[0]", "must have at most 1000 characters, got 1001"),
    ({"stop_sequences": "x"}, "stop_sequences", 'stop_sequences must be an array, got "x"'),
    ({"service_tier": "fast"}, "service_tier", 'service_tier must be auto or standard_only, got "fast"'),
    ({"container": "c"}, "container", "container is not offered here: no code runs here"),
    ({"mcp_servers": [{}]}, "mcp_servers", "mcp_servers is not offered here: the server asks no other servers"),
    ({"thinking": {}}, "thinking.type", "thinking.type is missing"),
    (
        {"thinking": {"type": "between_tools"}},
        "thinking.type",
        'thinking.type must be enabled, adaptive or disabled, got "between_tools"',
    ),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "thinking.budget_tokens is missing"),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1000}},
        "thinking.budget_tokens",
        "thinking.budget_tokens must be at least 1024, got 1000",
    ),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        "thinking.budget_tokens",
        "thinking.budget_tokens must be less than max_tokens (2000), got 2000",
    ),
    (
        {"thinking": {"type": "adaptive", "display": "all"}},
        "thinking.display",
        'thinking.display must be summarized or omitted, got "all"',
    ),
    (
        {"output_config": {"effort": "huge"}},
        "output_config.effort",
        'output_config.effort must be low, medium, high, xhigh or max, got "huge"',
    ),
    (
        {"output_config": {"format": {"type": "json", "schema": {}}}},
        "output_config.format.type",
        'output_config.format.type must be json_schema, got "json"',
    ),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema", "output_format.schema is missing"),
    (
        {"output_format": {"type": "json_schema", "schema": {"type": "x"}}},
        "output_format.schema",
        "output_format.schema must be a JSON schema: $.type must be one of",
    ),
    (
        {"output_format": {"type": "json_schema", "schema": {}}, "output_config": {"format": {}}},
        "output_format",
        "output_format cannot be used together with output_config.format: give one of them",
    ),
    (
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        "tools[0].type",
        'tools[0].type "bash_20250124" is not offered here: only tools of type custom are',
    ),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "tools[0].input_schema is missing"),
    ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name", "tools[0].name must be 1 to 128 letters"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "tools[1].name must differ from those of other tools"),
    (
        {"tools": [{**WEATHER, "input_schema": {"type": "x"}}]},
        "tools[0].input_schema",
        "tools[0].input_schema must be a JSON schema: $.type must be one of",
    ),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "tool_choice any needs at least one entry in tools"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}},
        "tool_choice.name",
        'tool_choice.name must be one of tools, got "f"',
    ),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "required"}},
        "tool_choice.type",
        'tool_choice.type must be auto, any, tool or none, got "required"',
    ),
    ({"tool_choice": "any"}, "tool_choice", 'tool_choice must be an object, got "any"'),
]


@table(("body", "param", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_told_by_name(body: dict[str, Any], param: str, words: str) -> None:
    refused = refusal(messages(), http_call({"max_tokens": 2000, "messages": [QUESTION], **body}))
    assert (refused.status, refused.param) == (400, param)
    assert words in refused.message
    assert "\n" not in refused.message
    assert refused.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": refused.message},
        "request_id": "req-1",
    }


def test_clients_that_leave_a_conversation_to_the_server_are_told_to_send_it_whole() -> None:
    body = {"max_tokens": 5, "messages": [QUESTION], "thread": {"type": "create"}}
    told_so = refusal(messages(), http_call(body)).body["error"]
    assert told_so["message"] == "thread is not offered here: conversations are not kept: send all of their messages"
    assert told_so["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


@table("content", [b"{", b"[]", b'"x"', b""])
def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    assert refusal(messages(), http_call(content)).message.startswith("the body ")


def test_sizes_are_bounded() -> None:
    limits = Limits(max_messages=2, max_tools=1)
    blocks = [text("a")] * 3
    for body in (
        {"messages": [QUESTION] * 3},
        {"messages": [{"role": "user", "content": blocks}]},
        {"messages": after_call(result(blocks))[1:]},
        {"system": blocks},
        {"tools": [WEATHER, {**WEATHER, "name": "b"}]},
    ):
        http = http_call({"max_tokens": 2000, "messages": [QUESTION], **body})
        assert "must have at most" in refusal(messages(limits=limits), http).message
