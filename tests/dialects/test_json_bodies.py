"""Bodies that are no JSON: every dialect says in words what people cannot see in what they sent."""

from __future__ import annotations

import asyncio
import codecs
import json
from pathlib import Path

import pytest

from dragoman.errors import InvalidPayload
from dragoman.server import json_body
from dragoman.server.api import Dialect, HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.apis.text import TextDialect
from dragoman.server.apis.tgi import TgiDialect
from dragoman.server.json_body import (
    MAX_CONTAINERS,
    MAX_DIGITS,
    MAX_NESTING,
    MAX_VALUES,
    NestedTooDeep,
    NotJson,
    TooMuchJson,
    check_structure,
    decode_json,
    shown_json,
)
from tests.dialects.openai_calls import chats, completions, http_call
from tests.support.tables import table

SLIPS: list[tuple[str, bytes, str]] = [
    ("UTF-8 mark", codecs.BOM_UTF8 + b'{"id": 1}', "byte-order mark"),
    ("UTF-16", '{"id": 1}'.encode("utf-16"), "byte-order mark"),
    ("UTF-32", '{"id": 1}'.encode("utf-32"), "byte-order mark"),
    ("first half", b'{"id": "\\ud83d"}', "half of a surrogate pair"),
    ("first half inside", b'{"id": "\\ud83d and more text"}', "half of a surrogate pair"),
    ("second half", b'{"id": "\\ude00"}', "half of a surrogate pair"),
    ("half as bytes", b'{"id": "\xed\xa0\xbd"}', "half of a surrogate pair"),
    ("comma in an object", b'{"id": 1,}', "trailing comma in object"),
    ("comma in an array", b'{"id": [1, ]}', "trailing comma in array"),
]

DIALECTS: list[tuple[str, Dialect, str]] = [
    ("lmi", LmiDialect(LmiOptions()), "/invocations"),
    ("tgi", TgiDialect(ModelProfile()), "/generate"),
    ("chat v1", chats("v1"), "/v1/chat/completions"),
    ("chat v3", chats("v3"), "/v3/chat/completions"),
    ("chat invocations", chats("invocations"), "/invocations"),
    ("completions v1", completions("v1"), "/v1/completions"),
    ("completions v3", completions("v3"), "/v3/completions"),
    ("completions invocations", completions("lmi"), "/invocations"),
    ("text", TextDialect(), "/api/generate-one"),
    ("text batch", TextDialect(), "/api/generate-batch"),
]


@table(("body", "said"), [slip[1:] for slip in SLIPS], ids=[slip[0] for slip in SLIPS])
@table(("dialect", "path"), [one[1:] for one in DIALECTS], ids=[one[0] for one in DIALECTS])
def test_every_dialect_says_what_cannot_be_seen(dialect: Dialect, path: str, body: bytes, said: str) -> None:
    if path.endswith("batch") and b"\xed" in body:
        return  # a batch has no such field: what it holds is never read
    http = http_call(body, path=path)
    with pytest.raises(InvalidPayload) as caught:
        dialect.open(http).parse()
    assert said in caught.value.message
    assert said in shown(dialect.error_reply(caught.value, http).body)


def shown(body: bytes) -> str:
    """What a client reads: the text service answers text, all others JSON."""
    text = body.decode()
    return str(json.loads(text)) if text.startswith("{") else text


@table(
    ("body", "said"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b'{"a": 1', "it ends too early"),
        (b'{"a": "\xff"}', "it is not UTF-8"),
        (b"{'a': 1}", "texts stand in double quotes, not in single ones (byte 1)"),
        (b"{\"a\": 'b'}", "texts stand in double quotes, not in single ones (byte 6)"),
        (b"{a: 'b'}", "object keys must be strings (byte 1)"),
        (b'{"a": 1} x', "trailing characters (byte 10)"),
        (b'{"a": 1e999}', "Number out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "Integer value out of range"),
    ],
)
def test_other_texts_that_are_no_json_are_told_where_it_ends(body: bytes, said: str) -> None:
    with pytest.raises(NotJson) as caught:
        decode_json(body)
    assert (said in str(caught.value), caught.value.is_slip) == (True, False)


def test_the_place_of_half_a_pair_is_told() -> None:
    with pytest.raises(NotJson, match=r"\(byte 8\)"):
        decode_json(b'{"id": "\\ud83d and more"}')


@table("levels", [MAX_NESTING + 1, 100_000])
def test_nesting_is_bounded(levels: int) -> None:
    with pytest.raises(NestedTooDeep):
        decode_json(b"[" * levels + b"]" * levels)


TOO_MUCH: list[tuple[str, bytes, str]] = [
    ("lists", b"[" + b"[]," * MAX_CONTAINERS + b"[]]", "more than 100000 arrays and objects"),
    ("objects", b"[" + b'{"a":{}},' * (MAX_CONTAINERS // 2) + b"{}]", "more than 100000 arrays and objects"),
    ("nested", b"[" + (b"[" * 97 + b"]" * 97 + b",") * 1100 + b"1]", "more than 100000 arrays and objects"),
    ("numbers", b"[" + b"1," * MAX_VALUES + b"1]", "more than 1000000 values"),
    ("no list at all", b'"' * (4 * MAX_VALUES + 10), "more than 1000000 values"),
    ("digits", b"[" + b"1," * 10_000 + b"9" * (MAX_DIGITS + 1) + b"]", "a number of more than 200 digits"),
]


@table(("body", "said"), [case[1:] for case in TOO_MUCH], ids=[case[0] for case in TOO_MUCH])
def test_what_is_too_large_in_structure_is_refused_before_it_is_decoded(body: bytes, said: str) -> None:
    with pytest.raises(TooMuchJson, match=said):
        check_structure(body)
    with pytest.raises(TooMuchJson, match=said):
        decode_json(body)


def test_what_stands_in_texts_is_no_structure() -> None:
    """Wherever it begins: texts are looked at in pieces, and no piece ends between a backslash and what it escapes."""
    for told in (
        b"[{," * 100_000,
        b'\\"[' * 200,
        b"\\\\" * 300_000 + b'\\"[',
        b"9" * 300 + b"[" * 200,
        b"[" * 200 + b"\\\\",
    ):
        for before in range(256 * 1024 - 6, 256 * 1024 + 4):
            text = b'["' + b"x" * before + told + b'"]'
            check_structure(text)
            with pytest.raises(TooMuchJson):
                check_structure(text[:-1] + b"," + b"[" * 100 + b"]" * 101)


def test_as_much_as_is_allowed_is_decoded() -> None:
    assert len(decode_json(b"[" + b"[]," * (MAX_CONTAINERS - 2) + b"[]]")) == MAX_CONTAINERS - 1
    assert len(decode_json(b"[" + b"1," * (MAX_VALUES - 1) + b"1]")) == MAX_VALUES
    assert decode_json(b"[" + b" " * 300_000 + b"9" * MAX_DIGITS + b"]") == [int("9" * MAX_DIGITS)]


def test_large_bodies_are_read_while_others_are_served() -> None:
    async def num_turns(http: HttpCall) -> int:
        """How often the event loop got round meanwhile."""
        reading, turns = asyncio.ensure_future(http.decoded()), 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    large = http_call(b'{"prompt": "' + b'\\"' * 2_000_000 + b'"}')
    assert asyncio.run(num_turns(large)) > 10
    assert large.json() == {"prompt": '"' * 2_000_000}
    assert asyncio.run(num_turns(http_call(b'{"prompt": "x"}'))) == 1
    for dialect in (completions("v1"), chats("v1"), LmiDialect(LmiOptions()), TgiDialect(ModelProfile())):
        assert dialect.open(large).run_off_loop is not None
        assert dialect.open(http_call(b"{}")).run_off_loop is None


DECODES_ELSEWHERE = {
    "json_body.py": "here it is bounded",
    "apis/lmi/hooks/handler_io.py": "a model.py asks for it, after the check",
    "apis/lmi/operator/handler_model.py": "an answer of our own",
    "apis/ollama/encoder.py": "what a model has written",
    "apis/anthropic/messages.py": "what a model has written",
    "apis/anthropic/batches.py": "lines of our own",
    "apis/responses/background.py": "an error of our own",
    "batches/desk.py": "lines of our own, and one field of a request that was read before",
    "batches/store.py": "documents of our own",
    "generation/output_parsers/call_reader.py": "what a model has written",
}


def test_nothing_that_a_client_sends_is_decoded_unbounded() -> None:
    server = Path(json_body.__file__).parent
    found = {
        path.relative_to(server).as_posix()
        for path in server.rglob("*.py")
        if "msgspec.json.decode(" in (text := path.read_text()) or "json.loads(" in text
    }
    assert found == set(DECODES_ELSEWHERE)


def test_an_error_repeats_the_beginning_of_a_value_whatever_its_size() -> None:
    huge = {"a" * 10**6: [["x" * 10**6] * 10**5] * 10**5}
    for length in (60, 80):
        assert len(shown_json(huge, length)) == length
    assert shown_json([1, {"a": None}], 60) == '[1, {"a": null}]'


@table("body", [b'"\\ud83d\\ude00"', '"\U0001f600"'.encode(), b'"\\\\ud83d"', b"[" * MAX_NESTING + b"]" * MAX_NESTING])
def test_whole_pairs_and_what_only_looks_like_halves_are_json(body: bytes) -> None:
    assert decode_json(body) == json.loads(body)


def test_a_call_of_another_kind_is_not_touched() -> None:
    http = HttpCall("POST", "/invocations", codecs.BOM_UTF8 + b"x", {"content-type": "text/plain"})
    assert LmiDialect(LmiOptions()).parse(http).requests
