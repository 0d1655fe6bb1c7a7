"""`/api/generate` and `/api/chat`: a prompt, or a conversation, becomes one neutral request.

Does: read prompts, messages and tools in Ollama's words; answer calls that only load or unload. Does not: encode.
Set up for each served model; called on the event loop.
Source: Ollama API reference (docs/api.md), and its server where the reference is silent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import Call, CallSwitches, HttpCall, ModelProfile, Opening, Reply, json_reply, runner_for
from dragoman.server.apis.ollama.encoder import AnswerFacts, Clock, OllamaEncoder, rfc3339
from dragoman.server.apis.ollama.errors import OllamaErrors
from dragoman.server.apis.ollama.names import model_meant
from dragoman.server.apis.ollama.options import OPTIONS, WORDS
from dragoman.server.apis.ollama.request import (
    KEPT,
    Asked,
    BodyT,
    Sent,
    content_of,
    idle_without_text,
    keep_alive_of,
    neutral_request,
    read_body,
    reasons_of,
    thinking_kwargs,
    without_effect,
)
from dragoman.server.apis.ollama.schema import (
    DoneReason,
    OllamaAnswerMessage,
    OllamaChatBody,
    OllamaChatted,
    OllamaGenerateBody,
    OllamaGenerated,
    OllamaMessage,
)
from dragoman.server.apis.openai_wire.chat.messages import tool_use
from dragoman.server.apis.openai_wire.chat.schema import ChatBody
from dragoman.server.apis.openai_wire.common import OpenAiOptions, shared_options
from dragoman.server.apis.openai_wire.fields import check_count
from dragoman.server.apis.openai_wire.sampling import Reading
from dragoman.server.http.exchange import Exchange
from dragoman.server.observation.measured import measure_of
from dragoman.server.observation.record import current_call
from dragoman.server.operations import Proceed, Server
from dragoman.server.responder import note_ignored
from dragoman.types import ChatPrompt, Prompt, TextPrompt

CLOCK = Clock(time.time, time.perf_counter)


class _Dialect(OllamaErrors):
    """Shared by both dialects."""

    def __init__(self, profile: ModelProfile, clock: Clock = CLOCK) -> None:
        self._profile = profile
        self._reading = Reading(OPTIONS, OpenAiOptions(**shared_options(profile)))
        self._clock = clock

    def _call(
        self,
        sent: Sent[BodyT],
        asked: Asked,
        ignored: Sequence[str] = (),
        *,
        is_chat: bool,
        has_context: bool,
    ) -> Call:
        """The call, with what its answer has to tell."""
        record, request = current_call(), asked.request
        facts = AnswerFacts(
            model=sent.name,
            clock=self._clock,
            begin_s=self._clock.timer() if record is None else record.begin_s,
            measure=None if record is None else partial(measure_of(record, [request.request_id]), None),
            is_chat=is_chat,
            top_logprobs=request.sampling.logprobs,
            has_context=has_context,
        )
        names = [*without_effect(sent), *ignored]
        return Call(
            (request,),
            OllamaEncoder(facts),
            stream=sent.is_streamed,
            ignored=(*names, *asked.ignored),
            reasons={**reasons_of(names), **asked.reasons},
        )

    def _done(self, sent: Sent[BodyT], switches: CallSwitches, *, is_chat: bool) -> Reply:
        """The answer to a call that asks for no text: the model is there. Raises: InvalidParameter."""
        return _without_text(sent, note_ignored(switches, idle_without_text(sent)), self._clock, is_chat=is_chat)


def _without_text(sent: Sent[BodyT], headers: Mapping[str, str], clock: Clock, *, is_chat: bool) -> Reply:
    reason: DoneReason = "unload" if sent.wants_unload else "load"
    made: OllamaGenerated | OllamaChatted
    created_at = rfc3339(clock.now())
    if is_chat:
        message = OllamaAnswerMessage("assistant", "")
        made = OllamaChatted(model=sent.name, created_at=created_at, message=message, done=True)
    else:
        made = OllamaGenerated(model=sent.name, created_at=created_at, response="", done=True)
    made.done_reason = reason
    return json_reply(200, made, headers)


async def answer_unload(exchange: Exchange, http: HttpCall, server: Server, proceed: Proceed) -> bool:
    """Answer a call that only has a model unloaded which is not loaded: it is not loaded for that. See `Before`."""
    is_chat = http.path.endswith("/chat")
    asks_nothing = _asks_for_no_text(http, is_chat=is_chat) and keep_alive_of(http) == 0
    name = model_meant(http, server) if server.hosting is not None and asks_nothing else None
    if name is None or server.models.unloaded_called(name) is None:
        return False
    sent: Sent[Any] = read_body(http, OllamaChatBody if is_chat else OllamaGenerateBody)
    idle = [name for name in idle_without_text(sent) if name != KEPT]
    headers = note_ignored(server.switches.for_call(http.headers), idle)
    await exchange.send_reply(_without_text(sent, headers, CLOCK, is_chat=is_chat))
    return True


def _asks_for_no_text(http: HttpCall, *, is_chat: bool) -> bool:
    return not any(http.field(name) for name in (("messages",) if is_chat else ("prompt", "suffix", "images")))


class GenerateDialect(_Dialect):
    """`/api/generate` for one model."""

    def open(self, http: HttpCall) -> Opening:
        """The call; without a prompt it is answered at once."""
        is_empty = _asks_for_no_text(http, is_chat=False)
        return Opening(partial(self.parse, http), runner_for(http), partial(self._load, http) if is_empty else None)

    async def _load(self, http: HttpCall, switches: CallSwitches) -> Reply:
        return self._done(read_body(http, OllamaGenerateBody), switches, is_chat=False)

    def parse(self, http: HttpCall) -> Call:
        """The call in neutral words. Raises: InvalidRequest."""
        sent = read_body(http, OllamaGenerateBody)
        _refuse(sent.body)
        prompt = self._prompt(sent.body)
        is_chat = isinstance(prompt, ChatPrompt)
        asked = neutral_request(
            sent, self._profile, self._reading, request_id=http.request_id, prompt=prompt, is_conversation=is_chat
        )
        body = sent.body
        said = {"system": bool(body.system), "think": body.think is not None}
        idle = [] if is_chat else [name for name, is_said in said.items() if is_said]
        has_context = not (body.raw or body.suffix or body.images)
        return self._call(sent, asked, idle, is_chat=False, has_context=has_context)

    def _prompt(self, body: OllamaGenerateBody) -> Prompt:
        """One turn of a conversation, where the model holds any; else the text itself."""
        text, context = body.prompt or "", tuple(body.context or ())
        check_count("context", len(context), self._profile.limits.max_token_ids, WORDS)
        check_count("images", len(body.images or ()), self._profile.limits.max_messages, WORDS)
        kwargs = thinking_kwargs(body.think, self._profile)
        if body.suffix:
            return TextPrompt(text, body.suffix)
        if body.raw or not (body.images or "chat" in self._profile.abilities):
            return TextPrompt(text, add_special_tokens=not context, before_ids=context)
        system = [{"role": "system", "content": body.system}] if body.system else []
        turn = {"role": "user", "content": content_of(text, body.images, "")}
        return ChatPrompt((*system, turn), template_kwargs=kwargs, before_ids=context)


def _refuse(body: OllamaGenerateBody) -> None:
    """Raises: InvalidRequest for parameters that are not supported, or not together."""
    if body.template:
        reason = "it is a Go template; the model's own chat template is used"
        raise UnsupportedFeature(f"template is not supported: {reason}", param="template")
    beside = {
        "raw": ("system", "context", "images") if body.raw else (),
        "suffix": ("context", "images") if body.suffix else (),
    }
    for name, excluded in beside.items():
        for other in excluded:
            if getattr(body, other):
                raise WORDS.fault(other, "conflict", f"{other} cannot be used together with {name}: give one of them")


class ChatDialect(_Dialect):
    """`/api/chat` for one model."""

    def open(self, http: HttpCall) -> Opening:
        """The call; without messages it is answered at once."""
        load = partial(self._load, http) if _asks_for_no_text(http, is_chat=True) else None
        return Opening(partial(self.parse, http), runner_for(http), load)

    async def _load(self, http: HttpCall, switches: CallSwitches) -> Reply:
        return self._done(read_body(http, OllamaChatBody), switches, is_chat=True)

    def parse(self, http: HttpCall) -> Call:
        """The call in neutral words. Raises: InvalidRequest."""
        sent = read_body(http, OllamaChatBody)
        self._check_sizes(sent.body)
        messages = template_messages(sent.body.messages or [])
        tools = tool_use(ChatBody(tools=sent.body.tools), sent.raw, WORDS)
        last = messages[-1] if messages else {}
        prompt = ChatPrompt(
            messages,
            tools.tools,
            # As Ollama has it: what the assistant has begun to say, it goes on saying.
            continue_final_message=last.get("role") == "assistant"
            and bool(last["content"])
            and "tool_calls" not in last,
            template_kwargs=thinking_kwargs(sent.body.think, self._profile),
        )
        asked = neutral_request(
            sent, self._profile, self._reading, request_id=http.request_id, prompt=prompt, is_conversation=True
        )
        request = msgspec.structs.replace(
            asked.request, parse_tool_calls=tools.is_parsed, tool_choice=tools.choice, passed_over=tools.passed_over
        )
        return self._call(sent, asked._replace(request=request), is_chat=True, has_context=False)

    def _check_sizes(self, body: OllamaChatBody) -> None:
        """Raises: InvalidRequest for more of anything than one conversation may have."""
        messages, limits = body.messages or [], self._profile.limits
        check_count("messages", len(messages), limits.max_messages, WORDS)
        num_images = sum(len(message.images or ()) for message in messages)
        num_calls = sum(len(message.tool_calls or ()) for message in messages)
        check_count("messages[].images", num_images, limits.max_messages, WORDS)
        check_count("messages[].tool_calls", num_calls, limits.max_messages, WORDS)
        check_count("tools", len(body.tools or ()), limits.max_tools, WORDS)


def template_messages(messages: Sequence[OllamaMessage]) -> tuple[dict[str, Any], ...]:
    """The conversation as templates take it. Raises: InvalidRequest."""
    calls = _Calls()
    return tuple(_message(message, f"messages[{i}].", calls) for i, message in enumerate(messages))


class _Calls:
    """The tool calls of a conversation, which Ollama's clients need not name: some templates want to see ids."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, str]] = []  # ids and functions of calls whose result has not come yet
        self._count = 0

    def made(self, message: OllamaMessage) -> list[dict[str, Any]]:
        """The calls of a message of the assistant's."""
        entries = []
        for call in message.tool_calls or ():
            self._count += 1
            call_id = call.id or f"call{self._count:05}"  # nine characters, as some templates insist
            self._waiting.append((call_id, call.function.name))
            function = {"name": call.function.name, "arguments": call.function.arguments or {}}
            entries.append({"id": call_id, "type": "function", "function": function})
        return entries

    def answered(self, message: OllamaMessage) -> Mapping[str, str]:
        """The call that a tool's message answers: the one that it names, else the first of its function, or of any."""
        named, function = message.tool_call_id, message.tool_name
        found = (
            next((one for one in self._waiting if one[0] == named), None)
            if named
            else next((one for one in self._waiting if one[1] == function), None) or next(iter(self._waiting), None)
        )
        if found is not None:
            self._waiting.remove(found)
            named, function = found[0], function or found[1]
        entry = {"tool_call_id": named, "name": function}
        return {name: value for name, value in entry.items() if value}


def _message(message: OllamaMessage, path: str, calls: _Calls) -> dict[str, Any]:
    if not message.role:
        raise WORDS.fault(f"{path}role", "missing", f"{path}role is missing: every message must have a role")
    role = message.role.lower()
    entry: dict[str, Any] = {"role": role, "content": content_of(message.content or "", message.images, path)}
    if message.tool_calls:
        entry["tool_calls"] = calls.made(message)
    if role == "tool":
        entry.update(calls.answered(message))
    if message.thinking:
        entry["reasoning_content"] = message.thinking
    return entry
