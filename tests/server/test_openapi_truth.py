"""What the document promises is what the server does: ranges, defaults, examples, statuses and bodies, over real HTTP."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from dragoman.errors import InvalidRequest
from dragoman.server.api import Dialect, HttpCall
from dragoman.server.apis import set_up_all
from dragoman.server.http.fields import Switches
from dragoman.server.operations import PoolingOperation
from dragoman.server.pooling.base import PoolingKind
from tests.support.api_document import Checker, resolved
from tests.support.fake_pooling import FakePooling
from tests.support.live_routes import live_document, live_operations
from tests.support.real_dialects import fake_profile, real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table
from tests.support.tiers import width

DOCUMENT = live_document()
CHECKER = Checker(DOCUMENT)
UINT32_MAX = 2**32 - 1
MESSAGES = [{"role": "user", "content": "Say it"}]

OPENAI_HEADERS = {"accept": "text/event-stream"}


class Family(NamedTuple):
    """A route, a body that it answers, and where in the body the parameters are."""

    path: str
    slot: str
    component: str
    body: Mapping[str, Any]
    inside: str = ""
    headers: Mapping[str, str] = {}
    model: PoolingKind | None = None  # what it does if it generates nothing


FAMILIES = [
    Family("/v1/completions", "openai.completions", "CompletionRequestV1", {"prompt": "a"}),
    Family("/v3/completions", "ovms.completions", "CompletionRequestV3", {"model": "fake", "prompt": "a"}),
    Family("/invocations", "lmi.completions", "CompletionRequestInvocations", {"prompt": "a"}),
    Family("/v1/chat/completions", "openai.chat", "ChatRequestV1", {"messages": MESSAGES}, headers=OPENAI_HEADERS),
    Family("/v3/chat/completions", "ovms.chat", "ChatRequestV3", {"model": "fake", "messages": MESSAGES}),
    Family("/invocations", "lmi.chat", "ChatRequestInvocations", {"messages": MESSAGES}),
    Family("/invocations", "lmi", "LmiParameters", {"inputs": "a"}, "parameters"),
    Family("/generate", "tgi", "TgiParameters", {"inputs": "a"}, "parameters"),
    Family("/api/generate", "ollama.generate", "OllamaGenerateRequest", {"model": "fake", "prompt": "a"}),
    Family("/api/chat", "ollama.chat", "OllamaChatRequest", {"model": "fake", "messages": MESSAGES}),
    Family("/api/generate", "ollama.generate", "OllamaRequestOptions", {"model": "fake", "prompt": "a"}, "options"),
    Family("/api/v0/chat/completions", "lmstudio.chat", "LmChatRequest", {"messages": MESSAGES}),
    Family("/api/v0/completions", "lmstudio.completions", "LmCompletionRequest", {"prompt": "a"}),
    Family("/completion", "llamacpp.completion", "LlamaCompletionRequest", {"prompt": "a"}),
    Family("/infill", "llamacpp.infill", "LlamaInfillRequest", {"input_prefix": "a", "input_suffix": "b"}),
    Family("/v1/messages", "anthropic.messages", "MessagesRequest", {"messages": MESSAGES, "max_tokens": 2}),
    Family("/v1/responses", "responses.v1", "ResponsesRequestV1", {"input": "a"}),
    Family("/v3/responses", "responses.v3", "ResponsesRequestV3", {"model": "fake", "input": "a"}),
]

COUNTING = [
    Family("/v1/messages/count_tokens", "", "CountTokensRequest", {"messages": MESSAGES}),
    Family("/v1/responses/input_tokens", "", "ResponsesRequestV1", {"input": "a"}),
    Family("/apply-template", "", "LlamaTemplateRequest", {"messages": MESSAGES}),
    Family("/v3/tokenize", "", "TokenizeRequestV3", {"model": "fake", "text": "a"}),
    Family("/api/show", "", "OllamaShowRequest", {"model": "fake"}),
    Family("/api/pull", "", "OllamaPullRequest", {"model": "fake"}),
]

EMBED, SCORE, CLASSIFY, SPARSE = PoolingKind.EMBED, PoolingKind.SCORE, PoolingKind.CLASSIFY, PoolingKind.SPARSE
_DOCUMENTS = {"query": "a", "documents": ["a", "b"]}
POOLING = [
    Family("/v1/embeddings", "openai.embeddings", "EmbeddingsRequestV1", {"input": "a"}, model=EMBED),
    Family("/v3/embeddings", "ovms.embeddings", "EmbeddingsRequestV3", {"model": "fake", "input": "a"}, model=EMBED),
    Family("/embed", "tei.embed", "TeiEmbedRequest", {"inputs": "a"}, model=EMBED),
    Family("/api/embed", "ollama.embed", "OllamaEmbedRequest", {"model": "fake", "input": "a"}, model=EMBED),
    Family(
        "/api/embeddings", "ollama.embeddings", "OllamaEmbeddingsRequest", {"model": "fake", "prompt": "a"}, model=EMBED
    ),
    Family("/embedding", "llamacpp.embed", "LlamaEmbedRequest", {"content": "a"}, model=EMBED),
    Family("/v1/rerank", "rerank.v1", "RerankRequest", _DOCUMENTS, model=SCORE),
    Family("/v2/rerank", "rerank.v2", "RerankRequest", _DOCUMENTS, model=SCORE),
    Family("/v3/rerank", "rerank.v3", "RerankRequestV3", {"model": "fake", **_DOCUMENTS}, model=SCORE),
    Family("/rerank", "tei.rerank", "TeiRerankRequest", {"query": "a", "texts": ["a"]}, model=SCORE),
    Family("/embed_all", "tei.embed_all", "TeiEmbedAllRequest", {"inputs": "a"}, model=EMBED),
    Family("/embed_sparse", "tei.embed_sparse", "TeiEmbedAllRequest", {"inputs": "a"}, model=SPARSE),
    Family("/predict", "tei.predict", "TeiPredictRequest", {"inputs": "a"}, model=CLASSIFY),
    Family("/classify", "pooling.classify", "ClassifyRequest", {"input": "a"}, model=CLASSIFY),
    Family("/pooling", "pooling", "PoolingRequest", {"input": "a"}, model=EMBED),
    Family("/v1/score", "rerank.score", "ScoreRequest", {"text_1": "a", "text_2": "b"}, model=SCORE),
]

# Parameters that must agree with others: what the others are while these are tried.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "min_tokens": {"max_tokens": UINT32_MAX},
    "min_length": {"max_new_tokens": UINT32_MAX},
    "max_tokens": {"echo": True},
    "top_logprobs": {"logprobs": True},
    "continue_final_message": {"messages": [*MESSAGES, {"role": "assistant", "content": "It"}]},
}
FAMILY_BESIDE: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("LmiParameters", "min_tokens"): {"max_new_tokens": UINT32_MAX},
    ("TokenizeRequestV3", "pad_to_max_length"): {"max_length": 4},
}


class Case(NamedTuple):
    """One value of one parameter on one route."""

    family: Family
    name: str
    value: Any

    @property
    def id(self) -> str:
        return f"{self.family.slot}-{self.name}-{json.dumps(self.value)[:30]}"


def numbers_around(schema: Mapping[str, Any]) -> Iterator[float]:
    """The last number inside the documented range and the first one outside, at both ends."""
    step = 1 if schema["type"] == "integer" else 0.125
    steps = {"minimum": -step, "exclusiveMinimum": step, "maximum": step, "exclusiveMaximum": -step}
    for keyword, outwards in steps.items():
        if keyword in schema:
            yield from (schema[keyword], schema[keyword] + outwards)


def values_for(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Values at the limits of what the schema allows, on both sides, and null."""
    for choice in schema.get("anyOf", [schema]):
        match resolved(DOCUMENT, choice).get("type"):
            case "integer" | "number":
                yield from numbers_around(choice)
            case "boolean":
                yield from (True, False)
                if {"type": "string"} not in schema.get("anyOf", ()):  # else texts have rules of their own
                    yield from (0, 1, 2, "true", "FALSE", "yes", "")
            case "string" if "minLength" in choice:
                yield from ("", "x")
            case "array" if choice.get("maxItems", MOST_ITEMS) < MOST_ITEMS:
                yield from (["x"] * size for size in (choice["maxItems"], choice["maxItems"] + 1))
            case "array" if "minItems" in choice:
                yield []
    yield None


MOST_ITEMS = 1000  # longer arrays take the checker minutes; test_huge_numbers sends them


def properties(family: Family) -> dict[str, Any]:
    """The parameters of a family, and their schemas; of bodies with several shapes, those of the one that it sends."""
    component = DOCUMENT["components"]["schemas"][family.component]
    shapes = [component] if "properties" in component else component["anyOf"]
    found: list[dict[str, Any]] = [shape["properties"] for shape in shapes]
    return next(shape for shape in found if family.inside or family.body.keys() <= shape.keys())


def cases(family: Family) -> Iterator[Case]:
    for name, schema in properties(family).items():
        if name not in ("messages", "tools"):  # no single values; their own tests send conversations
            for value in {json.dumps(value): value for value in values_for(schema)}.values():
                yield Case(family, name, value)


def body_of(case: Case) -> dict[str, Any]:
    """The family's body with the parameter in its place."""
    body = copy.deepcopy(dict(case.family.body))
    place = body.setdefault(case.family.inside, {}) if case.family.inside else body
    beside = FAMILY_BESIDE.get((case.family.component, case.name), BESIDE.get(case.name, {}))
    place.update(beside)
    place[case.name] = case.value
    return body


def polls(item: Mapping[str, Any]) -> bool:
    """Whether a path's POST operation takes the token of an answer to poll for."""
    parameters = item.get("post", {}).get("parameters", [])
    return any(one["$ref"].endswith("/x-starting-token") for one in parameters)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """A server with the real dialects, whose answers are scripted, and whose models come and go."""
    with running_server(dialects=real_dialects(), has_hosting=True) as server:
        yield server


@pytest.fixture(scope="module")
def pooling_servers() -> Iterator[dict[PoolingKind, RunningServer]]:
    """Servers of models that embed, score, classify and weigh words."""
    with (
        running_server(dialects=real_dialects(pooling=FakePooling(EMBED))) as embeds,
        running_server(dialects=real_dialects(pooling=FakePooling(SCORE))) as scores,
        running_server(dialects=real_dialects(pooling=FakePooling(CLASSIFY))) as classifies,
        running_server(dialects=real_dialects(pooling=FakePooling(SPARSE))) as weighs,
    ):
        yield {EMBED: embeds, SCORE: scores, CLASSIFY: classifies, SPARSE: weighs}


@table("family", POOLING, ids=lambda family: family.path)
def test_a_model_that_generates_nothing_takes_exactly_what_is_documented(
    family: Family, pooling_servers: dict[PoolingKind, RunningServer]
) -> None:
    assert family.model is not None
    with httpx.Client(base_url=pooling_servers[family.model].url) as client:
        assert check_family(family, client) == {True, False}


@table("vocab_size", [0, 10, 20, 21])
def test_the_whole_vocabulary_may_be_asked_for_where_that_is_documented(vocab_size: int) -> None:
    profile = fake_profile(vocab_size=vocab_size)
    checker, dialects = Checker(live_document(profile)), set_up_all(profile)
    found: set[bool] = set()
    for family in FAMILIES:
        for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
            if "maximum" not in json.dumps(properties(family).get(name)):
                continue
            body = body_of(Case(family, name, -1))
            try:
                parsed(dialects[family.slot], family, body)
                is_taken = True
            except InvalidRequest:
                is_taken = False
            assert is_taken == checker.is_documented(family.path, body), (family, name)
            found.add(is_taken)
    assert found == ({True, False} if vocab_size in (10, 20) else {False})


@table(("path", "body"), [("/api/generate", {"model": "m"}), ("/infill", {"input_prefix": "", "input_suffix": ""})])
def test_where_a_prompt_must_be_a_text_no_token_ids_are_documented(path: str, body: dict[str, Any]) -> None:
    assert CHECKER.is_documented(path, {**body, "prompt": "a"})
    assert not CHECKER.is_documented(path, {**body, "prompt": [1, 2]})


# LMI's bodies of completions and conversations are read and described as those of /v1 are
FEW = [family for family in FAMILIES if family.slot not in ("lmi.completions", "lmi.chat")]


@table("family", [*width(FAMILIES, FEW), *COUNTING], ids=lambda family: family.slot or family.path)
def test_the_server_takes_exactly_what_is_documented(family: Family, client: httpx.Client) -> None:
    taken = check_family(family, client)
    assert taken == {True, False} or (family in COUNTING and taken == {True})  # some have parameters without limits


def check_family(family: Family, client: httpx.Client) -> set[bool]:
    """Send every value at the limits of what is documented; whether they were taken."""
    differences: list[tuple[str, Any, str]] = []
    taken: set[bool] = set()
    for case in cases(family):
        body = body_of(case)
        answer = client.post(family.path, json=body, headers=dict(family.headers))
        media_type = answer.headers["content-type"]
        CHECKER.check_answer(("POST", family.path), answer.status_code, media_type, answer.content)
        is_taken = answer.status_code == 200
        taken.add(is_taken)
        if is_taken != CHECKER.is_documented(family.path, body):
            differences.append((case.name, case.value, answer.text))
    assert differences == []
    return taken


def defaults() -> Iterator[Case]:
    for family in (*FAMILIES, *POOLING):
        for name, schema in properties(family).items():
            if "default" in schema:
                yield Case(family, name, schema["default"])


def asked(family: Family, body: Mapping[str, Any]) -> Any:
    """What a model that embeds or scores is asked for by that body."""
    assert family.model is not None
    pooling = FakePooling(family.model)
    http = HttpCall("POST", family.path, json.dumps(body).encode(), {"content-type": "application/json"})
    answer = real_dialects(pooling=pooling)[family.slot].open(http).answer
    assert answer is not None
    asyncio.run(_awaited(answer(Switches())))
    return pooling.embedded or pooling.scored


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def parsed(dialect: Dialect, family: Family, body: Mapping[str, Any]) -> Any:
    headers = {"content-type": "application/json", **family.headers}
    http = HttpCall("POST", family.path, json.dumps(body).encode(), headers, request_id="r")
    call = dialect.open(http).parse()
    # a limit that was asked for is refused where it does not fit, a default one is cut to what does
    return [msgspec.structs.replace(request, on_overflow="clip") for request in call.requests], call.stream


@table("case", list(defaults()), ids=lambda case: case.id)
def test_sending_a_documented_default_is_the_same_as_leaving_it_out(case: Case) -> None:
    body = copy.deepcopy(dict(case.family.body))
    (body.setdefault(case.family.inside, {}) if case.family.inside else body)[case.name] = case.value
    if case.family.model is not None:
        assert asked(case.family, body) == asked(case.family, case.family.body)
        return
    dialect = real_dialects()[case.family.slot]
    assert parsed(dialect, case.family, body) == parsed(dialect, case.family, case.family.body)


OF_POOLING_MODELS = {operation.path for operation in live_operations() if isinstance(operation, PoolingOperation)}


def examples() -> list[Any]:
    return [
        (path, media_type, content["example"])
        for path, item in DOCUMENT["paths"].items()
        for operation in item.values()
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items()
        if "example" in content
    ]


@table(("path", "media_type", "example"), examples())
def test_every_example_is_documented_and_answered(
    path: str, media_type: str, example: Any, client: httpx.Client
) -> None:
    assert CHECKER.is_documented(path, example)
    answer = client.post(re.sub(r"{\w+}", "fake", path), json=example, headers={"content-type": media_type})
    assert (answer.status_code in (200, 206)) != (path in OF_POOLING_MODELS)  # the model here generates
    CHECKER.check_answer(("POST", path), answer.status_code, answer.headers["content-type"], answer.content)
    assert "x-request-id" in answer.headers


# The command line adds the metrics, whose own test reads them.
METRICS = ("/metrics", "/server/metrics")
READ = [path for path, item in DOCUMENT["paths"].items() if "get" in item and path not in METRICS]


@table("path", READ)
def test_every_page_that_is_read_answers_as_documented(path: str, client: httpx.Client) -> None:
    for name in ("fake", "nobody"):
        answer = client.get(path.replace("{name}", name))
        media_type = answer.headers["content-type"]
        CHECKER.check_answer(("GET", path), answer.status_code, media_type, answer.content)


TAKING = [
    (method.upper(), path)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if "requestBody" in operation
]


@table(("coding", "operation"), [(coding, operation) for coding in ("br", "gzip") for operation in TAKING])
def test_a_body_that_cannot_be_unpacked_is_refused_as_documented(
    coding: str, operation: tuple[str, str], client: httpx.Client
) -> None:
    method, path = operation
    headers = {"content-type": "application/json", "content-encoding": coding}
    answer = client.request(method, re.sub(r"{\w+}", "fake", path), content=b"{}", headers=headers)
    assert (answer.status_code == 415) == (coding == "br")
    assert answer.headers.get("accept-encoding") == ("gzip, deflate, zstd" if coding == "br" else None)
    CHECKER.check_answer(operation, answer.status_code, answer.headers["content-type"], answer.content)


OPERATIONS = [
    (method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item if path not in METRICS
]
OPERATIONS.sort(key=lambda operation: operation[0] == "DELETE")  # what they delete, the others are called about


POLLED = [path for path, item in DOCUMENT["paths"].items() if polls(item)]


@table("path", POLLED)
def test_an_answer_to_poll_for_is_documented(path: str, client: httpx.Client) -> None:
    example = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
    url = re.sub(r"{\w+}", "fake", path)
    token: str | None = None
    statuses: list[int] = []
    while token or not statuses:
        headers = {"x-starting-token": token} if token else {"x-synchronous": "false"}
        answer = client.post(url, json=example, headers=headers)
        statuses.append(answer.status_code)
        media_type = answer.headers.get("content-type", "")
        CHECKER.check_answer(("POST", path), answer.status_code, media_type, answer.content)
        token = answer.headers.get("x-next-token")
    refused = client.post(url, json=example, headers={"x-starting-token": "nobody's"})
    CHECKER.check_answer(("POST", path), refused.status_code, refused.headers["content-type"], refused.content)
    assert statuses[0] == statuses[-1] == 200


def test_every_path_that_can_be_polled_says_so(client: httpx.Client) -> None:
    polled = []
    for method, path in OPERATIONS:
        if method == "POST":
            answer = client.post(re.sub(r"{\w+}", "fake", path), json={}, headers={"x-starting-token": "nobody's"})
            if "x-starting-token" in answer.text:
                polled.append(path)
    assert polled == POLLED


@table("query", ["", "limit=", "limit=1", "next_page_token="])
def test_a_page_of_models_is_documented(query: str, client: httpx.Client) -> None:
    parameters = DOCUMENT["components"]["parameters"]
    for name, value in httpx.QueryParams(query).items():
        schema = parameters[f"{name}_query"]["schema"]
        assert Draft202012Validator(schema).is_valid(int(value) if value else value)
    assert client.get(f"/models?{query}").status_code == 200


@table("value", DOCUMENT["components"]["parameters"]["stream_query"]["schema"]["enum"])
def test_every_way_to_say_stream_is_taken(value: str, client: httpx.Client) -> None:
    body = {"id": 1, "prompt": "a", "maxLength": 1}
    assert client.post(f"/api/generate-one?stream={value}", json=body).status_code == 206


@table("query", ["limit=0", "limit=x", "next_page_token=-1"])
def test_a_page_of_models_that_cannot_be_is_refused_as_documented(query: str, client: httpx.Client) -> None:
    answer = client.get(f"/models?{query}")
    assert answer.status_code == 400
    CHECKER.check_answer(("GET", "/models"), 400, answer.headers["content-type"], answer.content)
