"""Requests that follow from dice: of every operation, with mutated paths, queries, headers and bodies.

Does: say what is sent. Does not: send it, or judge answers.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from dragoman.server.operations import GenerateOperation, Operation
from tests.fuzz import bodies
from tests.support.api_document import resolved
from tests.support.live_routes import live_document, live_operations

DOCUMENT = live_document()
OPERATIONS = live_operations()

# Models that come and go: what is loaded or unloaded must not be the one that everybody else uses.
NAMES = ("fake", "nickname", "other", "a b", "é", "..", "%00", "x" * 300, "a\r\nb", "models", "null", "1", "{name}")
HARMLESS_NAMES = tuple(name for name in NAMES if name not in ("fake", "nickname"))
MEDIA_TYPES = (
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "multipart/form-data", "", "json",
    "application/json; charset=utf-16", "application/json; charset=nothing", "application/xml", "text/plain; charset=\xff",
    "application/jsonlines", "image/png",
)  # fmt: skip
HEADERS = (
    ("accept", "text/event-stream"), ("accept", "application/jsonlines"), ("accept", "*/*;q=0, \xff"), ("te", "trailers"),
    ("x-request-id", "a\tb"), ("x-request-id", "é\xff\x80"), ("x-request-id", "x" * 10_000), ("x-request-id", ""),
    ("x-amzn-sagemaker-inference-id", '"><script>'), ("x-amzn-sagemaker-custom-attributes", "a=1;x-starting-token=9;=;;"),
    ("x-amzn-sagemaker-target-model", "m.tar.gz"), ("x-amzn-sagemaker-inference-component", "é"), ("x-adapter", "none"),
    ("x-synchronous", "false"), ("x-starting-token", "nonsense"), ("x-max-items", "-1"), ("x-cache-token", "\x80"),
    ("x-stainless-read-timeout", "NaN"), ("x-request-timeout-ms", "1e9"), ("content-encoding", "gzip"),
    ("expect", "100-continue"),
    ("authorization", "Bearer \xff"), ("traceparent", "00-zz-1-1"), ("origin", "null"),
    ("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"), ("upgrade", "websocket"),
    ("range", "bytes=0-1"), ("if-none-match", "*"), ("cookie", "x" * 5000), ("x-forwarded-for", "1.1.1.1"),
)  # fmt: skip
QUERIES = (
    "stream=true",
    "model_name=fake",
    "model_name=",
    "limit=-1",
    "next_page_token=x",
    "a&&=&b=%ff",
    "q=" + "9" * 5000,
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW")
MAX_TOKENS = {"max_tokens": 4, "max_new_tokens": 4, "max_completion_tokens": 4, "maxLength": 6}

_MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_CHAT = {"model": "fake", "messages": _MESSAGES, "max_tokens": 4}
_COMPLETION = {"model": "fake", "prompt": "Hi", "max_tokens": 4}
MORE_BODIES: tuple[Any, ...] = (
    {**_CHAT, "tools": [_TOOL], "tool_choice": "auto", "stream": True},
    {**_CHAT, "tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {**_CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}},
    {**_CHAT, "messages": [*_MESSAGES, {"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "content": "1"}]},
    {**_CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    {**_CHAT, "logprobs": True, "top_logprobs": 2, "stream": True, "stream_options": {"include_usage": True}},
    {**_CHAT, "chat_template_kwargs": {"enable_thinking": False, "messages": 1}},
    {**_CHAT, "chat_template_kwargs": {"thinking_budget": 3}, "reasoning": {"max_tokens": 3, "exclude": True}},
    {**_CHAT, "thinking_token_budget": 2, "repetition_detection": {"max_pattern_size": 2, "min_count": 3}},
    {**_COMPLETION, "prompt": ["a", "b"], "echo": True, "logprobs": 2},
    {**_COMPLETION, "prompt": [[5, 6], [7]], "stream": True, "n": 2, "best_of": 2},
    {**_COMPLETION, "guided_regex": "[ab]{1,3}", "stop": ["a"], "logit_bias": {"65": 1}},
    {**_COMPLETION, "guided_choice": ["yes", "no"], "suffix": "there", "bad_words": ["x"], "seed": 1},
    {"inputs": ["a", "b"], "parameters": {"max_new_tokens": 4, "details": True, "top_n_tokens": 2, "do_sample": True}},
    {"inputs": "a", "parameters": {"max_new_tokens": 4, "stop": ["x"], "num_beams": 2, "decoder_input_details": True}},
    {"inputs": [{"role": "user", "content": "Hi"}], "parameters": {"max_new_tokens": 4}, "stream": True},
    {"text": ["a", "b"], "max_length": 3, "add_special_tokens": True, "model": "fake"},
    {"lora_name": "a", "lora_path": "/nowhere"},
    {
        "model": "fake",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            *_MESSAGES,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1", "is_error": True}],
            },
        ],
        "tools": [{"name": "f", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
        "stop_sequences": ["a"],
    },
)


@dataclass(frozen=True)
class Case:
    """One request. `operation`: the one that it means, None where its path or method was changed."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    operation: Operation | None = None

    def head(self) -> bytes:
        """The request line and the header, as they are sent."""
        fields = [("host", "test"), ("connection", "close"), *self.headers]
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            fields.append(("content-length", str(len(self.body))))
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


@dataclass
class Maker:
    """Makes cases. Equal dice make equal cases."""

    dice: random.Random
    _members: dict[str, dict[str, Any]] = field(default_factory=dict)

    def case(self) -> Case:
        """The next one: three of four generate."""
        dice = self.dice
        generating = [operation for operation in OPERATIONS if isinstance(operation, GenerateOperation)]
        operation = dice.choice(generating if dice.random() < 0.75 else OPERATIONS)
        path = self._path(operation)
        query = f"?{dice.choice(QUERIES)}" if dice.random() < 0.1 else ""
        headers, body = self._content(operation)
        if dice.random() < 0.03:
            method = dice.choice(METHODS)
            kept = path if method != "DELETE" else "/nowhere"  # or it would unload what others use
            return Case(method, kept + query, headers, body)
        if dice.random() < 0.02:
            return Case(operation.method, self._spoiled_path(path) + query, headers, body)
        return Case(operation.method, path + query, headers, body, operation)

    def _path(self, operation: Operation) -> str:
        dice = self.dice
        names = HARMLESS_NAMES if operation.needs_hosting else NAMES

        def name(_: Any) -> str:
            if not operation.needs_hosting and dice.random() < 0.7:
                return "fake"
            return quote(dice.choice(names), safe="")

        return re.sub(r"{\w+}", name, operation.path)

    def _spoiled_path(self, path: str) -> str:
        dice = self.dice
        return dice.choice(
            (
                f"{path}/",
                f"/{path}",
                path.upper(),
                f"{path}/x",
                path[:-1] or "/x",
                "/" + "x" * 3000,
                f"{path}%00",
                f"{path};a",
            )
        )

    def _content(self, operation: Operation) -> tuple[tuple[tuple[str, str], ...], bytes]:
        dice = self.dice
        headers = [dice.choice(HEADERS)] if dice.random() < 0.2 else []
        if not operation.body and dice.random() < 0.9:
            return tuple(headers), b""
        body = self._body(operation)
        content = bodies.text_of(dice, body)
        media_type = "application/json"
        if dice.random() < 0.05:
            media_type = dice.choice(MEDIA_TYPES)
            if "urlencoded" in media_type and isinstance(body, dict):
                content = urlencode({str(name): str(value) for name, value in body.items()}, errors="replace").encode()
        return (*headers, ("content-type", media_type)), content

    def _body(self, operation: Operation) -> Any:
        """A body, mostly mutated; no answer to it is long, unless a mutation makes it so."""
        dice = self.dice
        fitting = operation.example is not None and dice.random() < 0.7
        body = operation.example if fitting else dice.choice(MORE_BODIES)
        if isinstance(body, dict):
            inside = body.get("parameters")
            body = {**body, "model": "fake"} if "model" in body else dict(body)
            if isinstance(inside, dict):
                body["parameters"] = {**inside, **{name: MAX_TOKENS[name] for name in inside if name in MAX_TOKENS}}
            body.update({name: MAX_TOKENS[name] for name in body if name in MAX_TOKENS})
        return body if dice.random() < 0.1 else bodies.mutated(dice, body, self.members_of(operation))

    def members_of(self, operation: Operation) -> dict[str, Any]:
        """The schemas of all members that a body of the operation may have, by name."""
        path = operation.path
        if path not in self._members:
            found: dict[str, Any] = {}
            described = DOCUMENT["paths"].get(path, {}).get("post", {}).get("requestBody", {})
            waiting = [one.get("schema", {}) for one in described.get("content", {}).values()]
            for _ in range(4):
                schemas = [resolved(DOCUMENT, schema) for schema in waiting]
                schemas += [resolved(DOCUMENT, one) for schema in schemas for one in schema.get("anyOf", ())]
                members = [pair for schema in schemas for pair in schema.get("properties", {}).items()]
                found.update({name: _plain(schema) for name, schema in members})
                waiting = [schema for _, schema in members]
            self._members[path] = found
        return self._members[path]


def _plain(schema: Any) -> Any:
    """The schema without references at its top."""
    schema = resolved(DOCUMENT, schema)
    return {**schema, "anyOf": [resolved(DOCUMENT, one) for one in schema["anyOf"]]} if "anyOf" in schema else schema


def shown(case: Case) -> str:
    """A case as one line that can be read and sent again."""
    return json.dumps([case.head().decode("latin-1")[:1500], case.body[:1500].decode("latin-1")])
