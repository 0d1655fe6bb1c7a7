"""`LLM`: the engine without a server, for scripts and notebooks.

Does: the same model, options and service as `dragoman serve`, behind blocking calls. Does not: listen on a port.
Its event loop runs on a thread of its own; every method may be called from any thread, several at a time.

    with LLM("path/to/model") as llm:
        for result in llm.generate(["Deep learning is", "The sky is"], max_tokens=32):
            print(result.sequences[0].text)
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dragoman.compose import build_served_model
from dragoman.config.generation import default_sampling
from dragoman.config.hub_models import with_models
from dragoman.config.kinds import Value
from dragoman.config.names import key_of
from dragoman.config.option import show
from dragoman.config.request_options import operator_sampling
from dragoman.config.resolve import Config, demo_model_dir, resolve
from dragoman.config.sources import Given, environment
from dragoman.coroutines import LoopThread, together
from dragoman.engine.factory import Progress
from dragoman.types import (
    ChatPrompt,
    GenerationRequest,
    GenerationResult,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)

Result = TypeVar("Result")

logger = logging.getLogger("dragoman")

SOURCE = "argument of LLM"


class LLM:
    """A loaded model. Use it in a `with` block, or call `close` at the end."""

    def __init__(self, model: str | Path | None = None, *, progress: Progress | None = None, **options: Value) -> None:
        """Load `model`, a Hugging Face directory or a model of the hub (ORG/NAME); None = the bundled demo model.

        `options` are those of `docs/options.md`, with underscores. A serving.properties in the directory and OPTION_
        variables count as they do for `dragoman serve`. Raises: ConfigError for a bad or unknown option, ModelError.
        """
        self.config: Config = _resolved(_givens(model, options), progress or _no_progress)
        self._numbers = count(1)
        self._default_sampling = default_sampling(self.config.model_dir, operator_sampling(self.config.sampling))
        self._thread = LoopThread("dragoman-llm")
        self._is_closed = False
        try:
            self._composed = self._run(build_served_model(self.config, progress or _no_progress))
            self._model = self._composed.served
        except BaseException:
            self._thread.close()
            raise

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        include_stop_in_text: bool = False,
        truncate_prompt_tokens: int | None = None,
    ) -> list[GenerationResult]:
        """One result per prompt, in their order; all prompts run at the same time.

        A prompt is a text or a sequence of token ids. `sampling` None = the model's own default. `max_tokens` None = up
        to the context length. Raises: ServerError if a request cannot be served; the others are then aborted.
        """
        texts = [prompts] if isinstance(prompts, str) else prompts
        requests = [
            GenerationRequest(
                request_id=self._next_id(),
                prompt=_prompt(prompt),
                sampling=sampling or self._default_sampling,
                max_tokens=max_tokens,
                stop=tuple(stop),
                include_stop_in_text=include_stop_in_text,
                truncate_prompt_tokens=truncate_prompt_tokens,
            )
            for prompt in texts
        ]
        return self._run(self._generate_all(requests))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> GenerationResult:
        """The model's next turn in the conversation `messages` (`role` and `content` each). Raises: ServerError."""
        request = GenerationRequest(
            request_id=self._next_id(),
            prompt=ChatPrompt(tuple(messages), tools=tuple(tools)),
            sampling=sampling or self._default_sampling,
            max_tokens=max_tokens,
            stop=tuple(stop),
            parse_tool_calls=bool(tools),
            tool_choice="auto" if tools else None,
        )
        return self._run(self._generate_all([request]))[0]

    def close(self) -> None:
        """Abort running requests and free all memory; a second call does nothing."""
        if self._is_closed:
            return
        self._run(self._model.engine.shutdown(0.0))
        self._composed.close()
        self._is_closed = True
        self._thread.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_id(self) -> str:
        return f"llm-{next(self._numbers)}"

    async def _generate_all(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        return await together(self._model.service.generate(request) for request in requests)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._is_closed:
            work.close()
            raise RuntimeError("this LLM is closed")
        return self._thread.run(work)


def _resolved(givens: Sequence[Given], progress: Progress) -> Config:
    environ, demo_dir = environment(), demo_model_dir()
    return with_models(
        lambda find: resolve(givens, environ, demo_dir, find=find), demo_dir, environ, progress, logger.warning
    )


def _givens(model: str | Path | None, options: Mapping[str, Value]) -> list[Given]:
    givens = [Given(name, key_of(name), show(value), SOURCE) for name, value in options.items() if value is not None]
    if model is not None:
        givens.append(Given("model", "option.model_id", str(model), SOURCE))
    return givens


def _prompt(prompt: str | Sequence[int]) -> Prompt:
    return TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(tuple(prompt))


def _no_progress(stage: str, fraction: float) -> None: ...
