"""The served models as Anthropic's clients list them, on the paths where OpenAI's clients list them as well.

Does: tell the two kinds of clients apart by the header that all of Anthropic's send, build both bodies' pages.
Does not: know OpenAI's shape; its operations are handed in. Called on the event loop.
Source: Anthropic API reference, models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from dragoman.errors import InvalidParameter
from dragoman.server.api import HttpCall, json_reply
from dragoman.server.apis.anthropic.errors import ANTHROPIC_ERRORS, REQUEST_ID, VERSION
from dragoman.server.apis.openai_wire.fields import shown
from dragoman.server.describe.answers import LOADING, ErrorFamily, json_answer, merged
from dragoman.server.describe.components import parameter
from dragoman.server.describe.json_schema import TEXT
from dragoman.server.model_facts import ModelFacts, facts_of_all, facts_of_name
from dragoman.server.operations import AnswerOperation, Server, looked_at

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "anthropic-version": parameter(
        "header", VERSION, "any version: the answer has the shape that Anthropic's clients read", TEXT
    ),
    "models_limit_query": parameter(
        "query",
        "limit",
        f"with `{VERSION}`: how many models a page has",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    ),
    "models_after_query": parameter("query", "after_id", f"with `{VERSION}`: the page after this model", TEXT),
    "models_before_query": parameter("query", "before_id", f"with `{VERSION}`: the page before this model", TEXT),
}


class AnthropicModel(msgspec.Struct, tag_field="type", tag="model"):
    """One model. `max_input_tokens`, `max_tokens`: its context. `created_at`: when it was loaded."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModelList(msgspec.Struct):
    """One page of models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def anthropic_model(facts: ModelFacts) -> AnthropicModel:
    """One model as it is listed."""
    created = datetime.fromtimestamp(facts.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicModel(facts.name, facts.name, created, "active", facts.max_model_len, facts.max_model_len)


def anthropic_models(models: Sequence[ModelFacts], query: Mapping[str, str]) -> AnthropicModelList:
    """A page. Raises: InvalidParameter for a page that there is not."""
    ids = [facts.name for facts in models]
    begin, end = 0, len(ids)
    if "after_id" in query:
        begin = _position(ids, query["after_id"], "after_id") + 1
    if "before_id" in query:
        end = _position(ids, query["before_id"], "before_id")
    limit = _limit(query)
    if "before_id" in query and "after_id" not in query:
        page = models[max(begin, end - limit) : end]
        has_more = end - limit > begin
    else:
        page = models[begin : min(end, begin + limit)]
        has_more = begin + limit < end
    data = [anthropic_model(facts) for facts in page]
    return AnthropicModelList(data, has_more, data[0].id if data else None, data[-1].id if data else None)


def for_anthropic_too(operations: Iterable[AnswerOperation], errors: ErrorFamily) -> tuple[AnswerOperation, ...]:
    """The operations of a model list, so that they answer Anthropic's clients in their shape. `errors`: the owner's."""
    return tuple(_either(operation, errors) for operation in operations)


def _either(operation: AnswerOperation, errors: ErrorFamily) -> AnswerOperation:
    is_list = "{" not in operation.path

    async def answer(http: HttpCall, server: Server) -> Any:
        if VERSION not in http.headers:
            return await operation.answer(http, server)
        if is_list:
            await looked_at(server)
            made: Any = anthropic_models(facts_of_all(server.models), http.query)
        else:
            name = http.path_params["name"]
            made = anthropic_model(facts_of_name(server.models, name))
        return json_reply(200, made, {REQUEST_ID: http.request_id})

    kind = AnthropicModelList if is_list else AnthropicModel
    kinds = ("unauthorized", "invalid_parameter") if is_list else ("unauthorized", "not_found", *LOADING)
    names = tuple(PARAMETERS) if is_list else ("anthropic-version",)
    theirs = ANTHROPIC_ERRORS.answers(kinds)
    shared = [kind for kind, status in errors.statuses.items() if status in theirs]  # either client may meet the status
    return replace(
        operation,
        answers=merged(operation.answers, {200: json_answer(kind)}, errors.answers(shared), theirs),
        parameters=(*operation.parameters, *names),
        answer=answer,
    )


def _position(ids: Sequence[str], name: str, param: str) -> int:
    if name not in ids:
        raise InvalidParameter(f"{param} must be the id of a model in the list, got {shown(name)}", param=param)
    return ids.index(name)


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidParameter(f"limit must be an integer between 1 and {MAX_LIMIT}, got {shown(text)}", param="limit")
    return int(text)
