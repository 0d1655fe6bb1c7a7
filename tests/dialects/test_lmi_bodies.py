"""What LMI takes as a body: content types, forms, and whatever is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import InvalidPayload
from dragoman.server.api import Dialect, HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import TABLE, LmiOptions
from dragoman.server.apis.tgi import TgiDialect
from dragoman.types import TextPrompt
from tests.dialects.lmi_calls import http
from tests.support.golden import answer
from tests.support.tables import table
from tests.support.tiers import examples

DIALECT = LmiDialect(LmiOptions())
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=XX"


def call(body: bytes, content_type: str | None) -> HttpCall:
    """A call with this body."""
    headers = {} if content_type is None else {"content-type": content_type}
    return HttpCall("POST", "/invocations", body, headers, request_id="r")


def multipart(**fields: str) -> bytes:
    """A multipart body with boundary XX."""
    parts = [
        f'--XX\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()
    ]
    return ("".join(parts) + "--XX--\r\n").encode()


@table(
    ("body", "content_type", "prompt", "max_tokens"),
    [
        (b'{"inputs": "a"}', "application/json", "a", 30),
        (b'{"inputs": "a", "parameters": {"max_new_tokens": 5}}', "application/json; charset=utf-8", "a", 5),
        (b'{"inputs": "a", "parameters": null}', None, "a", 30),
        (b'{"inputs": "a"}', "APPLICATION/JSON", "a", 30),
        ("schön {".encode(), "text/plain", "schön {", 30),
        ("schön".encode("latin-1"), "text/plain; charset=ISO-8859-1", "schön", 30),
        (b"inputs=a+b%26&parameters=%7B%22max_new_tokens%22%3A5%7D", FORM, "a b&", 5),
        (b"inputs=a&parameters=", FORM, "a", 30),
        (b' {"inputs": "a=b", "parameters": {"max_new_tokens": 4}}', FORM, "a=b", 4),  # curl -d without a header
        (multipart(inputs="a\r\nb", parameters='{"max_new_tokens": 5}'), MULTIPART, "a\r\nb", 5),
    ],
)
def test_the_prompt_is_read_from_every_content_type(
    body: bytes, content_type: str | None, prompt: str, max_tokens: int
) -> None:
    (request,) = DIALECT.parse(call(body, content_type)).requests
    assert request.prompt == TextPrompt(prompt)
    assert request.max_tokens == max_tokens


@table(
    ("body", "content_type"),
    [
        (b"inputs=a&inputs=b", FORM),
        (multipart(inputs="a").removesuffix(b"--XX--\r\n") + multipart(inputs="b"), MULTIPART),
    ],
)
def test_a_repeated_form_field_is_an_array(body: bytes, content_type: str) -> None:
    assert len(DIALECT.parse(call(body, content_type)).requests) == 2


def test_a_part_may_be_a_file_of_any_size() -> None:
    long = "word " * 300_000
    body = multipart(inputs=long).replace(b'name="inputs"', b'name="inputs"; filename="a.txt"')
    (request,) = DIALECT.parse(call(body, MULTIPART)).requests
    assert request.prompt == TextPrompt(long)


def test_a_form_can_ask_for_a_stream() -> None:
    assert DIALECT.parse(call(b"inputs=a&stream=true", FORM)).stream


@table(
    ("body", "content_type", "said"),
    [
        (b"x", "image/png", "Content type 'image/png' is not supported"),
        (b"a,b", "text/csv", "Content type 'text/csv' is not supported"),
        (b"{", None, "The body is not valid JSON"),
        (b"", None, "The body is not valid JSON"),
        (b'"\xff"', "application/json", "The body is not valid JSON"),
        (b'{"inputs": NaN}', "application/json", "The body is not valid JSON"),
        (b"[" * 100_000, "application/json", "The body is too large in structure: it is nested more than 100"),
        (b"[1]", "application/json", "The body must be a JSON object with the field 'inputs', got [1]"),
        (b"{}", "application/json", "Field 'inputs' is missing"),
        (b'{"inputs": null}', "application/json", "Field 'inputs' is missing"),
        (b'{"inputs": ""}', "application/json", "Field 'inputs' must not be empty"),
        (b'{"inputs": []}', "application/json", "Field 'inputs' must not be empty"),
        (b'{"inputs": ["a", ""]}', "application/json", "Field 'inputs' must not be empty"),
        (b'{"inputs": ["a", 1]}', "application/json", "Field 'inputs' must be a string or an array of strings"),
        (b'{"inputs": {"a": 1}}', "application/json", "Field 'inputs' must be a string or an array of strings"),
        (b'{"inputs": "a", "parameters": [1]}', "application/json", "Field 'parameters' must be an object, got [1]"),
        (b'{"inputs": "a", "stream": "soon"}', "application/json", "Field 'stream' must be a boolean, got \"soon\""),
        (b"", "text/plain", "Field 'inputs' must not be empty"),
        (b"\xff", "text/plain", "The body is not text in the charset 'utf-8'"),
        (b"a", "text/plain; charset=zlib", "Charset 'zlib' is not supported"),
        (b"inputs=a&parameters=%7B", FORM, "Field 'parameters' is not valid JSON"),
        (b"parameters={}", FORM, "Field 'inputs' is missing"),
        (b"inputs=a" + b"&a=1" * 2001, FORM, "A form must have at most 2000 fields, got 2001 or more"),
        (b"--XX\r\n\r\n" * 2001, MULTIPART, "A form must have at most 2000 fields, got 2001 or more"),
        (b'{"parameters": {' + b", ".join(b'"%d": 1' % n for n in range(1001)) + b"}}", None, "'parameters' is too"),
        (b"a", "multipart/form-data", "The multipart body is malformed: No boundary given"),
        (b"a", MULTIPART, "The multipart body is malformed: "),
        (multipart(inputs="a").removesuffix(b"--XX--\r\n"), MULTIPART, "malformed: it lacks the last boundary"),
        (b"--XX\r\nContent-Type: text/plain\r\n\r\nx\r\n--XX--\r\n", MULTIPART, "malformed: Field name not found"),
        (multipart(parameters="{}"), MULTIPART, "Field 'inputs' is missing"),
        (multipart(inputs="a").replace(b"a\r\n--XX--", b"\xff\r\n--XX--"), MULTIPART, "Field 'inputs' is not UTF-8"),
    ],
)
def test_a_wrong_body_is_refused_by_what_is_wrong_with_it(body: bytes, content_type: str | None, said: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        DIALECT.parse(call(body, content_type))
    assert said in caught.value.message
    reply = DIALECT.error_reply(caught.value, call(body, content_type))
    assert reply.status == 424
    assert json.loads(reply.body) == {"error": caught.value.message, "code": 424}


def test_unknown_fields_of_the_body_are_reported() -> None:
    parsed = DIALECT.parse(http({"inputs": "a", "adapters": "x", "cached_prompt": "y", "model": None}))
    assert parsed.ignored == ("adapters", "cached_prompt")


def test_generate_reports_a_stream_flag_that_it_cannot_follow() -> None:
    dialect = TgiDialect(ModelProfile())
    assert dialect.parse(http({"inputs": "a", "stream": True}, "/generate")).ignored == ("stream",)
    assert dialect.parse(http({"inputs": "a", "stream": True}, "/")).ignored == ()


NAMES = sorted({name for row in TABLE for name in (row.name, *row.aliases)})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
BODIES = st.fixed_dictionaries(
    {"inputs": st.text(min_size=1, max_size=8) | st.lists(st.text(min_size=1, max_size=8), max_size=3) | JSON},
    optional={
        "parameters": st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), JSON, max_size=4) | JSON,
        "stream": JSON,
    },
)
DIALECTS: list[tuple[Dialect, str]] = [
    (LmiDialect(LmiOptions()), "/invocations"),
    (LmiDialect(LmiOptions(rolling_batch="trtllm", lmi_version="0.26")), "/invocations"),
    (LmiDialect(LmiOptions(rolling_batch="disable")), "/invocations"),
    (LmiDialect(LmiOptions(tgi_compat=True, lmi_version="0.32")), "/invocations"),
    (TgiDialect(ModelProfile()), "/generate"),
]


@table(("dialect", "path"), DIALECTS)
@settings(max_examples=examples(60))
@given(body=BODIES)
def test_any_json_is_answered_with_json_or_refused_as_a_client_error(
    dialect: Dialect, path: str, body: dict[str, Any]
) -> None:
    sent = HttpCall("POST", path, json.dumps(body).encode(), request_id="r")
    reply = answer(dialect, sent)  # anything but a ServerError in parse passes through and fails the test
    assert reply.status in (200, 422, 424)
    for piece in reply.body.split(b"\n") if reply.is_stream else [reply.body]:
        json.loads(piece.removeprefix(b"data: ") or b"0")
