"""Turns a conversation into the prompt text its model was trained on.

Called by the service, on a thread that may wait, or on the event loop if `renders_at_once` allows it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from datetime import datetime
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from dragoman.errors import InvalidRequest, UnsupportedFeature
from dragoman.tokenizer.conversation import (
    SYSTEM,
    has_system,
    with_one_leading,
    with_sorted_results,
    with_system_in_turns,
    with_told_tools,
    with_whole_tools,
)
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.message_content import (
    Part,
    PictureMarker,
    as_parts,
    as_text,
    joined_text,
    num_pictures_in,
    read_content,
    refuse_pictures,
)
from dragoman.tokenizer.template_environment import (
    LIMIT,
    REJECTION,
    TEXT,
    CompiledTemplate,
    RenderLimits,
    outcome,
    told,
)
from dragoman.tokenizer.template_process import ask, size_of
from dragoman.types import ChatPrompt

TOOL_TEMPLATE = "tool_use"  # Hugging Face's name for the template with tools

_PROBE = "dragoman-probe"
_QUESTION = {"role": "user", "content": "?"}
_ANSWER = {"role": "assistant", "content": "!"}
_PROBE_ARGUMENTS = {_PROBE: "é"}
_BARE_TOOLS = ({"type": "function", "function": {"name": _PROBE}},)
_END_MARK = "\ue000dragoman-end\ue000"  # private-use characters, in no conversation or template
_MOST_AT_ONCE = 4  # processes for one model, each with a limit of memory
_SMALL_BYTES = 8 << 10  # of a conversation that a vouched template renders at once
_FIREFUNCTION = ("functions", "datetime")  # variables of fireworks-ai/llama-3-firefunction-v2
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")  # templates read one of the first two


def load_chat_template(tokenizer: HfTokenizer, vouched: Collection[str] = ()) -> ChatTemplate | None:
    """The chat template that came with the tokenizer, if any. `vouched`: trusted templates. Raises: ValueError."""
    sources, special_tokens = tokenizer.facts.chat_templates, tokenizer.facts.special_tokens
    if not sources:
        return None
    is_vouched = all(source in vouched for source in sources.values())
    return ChatTemplate(sources, special_tokens=special_tokens, is_vouched=is_vouched)


class ChatTemplate:
    """A model's chat template, or its templates by name (`default`, `tool_use`). Immutable: every thread may use it.

    `special_tokens`: `bos_token` and the like. `now`: the clock for the date. `is_vouched`: the operator trusts it.
    Then only large conversations, which a client may have made for it, are rendered in a limited process. Raises:
    ValueError if a template does not compile or takes too much for a word, or none is the default.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        limits: RenderLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
        is_vouched: bool = False,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        self.sources: Mapping[str, str] = sources
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits or RenderLimits()
        self._now = now
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._vouched = {name: _compiled_here(name, text) for name, text in sources.items()} if is_vouched else {}
        if "default" not in sources:
            raise ValueError(f"the chat templates {', '.join(map(_shown, sources))[:200]} lack one named default")
        if not is_vouched:
            for name in sources:
                self._check(name)
        self._tool_templates = frozenset(name for name, text in sources.items() if "tools" in text)
        self._tells_tools = True
        self._reads: Mapping[str, Collection[str]] = {}
        self._reads = {name: self._read_of(_FIREFUNCTION, name) for name in sources}
        self._knows_developer = "developer" in sources["default"]
        self._marker: PictureMarker | None = None
        self._writes_markers = False
        self.default_kwargs: Mapping[str, Any] = {}
        self._wants_parts = not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])
        self._wants_argument_texts = not self._writes_arguments(_PROBE_ARGUMENTS) and self._writes_arguments(
            json.dumps(_PROBE_ARGUMENTS, ensure_ascii=False)
        )
        self._takes_system = self._writes([{"role": SYSTEM, "content": _PROBE}, _QUESTION])
        self._takes_later_system = self._writes([_QUESTION, _ANSWER, {"role": SYSTEM, "content": _PROBE}, _QUESTION])
        self._wants_whole_tools = not self._writes([_QUESTION], _BARE_TOOLS) and self._writes(
            [_QUESTION], with_whole_tools(_BARE_TOOLS)
        )

    def with_pictures(self, marker: str) -> ChatTemplate:
        """The same template for a model that takes pictures. `marker`: stands for one in prompts (`PictureMarker`)."""
        seeing = copy(self)
        seeing._marker = PictureMarker(marker)
        seeing._writes_markers = self._writes_marker(seeing._marker)
        return seeing

    def with_default_kwargs(self, kwargs: Mapping[str, Any]) -> ChatTemplate:
        """The same template with default values of variables, which a conversation may override one by one."""
        copied = copy(self)
        copied.default_kwargs = dict(kwargs)
        return copied

    def without_told_tools(self) -> ChatTemplate:
        """The same template, which refuses tools if it has no place for them."""
        refusing = copy(self)
        refusing._tells_tools = False
        return refusing

    def renders_at_once(self, prompt: ChatPrompt) -> bool:
        """True if `render` does not wait for a process: a small conversation and a trusted template."""
        if not self._vouched:
            return False
        size = size_of((prompt.messages, prompt.tools, dict(prompt.template_kwargs), dict(self.default_kwargs)))
        return size is not None and size <= _SMALL_BYTES

    def render(self, prompt: ChatPrompt) -> str:
        """The prompt text of a conversation, with a marker for each of its pictures.

        Raises: InvalidRequest if the template refuses the messages or takes too much; TextOnly for pictures that the
        model does not take; UnsupportedFeature for parts of other kinds; Overloaded without a process.
        """
        if not prompt.messages:
            raise InvalidRequest("messages must hold at least one message, got none", param="messages")
        messages = self._with_known_roles(with_sorted_results(prompt.messages))
        if prompt.tools and self._name_for(prompt) not in self._tool_templates:
            messages = self._told_of_tools(messages, prompt.tools)
        if not has_system(messages):
            return self._rendered(prompt, messages)
        messages = with_one_leading(messages)
        if not self._takes_later_system:
            return self._rendered(prompt, with_system_in_turns(messages, keeps_leading=self._takes_system))
        try:
            return self._rendered(prompt, messages)
        except InvalidRequest:
            in_turns = with_system_in_turns(messages, keeps_leading=self._takes_system)
            if in_turns == messages:
                raise
            return self._rendered(prompt, in_turns)

    def _rendered(self, prompt: ChatPrompt, conversation: Sequence[Mapping[str, Any]]) -> str:
        contents = [read_content(message.get("content"), i) for i, message in enumerate(conversation)]
        rows = zip(conversation, contents, self._markers(contents), strict=True)
        messages = [self._message(*entry, i) for i, entry in enumerate(rows)]
        if prompt.continue_final_message:
            messages[-1] = _marked(messages[-1])
        name = self._name_for(prompt)
        add_generation_prompt = prompt.template_kwargs.get("add_generation_prompt", True)
        variables = {
            "documents": None,
            **self._firefunction(name, prompt.tools),
            **self.default_kwargs,
            **prompt.template_kwargs,
            **self._special_tokens,
            "messages": messages,
            "tools": self._tools(prompt.tools) or None,
            "add_generation_prompt": bool(add_generation_prompt) and not prompt.continue_final_message,
        }
        text = self._render(name, variables, is_here=self.renders_at_once(prompt))
        self._check_markers(text, contents)
        return _up_to_mark(text) if prompt.continue_final_message else text

    def _firefunction(self, name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The variables that Firefunction's template reads instead of `tools` and a clock."""
        values = {
            "functions": lambda: json.dumps([*map(dict, tools)], indent=2, ensure_ascii=False),
            "datetime": lambda: self._now().strftime("%b %d %Y %H:%M:%S"),
        }
        return {word: values[word]() for word in self._reads.get(name, ())}

    def _read_of(self, words: Collection[str], name: str) -> list[str]:
        named = [word for word in words if word in self.sources[name]]
        text = self._probe(name, [_QUESTION], None, {word: f"{_PROBE}-{word}" for word in named}) if named else ""
        return [word for word in named if f"{_PROBE}-{word}" in text]

    def _with_known_roles(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        if self._knows_developer:
            return list(messages)
        return [{**message, "role": SYSTEM} if message.get("role") == "developer" else message for message in messages]

    def _name_for(self, prompt: ChatPrompt) -> str:
        return TOOL_TEMPLATE if prompt.tools and TOOL_TEMPLATE in self.sources else "default"

    def _told_of_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """The messages with descriptions of the tools. Raises: UnsupportedFeature if another template takes tools."""
        if self._tool_templates or not self._tells_tools:
            raise UnsupportedFeature(
                "tools are not supported: the model's chat template has no place for them", param="tools"
            )
        return with_told_tools(messages, tools)

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return with_whole_tools(tools) if tools and self._wants_whole_tools else list(tools)

    def _writes(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """True if the template writes the probe's word for a short conversation."""
        name = TOOL_TEMPLATE if tools and TOOL_TEMPLATE in self.sources else "default"
        if self._wants_parts:
            messages = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
        try:
            return _PROBE in self._probe(name, messages, [*map(dict, tools)] or None)
        except ValueError:  # it takes too long
            return False

    def _check(self, name: str) -> None:
        kind, words = ask(self.sources[name], None, self._now(), self._limits)
        if kind != TEXT:
            raise ValueError(f"chat template {_shown(name)} does not compile: {words}")

    def _render(self, name: str, variables: Mapping[str, Any], *, is_here: bool) -> str:
        kind, text = self._outcome(name, variables, is_here=is_here)
        if kind == TEXT:
            return text
        verb = "are not allowed" if kind == REJECTION else "cannot be rendered"
        raise InvalidRequest(f"messages {verb} by the model's chat template: {text}", param="messages")

    def _outcome(self, name: str, variables: Mapping[str, Any], *, is_here: bool) -> tuple[int, str]:
        if is_here:
            return outcome(self._vouched[name], variables, self._now(), self._limits.max_size)
        with self._places:
            return ask(self.sources[name], variables, self._now(), self._limits)

    def _markers(self, contents: Sequence[Sequence[Part]]) -> list[list[str]]:
        if self._marker is None:
            return [[]] * len(contents)
        counts = [num_pictures_in(parts) for parts in contents]
        return [
            self._marker.of(last - count + 1, count) for last, count in zip(accumulate(counts), counts, strict=True)
        ]

    def _check_markers(self, text: str, contents: Sequence[Sequence[Part]]) -> None:
        num_pictures = 0 if self._marker is None else sum(map(num_pictures_in, contents))
        if self._marker is None or num_pictures == 0:
            return
        found = self._marker.found(text)
        if sorted(found) != sorted(self._marker.of(1, num_pictures)):
            wanted = f"{self._marker.wanted(num_pictures)}, once for each image"
            got = ", ".join(found[:5]) if self._marker.is_numbered and found else len(found)
            raise InvalidRequest(f"messages must make a prompt with {wanted}, got {got}", param="messages")

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        """True if the template prints this content as text, not as a Python value."""
        text = self._probed(content)
        printed_as_value = not isinstance(content, str) and (repr(content) in text or json.dumps(content) in text)
        return _PROBE in text and not printed_as_value

    def _writes_marker(self, marker: PictureMarker) -> bool:
        text = self._probed([{"type": "image"}, {"type": "text", "text": _PROBE}])
        return _PROBE in text and marker.found(text) == marker.of(1, 1)

    def _probed(self, content: str | list[dict[str, str]]) -> str:
        return self._probe("default", [{"role": "user", "content": content}], None)

    def _probe(
        self,
        name: str,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """The text for a short conversation by the named template, "" if it refuses it. Raises: ValueError."""
        variables = {
            **self._firefunction(name, tools or ()),
            **self._special_tokens,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": True,
            **more,
        }
        kind, text = self._outcome(name, variables, is_here=bool(self._vouched))
        if kind == LIMIT:
            raise ValueError(f"chat template {_shown(name)} cannot be used: of a few words, {text}")
        return text if kind == TEXT else ""

    def _writes_arguments(self, arguments: dict[str, str] | str) -> bool:
        """True if the template writes a call with these arguments, not as a Python value."""
        call = {"id": "probe0000", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "probe", "tool_call_id": "probe0000", "content": "!"},
        ]
        tools = [
            {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
        ]
        text = self._probe(TOOL_TEMPLATE if TOOL_TEMPLATE in self.sources else "default", messages, tools)
        return _PROBE in text and (isinstance(arguments, str) or repr(arguments) not in text)

    def _message(
        self, message: Mapping[str, Any], parts: Sequence[Part], markers: Sequence[str], position: int
    ) -> dict[str, Any]:
        fitted = dict(message)
        fitted["content"] = self._content(parts, markers, position)
        if calls := message.get("tool_calls"):
            fitted["tool_calls"] = [_tool_call(call, as_text=self._wants_argument_texts) for call in calls]
        for name in _REASONING_NAMES:
            if (reasoning := message.get(name)) is not None:
                return {"thinking": reasoning, **fitted, "reasoning_content": reasoning}
        return fitted

    def _content(self, parts: Sequence[Part], markers: Sequence[str], position: int) -> str | list[dict[str, str]]:
        """The content of the message at `position`. Markers in a text say where the pictures go."""
        if self._marker is None:
            refuse_pictures(parts)
        found = self._marker.found(joined_text(parts)) if self._marker is not None and markers else []
        if self._writes_markers and markers and not found:
            return as_parts(parts)
        text = as_text(parts, markers, found, position)
        return [{"type": "text", "text": text}] if self._wants_parts else text


def _shown(name: str) -> str:
    return repr(name)[1:-1][:40]


def _compiled_here(name: str, source: str) -> CompiledTemplate:
    try:
        return CompiledTemplate(source)
    except Exception as error:  # compiling evaluates constants
        raise ValueError(f"chat template {_shown(name)} does not compile: {told(error)[1]}") from error


def _tool_call(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    """The call with its arguments as an object, which most templates write as JSON, or as JSON text."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    raw = function.get("arguments")
    arguments = _parsed_arguments(raw) if isinstance(raw, str) else raw
    if as_text and isinstance(arguments, dict):
        arguments = raw if isinstance(raw, str) and raw else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}} if "arguments" in function else dict(call)


def _parsed_arguments(text: str) -> dict[str, Any] | str:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a mark at the end of its text. The blank after it shows whether the template keeps white space."""
    content, mark = message["content"], f"{_END_MARK} "
    if isinstance(content, str):
        return {**message, "content": content + mark}
    *before, last = content
    if last["type"] != "text":
        return {**message, "content": [*content, {"type": "text", "text": mark}]}
    return {**message, "content": [*before, {**last, "text": last["text"] + mark}]}


def _up_to_mark(text: str) -> str:
    position = text.rfind(_END_MARK)
    if position < 0:
        raise InvalidRequest(
            "continue_final_message is not possible: the model's chat template does not show the last message",
            param="continue_final_message",
        )
    beginning = text[:position].replace(_END_MARK, "")
    # If the template drops white space at the end of messages, the model has never seen it there.
    return beginning if text.startswith(" ", position + len(_END_MARK)) else beginning.rstrip()
