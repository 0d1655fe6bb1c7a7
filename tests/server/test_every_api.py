"""What holds for every client API: how it tells errors, before an answer has begun and inside a stream.

A new API is tested by being in the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec
import pytest

from dragoman.errors import ALL_KINDS, ServerError, TooLarge, Unauthorized
from dragoman.server import apis
from dragoman.server.api import HttpCall, Reply
from dragoman.server.apis import load_apis
from dragoman.server.app import ServerConfig
from dragoman.server.batches.store import StoreConfig
from dragoman.server.descriptions import GENERATING, KINDS
from dragoman.server.endpoints import Endpoints, dialect_of
from dragoman.server.http.bodies import MULTIPART
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Operation
from dragoman.server.registry import ModelRegistry
from dragoman.server.responder import error_reply
from dragoman.server.security.callers import Scope
from dragoman.server.security.gate import Gate
from tests.support.api_document import Checker
from tests.support.every_api import (
    APIS,
    CLASSES,
    NAMES_WITH_TOY,
    Calling,
    callings,
    dialects_of,
    document_of,
    example_bodies,
    filled,
    name_of_dialect,
    operations,
)
from tests.support.real_dialects import fake_profile
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table
from tests.support.tiers import width

SETTINGS: list[dict[str, Any]] = [
    {},
    {"rolling_batch": "disable", "enable_streaming": True},
    {"tgi_compat": True},
    {"lmi_version": "0.26"},
    {"chat_format": "lmi", "lmi_strict": True},
    {"text_chat_template": True},
]
"""Options of the operator that give errors other shapes."""

PROFILES = [fake_profile(settings=settings) for settings in SETTINGS]
BEFORE_THE_BODY = ("unauthorized", "too_large")
"""What is found before the body is read, and so told by the owner of the path, whichever dialect the body would choose."""

CASES = width(
    [(api, profile) for api in APIS for profile in PROFILES],
    [(api, profile) for api in APIS for profile in PROFILES if profile is PROFILES[0] or api.name == "lmi"],
)
"""`make test` tries other options than the default ones with LMI's API alone: they are meant for its errors."""


@cache
def checker_of(settings: str) -> Checker:
    """The document of a server whose operator chose these settings."""
    return Checker(document_of(next(profile for profile in PROFILES if str(profile.settings) == settings)))


def error_of(kind: str) -> ServerError:
    """An error of that kind, with a message of two lines."""
    return CLASSES[kind](f"It is\n{kind}")


def told(value: Any) -> str:
    """The name of a row: of an API its name, of a profile its settings."""
    return value.name if isinstance(value, Api) else str(value.settings)


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    match value:
        case str():
            yield value
        case dict():
            yield from (text for one in value.values() for text in texts_in(one))
        case list():
            yield from (text for one in value for text in texts_in(one))


@cache
def check_message(kind: str, media_type: str, body: bytes) -> None:
    """Assert that the body tells the error's message, on one line."""
    text = body.decode()
    texts = list(texts_in(json.loads(text))) if media_type == "application/json" else [text.removesuffix("\n")]
    told = [one for one in texts if f"It is {kind}" in one]
    assert told, f"{text} does not tell the message"
    assert not any("\n" in one for one in told)


def check_error(reply: Reply, kind: str) -> None:
    """Assert what every error's answer has."""
    assert 400 <= reply.status < 600
    check_message(kind, reply.media_type, reply.body)


@table("kind", ALL_KINDS)
@table("api", [api for api in APIS if api.owns], ids=lambda api: api.name)
def test_every_kind_of_error_is_told_below_the_paths_of_every_api(api: Api, kind: str) -> None:
    assert api.teller is not None
    for owned in api.owns:
        http = HttpCall("POST", f"{owned}/nothing", b"{}", request_id="r")
        check_error(error_reply(api.teller(dialects_of(PROFILES[0])), error_of(kind), http), kind)


@table(("api", "profile"), CASES, ids=told)
def test_every_kind_of_error_is_told_as_documented_by_every_operation(api: Api, profile: Any) -> None:
    dialects, checker = dialects_of(profile), checker_of(str(profile.settings))
    for calling in callings(api):
        dialect = dialect_of(calling.operation, dialects, calling.http)
        for kind in ALL_KINDS:
            reply = error_reply(dialect, error_of(kind), calling.http)
            check_error(reply, kind)
            if kind in GENERATING and kind not in BEFORE_THE_BODY:
                checker.check_answer(calling.key, reply.status, reply.media_type, reply.body)


@table("api", APIS, ids=lambda api: api.name)
def test_what_the_owner_of_a_path_tells_is_documented_for_every_operation(api: Api) -> None:
    registry = ModelRegistry(dialects_of(PROFILES[0]))
    endpoints, checker = Endpoints(APIS, registry, Gate(0)), checker_of(str(PROFILES[0].settings))
    for operation in (
        one for one in api.operations if one.scope is not Scope.OPEN
    ):  # others fail at nothing that an owner would tell
        http = HttpCall(operation.method, filled(operation.path), b"", request_id="r")
        for kind in ALL_KINDS:
            reply = error_reply(endpoints.owner(http.path), error_of(kind), http)
            check_error(reply, kind)
            is_documented = reply.status in operation.answers
            assert is_documented or kind not in BEFORE_THE_BODY or not operation.body
            if is_documented and (kind in BEFORE_THE_BODY or isinstance(operation, AnswerOperation)):
                checker.check_answer((operation.method, operation.path), reply.status, reply.media_type, reply.body)


@table(("api", "profile"), CASES, ids=told)
def test_every_kind_of_error_inside_a_stream_is_told_as_documented(api: Api, profile: Any) -> None:
    dialects, checker = dialects_of(profile), checker_of(str(profile.settings))
    for calling in callings(api):
        encoder = stream_encoder(calling, dialects)
        for kind in ALL_KINDS if encoder is not None else ():
            assert encoder is not None
            head, last = encoder.head(()), encoder.stream_error(error_of(kind))
            if last is None:
                continue  # the connection is cut, which needs no words
            assert f"It is {kind}".encode() in last
            checker.check_answer(calling.key, head.status, head.media_type, last)


def stream_encoder(calling: Calling, dialects: Any) -> Any:
    """The encoder of a call that is streamed; None if it is answered whole, or the body is not for that operation."""
    try:
        call = dialect_of(calling.operation, dialects, calling.http).open(calling.http).parse()
    except ServerError:
        return None
    return call.encoder if call.stream else None


@table("name", NAMES_WITH_TOY)
def test_every_dialect_of_an_api_is_reached_by_a_call(name: str) -> None:
    """By a call of another API too, where both are served; by its own ones where it is served alone."""
    [alone] = load_apis((name,))
    reached = {name_of_dialect(calling) for api in (alone, *APIS) for calling in callings(api)}
    assert reached >= set(alone.set_up(PROFILES[0]))
    assert reached <= set(dialects_of(PROFILES[0]))


# --- the same over HTTP ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the servers of these tests serve all of these APIs."""
    monkeypatch.setattr(apis, "NAMES", NAMES_WITH_TOY)


@contextmanager
def serving(config: ServerConfig | None = None) -> Iterator[RunningServer]:
    """A server with all that there is, models that come and go and files that are kept included."""
    with TemporaryDirectory() as directory:
        kept = replace(config or ServerConfig(), store=StoreConfig(Path(directory)))
        with running_server(kept, dialects=dialects_of(PROFILES[0]), has_hosting=True) as server:
            yield server


def test_a_body_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    decode = msgspec.json.decode

    def counting(content: bytes | msgspec.Raw, *args: Any, **kwargs: Any) -> Any:
        decoded.append(bytes(content))
        return decode(content, *args, **kwargs)

    monkeypatch.setattr(msgspec.json, "decode", counting)
    with (
        serving() as server,
        httpx.Client(base_url=server.url) as client,
    ):
        for operation in (one for one in OPERATIONS if set(one.body) - {MULTIPART}):
            examples = example_bodies(operation)
            for example in (*width(examples, [*examples[:3], *examples[3::6]]), {}, []):  # the first three are its own
                body = json.dumps(example).encode()
                decoded.clear()
                client.request(operation.method, filled(operation.path), content=body, headers=JSON_HEADERS)
                assert decoded.count(body) == 1, f"{operation.path} decodes {body!r} {decoded.count(body)} times"


JSON_HEADERS = {"content-type": "application/json", "x-amzn-sagemaker-target-model": "fake", "x-request-id": "r"}
METRICS = ("/metrics", "/server/metrics")  # the command line adds the metrics, whose own test reads them
OPERATIONS = [operation for operation in operations() if operation.path not in METRICS]
OPERATIONS.sort(key=lambda operation: operation.method == "DELETE")  # what they delete, the others are called about


def check_everywhere(
    server: RunningServer, expected: Callable[[Operation], ServerError | None], content: bytes | None = None
) -> None:
    """Call every operation, with its example unless there is `content`: what it answers is documented.

    `expected`: the error that the owner of the path tells, None = the operation, or its dialect, answers.
    """
    checker = checker_of(str(PROFILES[0].settings))
    endpoints = Endpoints(APIS, server.registry, Gate(0))
    with httpx.Client(base_url=server.url) as client:
        for operation in OPERATIONS:
            path = filled(operation.path)
            example = json.dumps(operation.example).encode() if operation.body else b""
            body = example if content is None or not operation.body else content
            answer = client.request(operation.method, path, content=body, headers=JSON_HEADERS)
            media_type = answer.headers["content-type"]
            checker.check_answer((operation.method, operation.path), answer.status_code, media_type, answer.content)
            assert answer.status_code >= 400 or not isinstance(operation, GenerateOperation)
            if (error := expected(operation)) is not None:
                http = HttpCall(operation.method, path, b"", request_id="r")
                assert answer.status_code == endpoints.owner(path).error_reply(error, http).status


def test_a_missing_key_is_answered_as_documented() -> None:
    config = ServerConfig(api_keys=frozenset({"secret"}))
    with serving(config) as server:
        check_everywhere(server, lambda operation: None if operation.scope is Scope.OPEN else Unauthorized("no"))


def test_a_body_that_is_too_large_is_answered_as_documented() -> None:
    with running_server(
        ServerConfig(max_request_size_bytes=10), dialects=dialects_of(PROFILES[0]), has_hosting=True
    ) as server:
        check_everywhere(server, lambda operation: TooLarge("no") if operation.body else None, b" " * 11)


def test_a_server_that_loads_answers_as_documented() -> None:
    server = RunningServer(dialects=dialects_of(PROFILES[0]), has_hosting=True)
    server.may_load.clear()
    server.start(wait_ready=False)
    try:
        check_everywhere(server, lambda operation: None)
    finally:
        server.may_load.set()
        server.http.stop()
        server.join()


def test_a_body_without_content_is_answered_as_documented() -> None:
    with serving() as server:
        check_everywhere(server, lambda operation: None, b"{}")


def test_a_dead_server_answers_as_documented() -> None:
    with serving() as server:
        server.engine.death = "out of memory"
        check_everywhere(server, lambda operation: None, b"{}")


def test_a_server_without_a_model_answers_as_documented() -> None:
    with serving() as server:
        assert httpx.delete(f"{server.url}/models/fake").status_code == 200
        check_everywhere(server, lambda operation: None, b"{}")


def test_every_kind_of_error_has_a_class_and_words_for_the_document() -> None:
    assert set(CLASSES) == set(KINDS) == set(ALL_KINDS)


def test_names_of_dialects_begin_with_that_of_their_api() -> None:
    for api in APIS:
        assert all(name.partition(".")[0] == api.name for name in api.set_up(PROFILES[0]))
