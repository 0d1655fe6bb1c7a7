"""LangChain's standard tests (langchain-tests), unmodified, for its classes of OpenAI, Anthropic and Ollama.

The bundled model follows grammars, but is too small to choose arguments. So a test that needs knowledge is expected to fail,
and is an error where it does not. The package itself skips one test that replays recordings, and those whose pictures, audio
and PDF files lie in the internet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

import pytest

from tests.clients.conftest import NAMES, PoolingServer

pytestmark = pytest.mark.asyncio(loop_scope="session")  # the client's connections belong to one loop
STANDARD = import_module("langchain_tests.integration_tests")
Details = Mapping[str, list[str]]

ARGUMENT = "asserts the argument 3, which the bundled model does not read in the prompt"
CHARACTERS = "asserts Chinese and Japanese arguments, which the bundled model does not write"
KEYS = "asserts keys that the prompt alone names; the JSON mode enforces JSON and no more"
CLASSES = "langchain-anthropic takes no class of pydantic 1 for a schema, other than as a tool"
UNFORCED = "langchain-ollama sends no tool_choice, and the bundled model does not call this tool by itself"


class Chat(STANDARD.ChatModelIntegrationTests):  # type: ignore[misc,name-defined]
    """What the APIs share. The standard tests take no fixtures for their parameters, so that one tells the address."""

    __test__ = False
    url: str
    supports_json_mode = True
    model_override_value = NAMES[1]
    fails: ClassVar[Mapping[str, str]] = {}
    """Tests that are expected to fail, and why."""

    @pytest.fixture(autouse=True)
    def served(self, base_url: str, request: pytest.FixtureRequest) -> None:
        """Tell where the server is, and which of the tests are expected to fail."""
        self.url = base_url
        if reason := self.fails.get(request.node.originalname):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> Any:
        """The second answer to a question of several blocks of the cache."""
        model = self.chat_model_class(**self.chat_model_params)
        question = "Tell me of the sea and of the ships. " * 20
        model.invoke(question)
        return self._whole(model.stream(question)) if stream else model.invoke(question)

    def _whole(self, chunks: Iterator[Any]) -> Any:
        first, *others = chunks
        return sum(others, first)


class TestOpenAI(Chat):
    __test__ = True
    supported_usage_metadata_details: ClassVar[Details] = {
        kind: ["cache_read_input", "reasoning_output"] for kind in ("invoke", "stream")
    }

    fails: ClassVar[Mapping[str, str]] = {
        "test_tool_calling": ARGUMENT,
        "test_tool_calling_async": ARGUMENT,
        "test_json_mode": KEYS,
        "test_unicode_tool_call_integration": CHARACTERS,
    }

    @property
    def chat_model_class(self) -> Any:
        return import_module("langchain_openai").ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        params = {"temperature": 0, "max_tokens": 400, "stream_usage": True, "extra_body": {"frequency_penalty": 0.8}}
        return {"model": "demo", "base_url": f"{self.url}/v1", "api_key": "none", **params}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> Any:
        """An answer that the model has thought about."""
        model = self.chat_model_class(**self.chat_model_params, reasoning_effort="medium")
        return self._whole(model.stream("What is 2+2?")) if stream else model.invoke("What is 2+2?")


class TestOpenAIResponses(TestOpenAI):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestAnthropic(Chat):
    __test__ = True
    supports_json_mode = False  # the API has none
    supports_anthropic_inputs = True
    structured_output_kwargs: ClassVar[Mapping[str, Any]] = {"method": "json_schema"}
    supported_usage_metadata_details: ClassVar[Details] = {kind: ["cache_read_input"] for kind in ("invoke", "stream")}

    fails: ClassVar[Mapping[str, str]] = {
        "test_tool_calling": ARGUMENT,
        "test_tool_calling_async": ARGUMENT,
        "test_unicode_tool_call_integration": CHARACTERS,
        "test_structured_output_pydantic_2_v1": CLASSES,
    }

    @property
    def chat_model_class(self) -> Any:
        return import_module("langchain_anthropic").ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "demo", "base_url": self.url, "api_key": "none", "temperature": 0, "max_tokens": 400}


class TestOllama(Chat):
    __test__ = True

    fails: ClassVar[Mapping[str, str]] = {
        "test_tool_calling": UNFORCED,
        "test_tool_calling_async": UNFORCED,
        "test_tool_choice": UNFORCED,
        "test_tool_calling_with_no_arguments": UNFORCED,
        "test_bind_runnables_as_tools": UNFORCED,
        "test_unicode_tool_call_integration": UNFORCED,
        "test_json_mode": KEYS,
    }

    @property
    def chat_model_class(self) -> Any:
        return import_module("langchain_ollama").ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "demo", "base_url": self.url, "temperature": 0, "num_predict": 400, "repeat_penalty": 1.3}


class Embeddings(STANDARD.EmbeddingsIntegrationTests):  # type: ignore[misc,name-defined]
    """As for conversations."""

    __test__ = False
    url: str

    @pytest.fixture(autouse=True)
    def served(self, pooling: PoolingServer) -> None:
        """Tell where the server is."""
        self.url = pooling.base_url


class TestOpenAIEmbeddings(Embeddings):
    __test__ = True

    @property
    def embeddings_class(self) -> Any:
        return import_module("langchain_openai").OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        model = {"model": "embedder", "base_url": f"{self.url}/v1", "api_key": "none"}
        return {**model, "check_embedding_ctx_length": False}


class TestOllamaEmbeddings(Embeddings):
    __test__ = True

    @property
    def embeddings_class(self) -> Any:
        return import_module("langchain_ollama").OllamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "embedder", "base_url": self.url}
