"""A model's service for operations that count tokens and generate nothing. Used on the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dragoman.errors import UnsupportedFeature
from dragoman.server.generation.prepare import PromptTokens
from dragoman.server.registry import ServedModel
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import Prompt


@runtime_checkable
class TokenizingService(Protocol):
    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    @property
    def max_model_len(self) -> int: ...

    async def tokenize(self, prompt: Prompt) -> PromptTokens: ...

    async def detokenize(self, token_ids: Sequence[int]) -> str: ...


def tokenizing_service(model: ServedModel) -> TokenizingService:
    """Raises: UnsupportedFeature if the model has no tokenizer."""
    if isinstance(model.service, TokenizingService):
        return model.service
    raise UnsupportedFeature(
        f"model {model.name} has no tokenizer here: the upstream tokenizes its text", param="model"
    )
