"""Turns a conversation into the prompt text its model was trained on.

Does: choose among a model's templates, fit messages to what the template understands, render, continue a last message.
Does not: tokenise, or fetch images. Called by the service, on the event loop or on a tokenise thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from itertools import accumulate
from typing import Any

import jinja2

from dragoman.errors import InvalidRequest, UnsupportedFeature
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.message_content import (
    Part,
    as_parts,
    as_text,
    joined_text,
    num_pictures_in,
    read_content,
    refuse_pictures,
)
from dragoman.tokenizer.picture_markers import PictureMarker
from dragoman.tokenizer.template_environment import CompiledTemplate, RenderLimits, TemplateLimit, TemplateRejection
from dragoman.types import ChatPrompt

TOOL_TEMPLATE = "tool_use"  # Hugging Face's name for the template that is used when there are tools

_PROBE = "dragoman-probe"
_PROBE_ARGUMENTS = {_PROBE: "é"}
_END_MARK = "\ue000dragoman-end\ue000"  # private-use characters: no conversation and no template has them
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")  # of a message; templates read one of the first two


def load_chat_template(tokenizer: HfTokenizer) -> ChatTemplate | None:
    """The chat template that came with the tokenizer, None if there is none. Raises: ValueError if it does not compile."""
    if not tokenizer.facts.chat_templates:
        return None
    return ChatTemplate(tokenizer.facts.chat_templates, special_tokens=tokenizer.facts.special_tokens)


class ChatTemplate:
    """A model's chat template, or its templates by name (`default`, `tool_use`). Immutable: every thread may use it.

    `special_tokens`: `bos_token` and the like, for the template. `now`: the clock that templates may ask for the date.
    `sources` are the templates' texts by name.
    Raises: ValueError if a template does not compile or none is the default.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        limits: RenderLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        self.sources: Mapping[str, str] = sources
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits or RenderLimits()
        self._templates = {name: self._compile(name, text, now) for name, text in sources.items()}
        if "default" not in self._templates:
            raise ValueError(f"the chat templates {', '.join(sources)} are not enough: one must be named default")
        self._tool_templates = frozenset(name for name, text in sources.items() if "tools" in text)
        self._knows_developer = "developer" in sources["default"]
        self._marker: PictureMarker | None = None
        self._writes_markers = False
        self._wants_parts = not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])
        self._wants_argument_texts = not self._writes_arguments(_PROBE_ARGUMENTS) and self._writes_arguments(
            json.dumps(_PROBE_ARGUMENTS, ensure_ascii=False)
        )

    def with_pictures(self, marker: str) -> ChatTemplate:
        """The same template for a model that takes pictures, in whose prompts `marker` stands for one (`PictureMarker`)."""
        seeing = copy(self)
        seeing._marker = PictureMarker(marker)
        seeing._writes_markers = self._writes_marker(seeing._marker)
        return seeing

    def render(self, prompt: ChatPrompt) -> str:
        """The prompt text of a conversation, with a marker for each of its pictures.

        Raises: InvalidRequest if the template does not take these messages, TextOnly for pictures that the model does not
        take, UnsupportedFeature for parts of other kinds.
        """
        contents = [read_content(message.get("content"), i) for i, message in enumerate(prompt.messages)]
        told = zip(prompt.messages, contents, self._markers(contents), strict=True)
        messages = [self._message(*one, i) for i, one in enumerate(told)]
        if not messages:
            raise InvalidRequest("messages must hold at least one message, got none", param="messages")
        if prompt.continue_final_message:
            messages[-1] = _marked(messages[-1])
        name = TOOL_TEMPLATE if prompt.tools and TOOL_TEMPLATE in self._templates else "default"
        if prompt.tools and name not in self._tool_templates:
            raise UnsupportedFeature(
                "tools are not supported: the model's chat template has no place for them", param="tools"
            )
        add_generation_prompt = prompt.template_kwargs.get("add_generation_prompt", True)
        variables = {
            "documents": None,
            **prompt.template_kwargs,
            **self._special_tokens,
            "messages": messages,
            "tools": list(prompt.tools) or None,
            "add_generation_prompt": bool(add_generation_prompt) and not prompt.continue_final_message,
        }
        text = self._render(self._templates[name], variables)
        self._check_markers(text, contents)
        return _up_to_mark(text) if prompt.continue_final_message else text

    def _compile(self, name: str, text: str, now: Callable[[], datetime]) -> CompiledTemplate:
        try:
            return CompiledTemplate(text, self._limits, now)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template {name} does not compile: line {error.lineno}: {error.message}") from error

    def _render(self, template: CompiledTemplate, variables: Mapping[str, Any]) -> str:
        try:
            return template.render(variables)
        except TemplateRejection as error:
            problem = f"messages are not allowed by the model's chat template: {error}"
        except TemplateLimit as error:
            problem = f"messages cannot be rendered by the model's chat template: {error}"
        except Exception as error:  # a template is the model author's code: it may raise anything
            problem = f"messages cannot be rendered by the model's chat template: {type(error).__name__}: {error}"
        raise InvalidRequest(problem, param="messages")

    def _markers(self, contents: Sequence[Sequence[Part]]) -> list[list[str]]:
        """Those of each message's pictures."""
        if self._marker is None:
            return [[]] * len(contents)
        counts = [num_pictures_in(parts) for parts in contents]
        return [
            self._marker.of(last - count + 1, count) for last, count in zip(accumulate(counts), counts, strict=True)
        ]

    def _check_markers(self, text: str, contents: Sequence[Sequence[Part]]) -> None:
        """Raises: InvalidRequest unless there is one marker in a prompt for each of its pictures."""
        num_pictures = 0 if self._marker is None else sum(map(num_pictures_in, contents))
        if self._marker is None or num_pictures == 0:
            return
        found = self._marker.found(text)
        if sorted(found) != sorted(self._marker.of(1, num_pictures)):
            wanted = f"{self._marker.wanted(num_pictures)}, once for each image"
            got = ", ".join(found[:5]) if self._marker.is_numbered and found else len(found)
            raise InvalidRequest(f"messages must make a prompt with {wanted}, got {got}", param="messages")

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        """Whether the template prints this content as text, and not as the Python value that it is."""
        text = self._probed(content)
        printed_as_value = not isinstance(content, str) and (repr(content) in text or json.dumps(content) in text)
        return _PROBE in text and not printed_as_value

    def _writes_marker(self, marker: PictureMarker) -> bool:
        """Whether the template writes the marker for a part that is a picture."""
        text = self._probed([{"type": "image"}, {"type": "text", "text": _PROBE}])
        return _PROBE in text and marker.found(text) == marker.of(1, 1)

    def _probed(self, content: str | list[dict[str, str]]) -> str:
        """What the template makes of one message, "" if it does not take it."""
        messages = [{"role": "user", "content": content}]
        try:
            return self._render(
                self._templates["default"],
                {**self._special_tokens, "messages": messages, "tools": None, "add_generation_prompt": True},
            )
        except InvalidRequest:
            return ""

    def _writes_arguments(self, arguments: dict[str, str] | str) -> bool:
        """Whether the template writes a call with these arguments, and not as the Python value that they are."""
        call = {"id": "probe0000", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "probe", "tool_call_id": "probe0000", "content": "!"},
        ]
        tools = [
            {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
        ]
        variables = {**self._special_tokens, "messages": messages, "tools": tools, "add_generation_prompt": True}
        try:
            text = self._render(self._templates.get(TOOL_TEMPLATE, self._templates["default"]), variables)
        except InvalidRequest:
            return False
        return _PROBE in text and (isinstance(arguments, str) or repr(arguments) not in text)

    def _message(
        self, message: Mapping[str, Any], parts: Sequence[Part], markers: Sequence[str], position: int
    ) -> dict[str, Any]:
        """The message in the form that the template understands; `parts` are its content, `markers` its pictures'."""
        fitted = dict(message)
        if fitted.get("role") == "developer" and not self._knows_developer:
            fitted["role"] = "system"
        fitted["content"] = self._content(parts, markers, position)
        if calls := message.get("tool_calls"):
            fitted["tool_calls"] = [_tool_call(call, as_text=self._wants_argument_texts) for call in calls]
        for name in _REASONING_NAMES:
            if (reasoning := message.get(name)) is not None:
                return {"thinking": reasoning, **fitted, "reasoning_content": reasoning}
        return fitted

    def _content(self, parts: Sequence[Part], markers: Sequence[str], position: int) -> str | list[dict[str, str]]:
        """The content of the message at `position`; a text that has a marker in it says itself where pictures go."""
        if self._marker is None:
            refuse_pictures(parts)
        found = self._marker.found(joined_text(parts)) if self._marker is not None and markers else []
        if self._writes_markers and markers and not found:
            return as_parts(parts)
        text = as_text(parts, markers, found, position)
        return [{"type": "text", "text": text}] if self._wants_parts else text


def _tool_call(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    """The call with its arguments as an object, which most templates write as JSON themselves, or as JSON text."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    given = function.get("arguments")
    arguments = _parsed_arguments(given) if isinstance(given, str) else given
    if as_text and isinstance(arguments, dict):
        arguments = given if isinstance(given, str) and given else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}} if "arguments" in function else dict(call)


def _parsed_arguments(text: str) -> dict[str, Any] | str:
    """The object, or the text if it is none: what the model wrote so, it reads back as it was."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a mark at the end of its text, where the model will go on.

    The blank after the mark tells whether the template keeps white space there.
    """
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
    said = text[:position].replace(_END_MARK, "")
    # Where the template drops white space at the end of a message, no such message ends with it, and tokens would not fit.
    return said if text.startswith(" ", position + len(_END_MARK)) else said.rstrip()
