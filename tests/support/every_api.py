"""Every client API, and one that only tests have: what must hold for all of them is tested with these lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman import errors
from dragoman.errors import ServerError
from dragoman.server.api import Dialects, HttpCall, ModelProfile
from dragoman.server.apis import NAMES, load_apis
from dragoman.server.openapi import openapi_document
from dragoman.server.operations import Api, GenerateOperation, Operation

TOY = "tests.support.toy_api"
NAMES_WITH_TOY = (*NAMES, TOY)
APIS = load_apis(NAMES_WITH_TOY)

CLASSES = {
    cls.kind: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, ServerError) and "kind" in vars(cls)
}


def dialects_of(profile: ModelProfile) -> Dialects:
    """The dialects of all these APIs."""
    return {name: dialect for api in APIS for name, dialect in api.set_up(profile).items()}


def document_of(profile: ModelProfile | None = None) -> Any:
    """The OpenAPI document of all these APIs, as a client decodes it."""
    return json.loads(msgspec.json.encode(openapi_document(APIS, profile or ModelProfile())))


def filled(path: str) -> str:
    """The path with a model's name in the place of names."""
    return re.sub(r"{\w+}", "fake", path)


@dataclass(frozen=True)
class Calling:
    """A call of an operation that generates, with a body that some operation gives as its example."""

    operation: GenerateOperation
    http: HttpCall

    @property
    def key(self) -> tuple[str, str]:
        """Method and path, as the document names them."""
        return self.operation.method, self.operation.path


def callings(api: Api) -> Iterator[Calling]:
    """Calls of the API's operations, first with their own examples, then with everybody's: some choose a dialect by them."""
    for operation in api.operations:
        if isinstance(operation, GenerateOperation):
            for body in example_bodies(operation):
                headers = {"content-type": "application/json"}
                params = dict.fromkeys(re.findall(r"{(\w+)}", operation.path), "fake")
                path = filled(operation.path)
                content = json.dumps(body).encode()
                http = HttpCall(operation.method, path, content, headers, path_params=params, request_id="r")
                yield Calling(operation, http)


def name_of_dialect(calling: Calling) -> str:
    """The name that the operation says, or chooses for the call."""
    pick = calling.operation.dialect
    return pick if isinstance(pick, str) else pick(calling.http)


def kind_of(calling: Calling) -> str:
    """What the call's body is written in: chat and completions are the same in every API that has them."""
    family, _, name = name_of_dialect(calling).rpartition(".")
    return family if family in ("responses", "anthropic", "ollama", "tgi", "llamacpp") else name.removeprefix("v1_")


def example_bodies(first: Operation | None = None) -> list[Any]:
    """The examples of all operations, each as it is, streamed and whole, without those that say the same."""
    asked = operations() if first is None else [first, *operations()]
    examples = [operation.example for operation in asked if operation.example is not None]
    bodies = [changed for example in examples for changed in (example, *_streamed_or_not(example))]
    return [json.loads(text) for text in dict.fromkeys(json.dumps(body) for body in bodies)]


def operations() -> list[Operation]:
    """The operations of all APIs."""
    return [operation for api in APIS for operation in api.operations]


def _streamed_or_not(example: Any) -> list[Any]:
    return [{**example, "stream": is_stream} for is_stream in (True, False)] if isinstance(example, dict) else []
