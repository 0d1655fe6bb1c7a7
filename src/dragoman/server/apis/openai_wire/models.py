"""The bodies of model lists. Source: OpenAI API reference, models; vLLM's `max_model_len`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.server.model_facts import ModelFacts


class OpenAiModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `created`: Unix time in seconds. `max_model_len`: tokens of context.

    `parent`: of an adapter, the model that it changes; `root`: where it was loaded from. `aliases`: all of its names, if it
    has several, and `tags`: what the operator tells of it, as llama.cpp's server has them.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str
    max_model_len: int | UnsetType = UNSET
    root: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    aliases: list[str] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET


class OpenAiModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: str = "list"
    data: list[OpenAiModel]


def openai_model(facts: ModelFacts, owned_by: str = "dragoman") -> OpenAiModel:
    return OpenAiModel(
        id=facts.name,
        created=facts.created_s,
        owned_by=owned_by,
        max_model_len=UNSET if facts.max_model_len is None else facts.max_model_len,
        root=facts.root or UNSET,
        parent=facts.parent or UNSET,
        aliases=list(facts.names) if len(facts.names) > 1 else UNSET,
        tags=list(facts.tags) if facts.tags else UNSET,
    )


def openai_models(models: Sequence[ModelFacts], owned_by: str = "dragoman") -> OpenAiModelList:
    return OpenAiModelList(data=[openai_model(facts, owned_by) for facts in models])
