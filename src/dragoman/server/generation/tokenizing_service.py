"""The services of models for operations that count tokens and generate nothing. Used on the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol, runtime_checkable

from dragoman.errors import InvalidParameter, UnsupportedFeature
from dragoman.server.generation.prepare import PromptTokens, check_num_chars
from dragoman.server.pooling.base import PoolingService
from dragoman.server.registry import ServedModel, TakeEvent
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import GenerationRequest, GenerationResult, Prompt, TextPrompt


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


class NoTexts:
    """Replaces the generating service. `run`, `prepare` and `generate` raise UnsupportedFeature."""

    chat_template = None

    def __init__(self, name: str, service: PoolingService) -> None:
        self._message = f"model {name} {service.facts.kind.does} and does not generate"
        self._service = service

    @property
    def tokenizer(self) -> Tokenizer:
        return self._service.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._service.facts.max_tokens

    async def run(self, request: GenerationRequest, take: TakeEvent) -> None:
        self._refuse()

    async def prepare(self, request: GenerationRequest) -> NoReturn:
        self._refuse()

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        self._refuse()

    async def tokenize(self, prompt: Prompt) -> PromptTokens:
        """Raises: UnsupportedFeature for anything but a text, CapacityError for too long a one."""
        if not isinstance(prompt, TextPrompt):
            self._refuse()
        check_num_chars(len(prompt.text))
        token_ids = await self._service.tokenize(prompt.text, add_special_tokens=prompt.add_special_tokens)
        return PromptTokens(prompt.text, token_ids)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Raises: InvalidParameter for ids outside the vocabulary."""
        most = self._service.facts.vocab_size
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id < most), None)
        if wrong is not None:
            raise InvalidParameter(f"tokens has {wrong}, allowed: 0 to {most - 1}", param="tokens")
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _refuse(self) -> NoReturn:
        raise UnsupportedFeature(self._message, param="model")
