"""JSON that libraries do not write: every route that generates answers it with a documented status, in its API's shape."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import httpx
import pytest

from dragoman.server.operations import GenerateOperation
from tests.fuzz.cases import Maker
from tests.support.api_document import Checker
from tests.support.every_api import filled
from tests.support.live_routes import live_document, live_operations
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

DOCUMENT = live_document()
CHECKER = Checker(DOCUMENT)
OPERATIONS = [operation for operation in live_operations() if type(operation) is GenerateOperation]

# (what stands before the example's members, may it be answered): all names mean something on some route, and values of
# names that a route does not know are skipped without a look at their letters
STRANGE = {
    "NaN": (b'"temperature": NaN', False),
    "Infinity": (b'"max_tokens": Infinity', False),
    "minus Infinity": (b'"parameters": {"temperature": -Infinity}', False),
    "a huge exponent": (b'"temperature": 1e99999', True),
    "a huge integer": (b'"max_tokens": ' + b"9" * 4000, True),
    "a leading zero": (b'"n": 01', False),
    "no UTF-8": (b'"user": "\xff"', True),
    "an overlong form": (b'"user": "\xc0\x80"', True),
    "half a pair in UTF-8": (b'"user": "\xed\xa0\x80"', True),
    "half a pair": (b'"user": "\\ud800"', True),
    "a control character": (b'"user": "a\nb"', False),
    "Python's quotes": (b"'user': 'x'", False),
    "a comment": (b'/* x */ "user": "x"', False),
    "a key without a value": (b'"user"', False),
    "a deep value": (b'"user": ' + b"[" * 5000 + b"]" * 5000, False),
    "many lists": (b'"user": [' + b"[]," * 100_000 + b"[]]", False),
    "many lists, nearly as deep as may be": (b'"user": [' + (b"[" * 97 + b"]" * 97 + b",") * 1100 + b"1]", False),
    "many fields": (b", ".join(b'"a%d": 1' % number for number in range(1001)), False),
    "many lists that are a text": (b'"user": "' + b"[]," * 100_000 + b'[]"', True),
    "a name of 10 kB": (b'"' + b"x" * 10_000 + b'": 1', True),
    "a name that ends a line": (b'"a\\r\\nx-evil: 1": 1', True),
    "an empty name": (b'"": 1', True),
    "a null character": (b'"a\\u0000b": 1', True),
    "the same name twice": (b'"colour": 1, "colour": 2', True),
}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects()) as server:
        yield server


def example_of(operation: GenerateOperation) -> bytes:
    example = operation.example or {"inputs": "What is it?"}
    return json.dumps({**example, "model": "fake"} if "model" in example else example).encode()


@table("operation", OPERATIONS, ids=lambda operation: operation.path)
def test_a_strange_body_is_answered_as_documented(operation: GenerateOperation, client: httpx.Client) -> None:
    for name, (members, may_be_answered) in STRANGE.items():
        body = b"{" + members + b", " + example_of(operation)[1:]
        answer = client.post(filled(operation.path), content=body, headers={"content-type": "application/json"})
        key = (operation.method, operation.path)
        CHECKER.check_answer(key, answer.status_code, answer.headers["content-type"], answer.content)
        assert answer.status_code < 500, name
        assert "x-evil" not in answer.headers
        if answer.status_code >= 400:
            assert "\\n" not in answer.text, name
            assert len(answer.text) < 2000, name
        assert may_be_answered or answer.status_code >= 400, (name, answer.text)


@table("operation", OPERATIONS, ids=lambda operation: operation.path)
def test_of_two_members_with_one_name_the_last_counts(operation: GenerateOperation, client: httpx.Client) -> None:
    example = example_of(operation)
    first = next(iter(json.loads(example)))
    doubled = b"{" + json.dumps(first).encode() + b': {"no": "such"}, ' + example[1:]
    path, headers = filled(operation.path), {"content-type": "application/json"}
    answers = [client.post(path, content=body, headers=headers) for body in (example, doubled)]
    assert [answer.status_code for answer in answers] == [answers[0].status_code] * 2
    assert answers[0].status_code < 300


@table("path", ["/v1/chat/completions", "/invocations"])
@table("members", [{"tools": "null"}, {"functions": "null", "function_call": "none"}], ids=str)
def test_the_text_null_is_no_tools(path: str, members: dict[str, str], client: httpx.Client) -> None:
    """Where types are taken leniently, it is null for all other parameters."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], **members}
    assert client.post(path, json=body).status_code == 200


def test_the_text_null_hurts_nowhere(client: httpx.Client) -> None:
    """What the typed body has taken for null is still a text in the body as it was sent."""
    maker = Maker(random.Random(0))
    for operation in OPERATIONS:
        example = json.loads(example_of(operation))
        members = {name: json.dumps(schema) for name, schema in maker.members_of(operation).items()}
        for name in (
            name for name, schema in members.items() if "object" in schema or "array" in schema or "$ref" in schema
        ):
            answer = client.post(filled(operation.path), json={**example, name: "null"})
            assert answer.status_code < 500 or answer.status_code in (501, 503), (operation.path, name, answer.text)
