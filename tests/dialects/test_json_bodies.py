"""Bodies that are no JSON: every dialect says in words what people cannot see in what they sent."""

from __future__ import annotations

import codecs
import json

import pytest

from dragoman.errors import InvalidPayload
from dragoman.server.api import Dialect, HttpCall
from dragoman.server.apis.lmi.dialect import LmiDialect, LmiOptions
from dragoman.server.apis.text.dialect import TextDialect
from dragoman.server.apis.tgi.dialect import TgiDialect
from dragoman.server.json_body import MAX_NESTING, NestedTooDeep, NotJson, decode_json
from dragoman.types import Limits
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
    ("tgi", TgiDialect(Limits()), "/generate"),
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


@table("body", [b'"\\ud83d\\ude00"', '"\U0001f600"'.encode(), b'"\\\\ud83d"', b"[" * MAX_NESTING + b"]" * MAX_NESTING])
def test_whole_pairs_and_what_only_looks_like_halves_are_json(body: bytes) -> None:
    assert decode_json(body) == json.loads(body)


def test_a_call_of_another_kind_is_not_touched() -> None:
    http = HttpCall("POST", "/invocations", codecs.BOM_UTF8 + b"x", {"content-type": "text/plain"})
    assert LmiDialect(LmiOptions()).parse(http).requests
