"""Input formatters of LMI's asynchronous handlers: a decoded body in, the body to serve out."""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.server.api import HttpCall
from tests.hooks.hooked import ask, hooked, hooked_dialects, loaded, prompt
from tests.support.tables import table

RENAME = """
@input_formatter
def read(decoded_payload, tokenizer=None, **kwargs):
    decoded_payload["inputs"] = decoded_payload.pop("question") + str(kwargs["is_rolling_batch"])
    return decoded_payload
"""
CONTEXT = {"is_rolling_batch": True, "tokenizer": None}


def test_the_body_that_is_returned_is_served(tmp_path: Path) -> None:
    dialect = hooked_dialects(loaded(tmp_path, RENAME), context=CONTEXT)["lmi"]
    body = {"question": "hi", "parameters": {"max_new_tokens": 3, "return_full_text": True}}
    assert json.loads(ask(dialect, body).body) == {"generated_text": "hiTrue Deep learning is"}


def test_other_content_types_are_decoded_first(tmp_path: Path) -> None:
    source = "@input_formatter\ndef read(decoded_payload):\n    return {'inputs': decoded_payload['inputs']}\n"
    http = HttpCall("POST", "/invocations", b"plain words", {"content-type": "text/plain"}, request_id="r")
    request = hooked(tmp_path, source).open(http).parse().requests[0]
    assert getattr(request.prompt, "text", None) == "plain words"


@table("annotation", ["dict", "dict[str, object]", "'dict'", "'Dict[str, int]'"])
def test_the_returned_body_chooses_the_dialect(tmp_path: Path, annotation: str) -> None:
    source = f"""
    @input_formatter
    def read(body: {annotation}) -> dict:
        return {{"messages": [{{"role": "user", "content": body["inputs"]}}], "max_tokens": 2}}
    """
    found = hooked_dialects(loaded(tmp_path, source))
    for dialect in (found["lmi"], found["lmi.chat"], found["lmi.completions"]):
        assert "choices" in json.loads(ask(dialect, prompt()).body)
    assert found["openai.chat"] is not found["lmi"]


def test_an_output_formatter_still_writes_what_lmi_would(tmp_path: Path) -> None:
    source = (
        RENAME
        + "\n@output_formatter\ndef write(out: RequestOutput):\n    return out.sequences[0].get_next_token()[0].text\n"
    )
    dialect = hooked_dialects(loaded(tmp_path, source), context=CONTEXT)["lmi"]
    assert ask(dialect, {"question": "hi", "parameters": {"max_new_tokens": 2}}).body == b" Deep learning"


@table(
    ("line", "error"),
    [
        ("raise ValueError('not so')", "not so"),
        ("return body['missing']", "Invalid Request Property: 'missing'"),
        ("return 5", "read must return a dict, got int"),
        ("return {'inputs': {1}}", "read must return values that JSON can hold: JSON cannot hold a set"),
    ],
)
def test_failures_are_424(tmp_path: Path, line: str, error: str) -> None:
    dialect = hooked(tmp_path, f"@input_formatter\ndef read(body: dict):\n    {line}\n")
    answer = ask(dialect, prompt())
    assert answer.status == 424
    expected = f"Input Parsing failed. Ensure that the request payload is valid. {error}"
    assert json.loads(answer.body) == {"error": expected, "code": 424}
