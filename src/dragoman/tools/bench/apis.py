"""The APIs of the load generator: paths, bodies, and readers of answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from dragoman.tools.bench.answer import (
    ReadEvent,
    read_messages,
    read_ollama,
    read_openai,
    read_responses,
    read_rows,
    read_text_batch,
    read_tokens,
)

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    output_tokens: int | None = None

    @property
    def conversation(self) -> list[Mapping[str, Any]]:
        return list(self.messages) or [{"role": "user", "content": self.text}]


@dataclass(frozen=True, slots=True)
class Question:
    """The content of one request: its prompts (one, except in batches), and the most tokens for each."""

    prompts: Sequence[Prompt]
    output_tokens: int
    model: str = ""
    ignore_eos: bool = False

    @property
    def prompt(self) -> Prompt:
        return self.prompts[0]


@dataclass(frozen=True, slots=True)
class BenchApi:
    """One API. `read` None = the body is the answer's text. `generates` False = it embeds or scores texts.

    `models_path`: of the list of models, None = below the version in `path`, "" = a name is not needed.
    """

    name: str
    path: str
    body: Callable[[Question], Body]
    read: ReadEvent | None
    takes_messages: bool = False
    can_ignore_eos: bool = False
    models_path: str | None = ""
    is_batch: bool = False
    generates: bool = True
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def _ending(question: Question, name: str = "ignore_eos") -> Body:
    return {name: True} if question.ignore_eos else {}


def _streamed(question: Question) -> Body:
    shared = {"model": question.model, "max_tokens": question.output_tokens, "temperature": 0, "stream": True}
    return {**shared, "stream_options": {"include_usage": True}, **_ending(question)}


def _chat(question: Question) -> Body:
    return {**_streamed(question), "messages": question.prompt.conversation}


def _completions(question: Question) -> Body:
    return {**_streamed(question), "prompt": question.prompt.text}


def _responses(question: Question) -> Body:
    content = question.prompt.conversation if question.prompt.messages else question.prompt.text
    most = {"max_output_tokens": question.output_tokens}
    shared = {"model": question.model, "temperature": 0, "stream": True, "store": False}
    return {**shared, "input": content, **most, **_ending(question)}


def _messages(question: Question) -> Body:
    system = " ".join(
        str(message.get("content")) for message in question.prompt.conversation if message.get("role") == "system"
    )
    turns = [message for message in question.prompt.conversation if message.get("role") != "system"]
    shared = {"model": question.model, "max_tokens": question.output_tokens, "temperature": 0, "stream": True}
    return {**shared, "messages": turns, **({"system": system} if system else {})}


def _lmi(question: Question) -> Body:
    parameters = {"max_new_tokens": question.output_tokens, "details": True, **_ending(question, "ignore_eos_token")}
    return {"inputs": question.prompt.text, "parameters": parameters, "stream": True}


def _tgi(question: Question) -> Body:
    parameters = {"max_new_tokens": question.output_tokens, "details": True}
    return {"inputs": question.prompt.text, "parameters": parameters}


def _ollama_options(question: Question) -> Body:
    return {
        "model": question.model,
        "stream": True,
        "options": {"num_predict": question.output_tokens, "temperature": 0},
    }


def _ollama(question: Question) -> Body:
    return {**_ollama_options(question), "messages": question.prompt.conversation}


def _ollama_generate(question: Question) -> Body:
    return {**_ollama_options(question), "prompt": question.prompt.text, "raw": True}


def _text(question: Question) -> Body:
    return {"id": "bench", "prompt": question.prompt.text, "maxLength": question.output_tokens}


def _text_batch(question: Question) -> Body:
    prompts = [{"id": str(number), "prompt": prompt.text} for number, prompt in enumerate(question.prompts)]
    return {"prompts": prompts, "maxLength": question.output_tokens}


def _embeddings(question: Question) -> Body:
    return {"model": question.model, "input": [prompt.text for prompt in question.prompts]}


def _rerank(question: Question) -> Body:
    documents = [prompt.text for prompt in question.prompts]
    return {"model": question.model, "query": "Which of these is about the sea?", "documents": documents}


_TAGS = "/api/tags"
_EVENTS = MappingProxyType({"accept": "text/event-stream"})  # else some servers stream in another form
_ANTHROPIC = MappingProxyType({**_EVENTS, "anthropic-version": "2023-06-01"})

_openai = partial(BenchApi, read=read_openai, can_ignore_eos=True, models_path=None, headers=_EVENTS)
_responses_api = partial(BenchApi, read=read_responses, can_ignore_eos=True, models_path=None, headers=_EVENTS)
_messages_api = partial(BenchApi, read=read_messages, models_path=None, headers=_ANTHROPIC)
_ollama_api = partial(BenchApi, read=read_ollama, models_path=_TAGS)

_ALL = (
    _openai("chat", "/v1/chat/completions", _chat, takes_messages=True),
    _openai("completions", "/v1/completions", _completions),
    _responses_api("responses", "/v1/responses", _responses, takes_messages=True),
    _messages_api("messages", "/v1/messages", _messages, takes_messages=True),
    _openai("ovms", "/v3/chat/completions", _chat, takes_messages=True),
    _openai("ovms-completions", "/v3/completions", _completions),
    BenchApi("lmi", "/invocations", _lmi, read_tokens, can_ignore_eos=True),
    BenchApi("tgi", "/generate_stream", _tgi, read_tokens, headers=_EVENTS),
    _ollama_api("ollama", "/api/chat", _ollama, takes_messages=True),
    _ollama_api("ollama-generate", "/api/generate", _ollama_generate),
    BenchApi("text", "/api/generate-one", _text, None),
    BenchApi("embeddings", "/v1/embeddings", _embeddings, read_rows, models_path=None, is_batch=True, generates=False),
    BenchApi("rerank", "/v1/rerank", _rerank, read_rows, models_path=None, is_batch=True, generates=False),
    BenchApi("text-batch", "/api/generate-batch", _text_batch, read_text_batch, is_batch=True),
)

APIS: Mapping[str, BenchApi] = MappingProxyType({api.name: api for api in _ALL})
