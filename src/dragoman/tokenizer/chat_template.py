"""Turns a conversation into the prompt text its model was trained on.

Does: choose among a model's templates, fit messages to what the template understands, render, continue a last message.
Does not: tokenise, or fetch images. Called by the service, on the event loop or on a tokenise thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from dragoman.errors import InvalidRequest, UnsupportedFeature
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.template_environment import CompiledTemplate, RenderLimits, TemplateLimit, TemplateRejection
from dragoman.types import ChatPrompt

TOOL_TEMPLATE = "tool_use"  # Hugging Face's name for the template that is used when there are tools
PART_SEPARATOR = "\n"  # between the text parts of one message: templates take one string

_PROBE = "dragoman-probe"
_END_MARK = "\ue000dragoman-end\ue000"  # private-use characters: no conversation and no template has them


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
        self._wants_parts = not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    def render(self, prompt: ChatPrompt) -> str:
        """The prompt text of a conversation.

        Raises: InvalidRequest if the template does not take these messages, UnsupportedFeature for parts other than text.
        """
        messages = [self._message(message, i) for i, message in enumerate(prompt.messages)]
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

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        """Whether the template prints this content as text, and not as the Python value that it is."""
        messages = [{"role": "user", "content": content}]
        try:
            text = self._render(
                self._templates["default"],
                {**self._special_tokens, "messages": messages, "tools": None, "add_generation_prompt": True},
            )
        except InvalidRequest:
            return False
        printed_as_value = not isinstance(content, str) and (repr(content) in text or json.dumps(content) in text)
        return _PROBE in text and not printed_as_value

    def _message(self, message: Mapping[str, Any], position: int) -> dict[str, Any]:
        """The message in the form that the template understands."""
        fitted = dict(message)
        if fitted.get("role") == "developer" and not self._knows_developer:
            fitted["role"] = "system"
        content = _joined_text(message.get("content"), position)
        fitted["content"] = [{"type": "text", "text": content}] if self._wants_parts else content
        if calls := message.get("tool_calls"):
            fitted["tool_calls"] = [_tool_call(call) for call in calls]
        return fitted


def _joined_text(content: Any, position: int) -> str:
    """A message's content as one text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise InvalidRequest(
            f"messages[{position}].content must be a string, null or an array of parts, got {type(content).__name__}",
            param="messages",
        )
    return PART_SEPARATOR.join(_part_text(part, f"messages[{position}].content[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, path: str) -> str:
    match part:
        case str(text):
            return text
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise UnsupportedFeature(
                f"{path} of type {kind} is not supported: this model takes text only", param="messages"
            )
    raise InvalidRequest(f"{path} must be an object with a type and a text", param="messages")


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with its arguments as an object: templates write them as JSON themselves."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return dict(call)  # what the model wrote was not JSON; it reads it back as it was
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else dict(call)


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a mark at the end of its text, where the model will go on."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + _END_MARK}
    return {**message, "content": [{**content[0], "text": content[0]["text"] + _END_MARK}]}


def _up_to_mark(text: str) -> str:
    position = text.rfind(_END_MARK)
    if position < 0:
        raise InvalidRequest(
            "continue_final_message is not possible: the model's chat template does not show the last message",
            param="continue_final_message",
        )
    return text[:position].replace(_END_MARK, "")
