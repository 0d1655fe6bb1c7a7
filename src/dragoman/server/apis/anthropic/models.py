"""The served models for Anthropic's clients. On the event loop. Source: Anthropic API reference, models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from dragoman.server.api import HttpCall, json_reply
from dragoman.server.apis.anthropic.errors import ERRORS, VERSION, request_id_header
from dragoman.server.apis.anthropic.schema import Page, rfc3339
from dragoman.server.batches.keeping import PageNames, page_of
from dragoman.server.describe.answers import FINDING, LISTING, ErrorFamily, json_answer, merged
from dragoman.server.describe.components import parameter
from dragoman.server.describe.json_schema import TEXT
from dragoman.server.model_facts import ModelFacts, facts_of_all, facts_of_name
from dragoman.server.operations import AnswerOperation, Server, looked_at

PAGE = PageNames("after_id", "before_id", 20, 1000)

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "anthropic-version": parameter(
        "header", VERSION, "any version: the answer has the shape that Anthropic's clients read", TEXT
    ),
    "models_limit_query": parameter(
        "query",
        "limit",
        f"with `{VERSION}`: how many models a page has",
        {"type": "integer", "minimum": 1, "maximum": PAGE.most, "default": PAGE.usual},
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


class AnthropicModelList(Page):
    """One page of models."""

    data: list[AnthropicModel]


def _model(facts: ModelFacts) -> AnthropicModel:
    created, length = rfc3339(facts.created_s), facts.max_model_len
    return AnthropicModel(facts.name, facts.name, created, "active", length, length)


def for_anthropic_too(operations: Iterable[AnswerOperation], errors: ErrorFamily) -> tuple[AnswerOperation, ...]:
    """The operations of a model list, with Anthropic's shape for its clients. `errors`: the owner's."""
    return tuple(_either(operation, errors) for operation in operations)


def _either(operation: AnswerOperation, errors: ErrorFamily) -> AnswerOperation:
    is_list = "{" not in operation.path

    async def answer(http: HttpCall, server: Server) -> Any:
        if VERSION not in http.headers:
            return await operation.answer(http, server)
        if is_list:
            await looked_at(server)
            all_models = [_model(facts) for facts in facts_of_all(server.models)]
            made: Any = AnthropicModelList.of(*page_of(all_models, http.query, PAGE))
        else:
            made = _model(facts_of_name(server.models, http.path_params["name"]))
        return json_reply(200, made, request_id_header(http))

    kind = AnthropicModelList if is_list else AnthropicModel
    names = tuple(PARAMETERS) if is_list else ("anthropic-version",)
    theirs = ERRORS.answers((*LISTING, "invalid_parameter") if is_list else FINDING)
    shared = [kind for kind, status in errors.statuses.items() if status in theirs]  # either client may meet the status
    return replace(
        operation,
        answers=merged(operation.answers, {200: json_answer(kind)}, errors.answers(shared), theirs),
        parameters=(*operation.parameters, *names),
        answer=answer,
    )
