"""Reasoning ends where its budget does or where it repeats itself, and the answer follows, in every API.

The model writes random small letters and never ends its reasoning, or anything else, by itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dragoman.server.generation.output_parsers import OutputFormat
from dragoman.server.generation.output_parsers.choose import REASONING_FORMATS
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.thinking import ThinkingBounds
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import LOWEST_LOGPROB, RepetitionDetection
from tests.support.small_server import Parts, SmallServer, small_server
from tests.support.tables import table

pytest.importorskip("llguidance")

TEMPLATE = (
    "{% for message in messages %}{{ message.content }}\n{% endfor %}{{ thinking_budget }}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
)
THINK = REASONING_FORMATS["think"]
WORDS = replace(THINK, last_words=" That is all.")
CHAT = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 80, "temperature": 0}


def parts(reasoning: Any = THINK, **bounds: Any) -> Parts:
    """A model that thinks first, on a server with these bounds."""
    limits = ServiceLimits(thinking=ThinkingBounds(**bounds))
    output = None if reasoning is None else OutputFormat(reasoning=reasoning)
    return Parts(template=ChatTemplate(TEMPLATE, is_vouched=True), output=output, limits=limits)


def asked(path: str, body: Mapping[str, Any], made: Parts | None = None) -> tuple[int, str, dict[str, str]]:
    """Status, body and header fields of one call."""

    async def ask() -> tuple[int, str, dict[str, str]]:
        async with small_server(made or parts()) as server:
            return await told(server, path, body)

    return asyncio.run(ask())


async def told(server: SmallServer, path: str, body: Mapping[str, Any]) -> tuple[int, str, dict[str, str]]:
    """Status, body and header fields of a call to this server."""
    call = await server.call(path, dict(body), ("accept", "text/event-stream"), ("user-agent", "OpenAI/Python")).ended()
    return call.status, call.body.decode(), call.headers


def chat(made: Parts | None = None, **more: Any) -> list[tuple[str, str, str]]:
    """Reasoning, content and finish reason of each choice."""
    status, text, headers = asked("/v1/chat/completions", {**CHAT, **more}, made)
    assert status == 200, text
    assert "x-dragoman-ignored" not in headers
    choices = json.loads(text)["choices"]
    return [
        (one["message"].get("reasoning", ""), one["message"]["content"] or "", one["finish_reason"]) for one in choices
    ]


SAID = (
    {"thinking_token_budget": 5},
    {"reasoning": {"max_tokens": 5}},
    {"reasoning_budget": 5},
    {"reasoning_budget_tokens": 5},
    {"thinking_budget_tokens": 5},
    {"chat_template_kwargs": {"thinking_budget": 5}},
    {"reasoning_budget": 5, "thinking_token_budget": 5},
)


@table("said", SAID)
def test_the_answer_follows_after_so_many_tokens_of_reasoning(said: dict[str, Any]) -> None:
    [(reasoning, content, finish)] = chat(**said)
    assert re.fullmatch("[a-z]{5}", reasoning)
    assert re.fullmatch("[a-z]{64}", content)  # and 11 bytes that end the reasoning
    assert finish == "length"


def test_a_request_goes_before_the_operator_who_goes_before_the_model() -> None:
    made = {"budget": 7}
    assert len(chat(parts(**made))[0][0]) == 7
    assert len(chat(parts(**made), thinking_token_budget=3)[0][0]) == 3
    assert len(chat(parts(**made), thinking_token_budget=-1)[0][0]) == 80
    assert len(chat()[0][0]) == 80
    assert chat(thinking_token_budget=100)[0][1:] == ("", "length")  # max_tokens are reached before
    [(reasoning, content, _)] = chat(thinking_token_budget=0)
    assert (reasoning, len(content)) == ("", 80)  # the template does not even begin it
    [(reasoning, content, _)] = chat(thinking_token_budget=0, chat_template_kwargs={"enable_thinking": True})
    assert (reasoning, len(content)) == ("", 80)
    always = replace(parts(), template=ChatTemplate(f"{TEMPLATE.partition('{% if')[0]}<think>", is_vouched=True))
    [(reasoning, content, _)] = chat(always, thinking_token_budget=0)
    assert (reasoning, len(content)) == ("", 69)
    template = parts(**made).template.with_default_kwargs({"thinking_budget": 4})
    assert len(chat(replace(parts(**made), template=template))[0][0]) == 4


def test_reasoning_ends_with_the_words_that_the_model_knows_or_the_operators() -> None:
    assert chat(parts(WORDS), thinking_token_budget=2)[0][0][2:] == " That is all."
    assert chat(parts(WORDS, last_words="Enough!"), thinking_token_budget=2)[0][0][2:] == "Enough!"


def test_choices_stop_strings_grammars_and_probabilities_are_those_of_the_answer() -> None:
    several = chat(thinking_token_budget=5, n=3, temperature=1.0, max_tokens=40)
    assert [len(reasoning) for reasoning, _, _ in several] == [5, 5, 5]
    assert len({content for _, content, _ in several}) == 3
    [(_, whole, _)] = chat(thinking_token_budget=5)
    stop = whole[3:6]
    [(reasoning, content, finish)] = chat(thinking_token_budget=5, stop=[stop, "</think>"])
    assert (len(reasoning), content, finish) == (5, whole[: whole.index(stop)], "stop")
    [(reasoning, content, finish)] = chat(thinking_token_budget=5, guided_regex="[0-9]{3}")
    assert re.fullmatch("[a-z]{5} [0-9]{3} stop", f"{reasoning} {content} {finish}")
    status, text, _ = asked("/v1/chat/completions", {**CHAT, "thinking_token_budget": 5, "logprobs": True})
    assert status == 200
    logprobs = [one["logprob"] for one in json.loads(text)["choices"][0]["logprobs"]["content"]]
    assert len(logprobs) == 80
    assert logprobs[5:8] == [LOWEST_LOGPROB] * 3  # what the model itself gives to the line break and the mark
    assert min(logprobs[:5] + logprobs[16:]) > -10
    beams = chat(thinking_token_budget=5, use_beam_search=True, best_of=2, max_tokens=30)
    assert len(beams[0][0]) == 5


def test_nothing_that_a_request_asks_of_its_tokens_keeps_the_end_from_coming() -> None:
    asked: dict[str, Any] = {
        "thinking_token_budget": 5,
        "temperature": 1.0,
        "bad_words": ["<", "/t"],
        "allowed_token_ids": [*b"abc"],
        "min_tokens": 40,
        "logit_bias": {str(ord("<")): -100},
        "repetition_penalty": 1.5,
        "dry_multiplier": 1.0,
        "dry_allowed_length": 1,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.01,
        "top_n_sigma": 1.0,
        "typical_p": 0.5,
        "min_p": 0.1,
        "top_k": 3,
    }
    [(reasoning, content, _)] = chat(**asked, n=1)
    assert re.fullmatch("[abc]{5} [abc]{64}", f"{reasoning} {content}")


def test_a_stream_tells_the_same() -> None:
    [(reasoning, content, _)] = chat(thinking_token_budget=5)
    _, text, _ = asked("/v1/chat/completions", {**CHAT, "thinking_token_budget": 5, "stream": True})
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == reasoning
    assert "".join(delta.get("content") or "" for delta in deltas) == content


def test_every_api_has_the_operators_budget_and_its_own_word_for_it() -> None:
    async def ask() -> None:
        async with small_server(parts(budget=5)) as server:
            made = json.loads((await told(server, "/v1/responses", {"input": "?", "max_output_tokens": 40}))[1])
            thought, said = made["output"]
            assert (len(thought["content"][0]["text"]), len(said["content"][0]["text"])) == (5, 24)
            body = {"input": "?", "max_output_tokens": 40, "reasoning": {"max_tokens": 2}}
            made = json.loads((await told(server, "/v1/responses", body))[1])
            assert len(made["output"][0]["content"][0]["text"]) == 2
            made = json.loads((await told(server, "/v1/messages", {**CHAT, "model": "fake"}))[1])
            assert [len(block.get("thinking") or block["text"]) for block in made["content"]] == [5, 64]
            body = {"model": "fake", "messages": CHAT["messages"], "stream": False, "options": {"num_predict": 40}}
            made = json.loads((await told(server, "/api/chat", body))[1])
            assert (len(made["message"]["thinking"]), len(made["message"]["content"])) == (5, 24)
            body = {"prompt": "<think>", "max_tokens": 30, "thinking_token_budget": 5}
            text = json.loads((await told(server, "/v1/completions", body))[1])["choices"][0]["text"]
            assert re.fullmatch("[a-z]{5}\n</think>\n\n[a-z]{14}", text)
            body = {"prompt": "<think>", "max_tokens": 30}  # no conversation: the operator's budget is not for it
            text = json.loads((await told(server, "/v1/completions", body))[1])["choices"][0]["text"]
            assert re.fullmatch("[a-z]{30}", text)

    asyncio.run(ask())


AS: dict[str, Any] = {"logit_bias": {str(ord("a")): 100}}
LOOP = {"max_pattern_size": 2, "min_count": 4}


def test_content_that_repeats_itself_ends_where_that_is_asked_for() -> None:
    off = {"enable_thinking": False}
    assert chat(**AS, chat_template_kwargs=off, repetition_detection=LOOP) == [("", "aaaa", "repetition")]
    assert chat(**AS, chat_template_kwargs=off, repetition_detection=LOOP, min_tokens=7) == [
        ("", "a" * 7, "repetition")
    ]
    assert chat(**AS, chat_template_kwargs=off)[0][1:] == ("a" * 80, "length")

    async def ask() -> None:
        async with small_server(parts()) as server:
            body = {"prompt": "?", "max_tokens": 30, **AS, "repetition_detection": LOOP}
            choice = json.loads((await told(server, "/v1/completions", body))[1])["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("aaaa", "repetition")
            body = {"input": "?", **AS, "chat_template_kwargs": off, "repetition_detection": LOOP}
            made = json.loads((await told(server, "/v1/responses", body))[1])
            assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "repetition"})
            text = (await told(server, "/v1/responses", {**body, "stream": True}))[1]
            assert '"incomplete_details":{"reason":"repetition"}' in text
            assert "event: response.incomplete" in text

    asyncio.run(ask())


def test_reasoning_that_repeats_itself_ends_and_the_answer_follows() -> None:
    made = {"repetition": RepetitionDetection(2, 1, 6)}
    assert chat(parts(**made), **AS) == [("aaaaaa", "a" * 63, "length")]
    assert chat(parts(**made), **AS, repetition_detection=LOOP) == [("aaaa", "aaaa", "repetition")]
    assert chat(parts(**made), **AS, repetition_detection={"max_pattern_size": 0}) == [("a" * 80, "", "length")]
    assert chat(**AS) == [("a" * 80, "", "length")]


@table(
    ("path", "body", "says"),
    [
        ("chat/completions", {"thinking_token_budget": -2},
         "thinking_token_budget must be between -1 and 4294967295, got -2"),
        ("chat/completions", {"reasoning_budget": "x"}, 'reasoning_budget must be an integer, got \\"x\\"'),
        ("chat/completions", {"reasoning": {"max_tokens": -3}},
         "reasoning.max_tokens must be between -1 and 4294967295, got -3"),
        ("chat/completions", {"reasoning": {"max_tokens": []}}, "reasoning.max_tokens must be an integer, got []"),
        ("responses", {"reasoning": {"max_tokens": -3}}, "reasoning.max_tokens must be between -1 and 4294967295, got -3"),
        ("chat/completions", {"reasoning_budget": 1, "thinking_token_budget": 2},
         "reasoning_budget must be the same as thinking_token_budget (2), got 1; give one of them"),
        ("chat/completions", {"chat_template_kwargs": {"thinking_budget": 1.5}},
         "chat_template_kwargs.thinking_budget must be an integer between -1 and 4294967295, got 1.5"),
        ("chat/completions", {"chat_template_kwargs": {"thinking_budget": -(10**4000)}},
         "chat_template_kwargs.thinking_budget must be an integer between -1 and 4294967295, got -1000"),
        ("chat/completions", {"chat_template_kwargs": {"thinking_budget": 3}, "reasoning_budget": 2},
         "chat_template_kwargs.thinking_budget must be the same as the budget that the request says elsewhere (2), got 3"),
        ("completions", {"repetition_detection": 4}, "repetition_detection must be an object, got 4"),
        ("completions", {"repetition_detection": {"max_pattern_size": 9999, "min_count": 2}},
         "repetition_detection.max_pattern_size must be between 0 and 1024, got 9999"),
        ("completions", {"repetition_detection": {"max_pattern_size": 9}},
         "repetition_detection.min_count must be at least 2 beside max_pattern_size, got 0"),
        ("completions", {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}},
         "repetition_detection.min_pattern_size must be at most max_pattern_size (2), got 3"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 3}},
         "thinking.budget_tokens must be at least 1024, got 3"),
    ],
)  # fmt: skip
def test_bad_values_are_named(path: str, body: dict[str, Any], says: str) -> None:
    asking = {"completions": {"prompt": "?"}, "responses": {"input": "?"}}.get(path, CHAT)
    status, text, _ = asked(f"/v1/{path}", {"model": "fake", **asking, **body})
    assert (status, says in text) == (400, True), text


def test_a_model_that_does_not_think_ignores_budgets_by_name() -> None:
    body = {**CHAT, "thinking_token_budget": 4, "reasoning": {"max_tokens": 4}}
    status, _, headers = asked("/v1/chat/completions", body, parts(None))
    assert status == 200
    assert headers["x-dragoman-ignored"] == "thinking_token_budget,reasoning.max_tokens"
    body = {**CHAT, "model": "fake", "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    _, _, headers = asked("/v1/messages", {**body, "stop_sequences": ["a"]}, parts(None))
    assert headers["x-dragoman-ignored"] == "thinking.budget_tokens"
