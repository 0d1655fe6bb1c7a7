"""Which dialect a body on the LMI routes belongs to."""

from __future__ import annotations

from dragoman.server.api import HttpCall
from dragoman.server.apis.lmi.dialect import dialect_of_body
from tests.support.tables import table


@table(
    ("body", "content_type", "expected"),
    [
        ('{"inputs": "a"}', "application/json", "lmi"),
        ('{"inputs": "a", "parameters": {"messages": []}}', "application/json", "lmi"),
        ('{"messages": []}', "application/json", "lmi.chat"),
        (
            '{"messages": [{"role": "user", "content": "a"}], "stream": true}',
            "application/json; charset=utf-8",
            "lmi.chat",
        ),
        ('{"messages": "wrong"}', "application/json", "lmi.chat"),
        ('{"messages": [], "inputs": "a"}', "application/json", "lmi.chat"),
        ('{"messages": [], "prompt": "a"}', "application/json", "lmi.chat"),
        ('{"messages": null, "inputs": "a"}', "application/json", "lmi"),
        ('{"messages" : null , "prompt": "a"}', "application/json", "lmi.completions"),
        ('{"prompt": "a"}', "application/json", "lmi.completions"),
        ('{"prompt": [1, 2]}', "", "lmi.completions"),
        ('{"prompt": "a", "inputs": null}', "application/json", "lmi.completions"),
        ('{"prompt": "a", "inputs": "b"}', "application/json", "lmi"),
        ('{"prompt": null}', "application/json", "lmi"),
        ("{}", "application/json", "lmi"),
        ('{"messages": []', "application/json", "lmi"),
        ('{"messages": [}', "application/json", "lmi"),
        ("", "", "lmi"),
        ("[]", "application/json", "lmi"),
        ('"messages"', "application/json", "lmi"),
        ("null", "application/json", "lmi"),
        ("[" * 100_000, "application/json", "lmi"),
        ('{"messages": []}', "text/plain", "lmi"),
        ("messages=a", "application/x-www-form-urlencoded", "lmi"),
        ('{"messages": []}', "application/x-www-form-urlencoded", "lmi.chat"),  # curl -d without a header
    ],
)
def test_the_top_level_keys_choose_the_dialect(body: str, content_type: str, expected: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    assert dialect_of_body(HttpCall("POST", "/invocations", body.encode(), headers)) == expected


def test_bytes_that_are_not_json_are_left_to_lmi() -> None:
    assert dialect_of_body(HttpCall("POST", "/invocations", b"\xff\xfe\x00")) == "lmi"
