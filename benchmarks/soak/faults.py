"""Requests at which something goes wrong on purpose, at the server's public seams, and the model that lets it.

Does: make a model directory whose template and formatter fail when they are told to; make requests that tell them, that are
cancelled, that have no time, that stop half-way, or that are no HTTP. Does not: send them. Called by `attacks`, which adds
what is meant to harm others, and `__main__` for the directory.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.soak.client import KEY
from benchmarks.soak.kinds import KINDS, MODEL, STREAMS, invalid, valid
from benchmarks.soak.request import REFUSED, WRONG, Request

MARKER, RUN_AWAY, SWELL = "FAULT-ON-PURPOSE", "RUN-AWAY-ON-PURPOSE", "SWELL-ON-PURPOSE"
"""What a message says for its template to raise, to compare for hours, or to become a text of gigabytes."""
MAX_REQUEST_BYTES = 400_000

_HOOK = f'''"""A formatter that fails where a request wants it to."""

from djl_python.input_parser import input_formatter


@input_formatter
def fails(decoded_payload: dict, **kwargs) -> dict:
    """The body as it is. Raises: ValueError for one with the marker."""
    if {MARKER!r} in str(decoded_payload):
        raise ValueError("this formatter was told to fail")
    return decoded_payload
'''

_TEMPLATE = f"""{{%- for message in messages -%}}
{{%- if {MARKER!r} in message.content -%}}{{{{ raise_exception("this template was told to fail") }}}}{{%- endif -%}}
{{%- if {RUN_AWAY!r} in message.content -%}}
{{%- set ns = namespace(a=1, b=1) -%}}
{{%- for i in range(60) -%}}{{%- set ns.a = [ns.a, ns.a] -%}}{{%- set ns.b = [ns.b, ns.b] -%}}{{%- endfor -%}}
{{{{- ns.a == ns.b -}}}}
{{%- endif -%}}
{{%- if {SWELL!r} in message.content -%}}{{{{- (message.content * 200000000)|length -}}}}{{%- endif -%}}
{{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|im_start|>assistant\\n' -}}}}{{%- endif -%}}
"""

_GARBAGE = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST\x00/v1/completions HTTP/1.1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: many\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\napi-key: %s\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    % KEY.encode(),
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 5\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client that speaks TLS\r\n\r\n",
)

_CANCELLED = frozenset({424, 500, 503})
_TOO_LATE = frozenset({408, 424, 503, 504})


def write_model(source: Path, target: Path, *, is_failing: bool) -> None:
    """A copy of a model's directory; one that fails on demand has a formatter and a template that do."""
    shutil.copytree(source, target)
    if is_failing:
        (target / "model.py").write_text(_HOOK, encoding="utf-8")
        (target / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")


def _hook(dice: random.Random) -> Request:
    body = {"inputs": MARKER, "parameters": {"max_new_tokens": 4}, "stream": dice.random() < 0.5}
    return Request("hook", "/invocations", json.dumps(body).encode(), REFUSED | {424})


def _template(dice: random.Random) -> Request:
    body = {"model": MODEL, "messages": [{"role": "user", "content": MARKER}], "stream": dice.random() < 0.5}
    path = dice.choice(("/v1/chat/completions", "/v3/chat/completions"))
    return Request("template", path, json.dumps(body).encode(), WRONG | REFUSED)


def _grammar(dice: random.Random) -> Request:
    wrong = dice.choice(({"guided_regex": "(("}, {"guided_grammar": "start: ("}, {"guided_json": {"type": "poem"}}))
    body = {"model": MODEL, "prompt": "x", "max_tokens": 4, "stream": dice.random() < 0.5, **wrong}
    return Request("grammar", "/v1/completions", json.dumps(body).encode(), WRONG | REFUSED)


def _deadline(dice: random.Random) -> Request:
    request = valid(dice.choice(tuple(KINDS)), dice)
    headers = {"x-request-timeout-ms": dice.choice(("1", "20"))}
    allowed = request.allowed | _TOO_LATE
    return replace(request, kind="deadline", headers=headers, allowed=allowed, may_be_cut=True, tokens=None)


def _cancelled(dice: random.Random) -> Request:
    request = valid(dice.choice((*STREAMS, "chat", "beams")), dice)
    allowed = request.allowed | _CANCELLED
    after = dice.choice((0, 1, 200))
    return replace(request, kind="cancelled", cancel_after=after, allowed=allowed, may_be_cut=True, tokens=None)


def _half(dice: random.Random) -> Request:
    request = valid(dice.choice(tuple(KINDS)), dice)
    sent = dice.randrange(len(request.content))
    return replace(request, kind="half", sent_bytes=sent, is_call=False, tokens=None)


def _garbage(dice: random.Random) -> Request:
    return Request("garbage", "", b"", frozenset({400}), raw=dice.choice(_GARBAGE), is_call=False)


def _too_large(dice: random.Random) -> Request:
    content = json.dumps({"model": MODEL, "prompt": "x" * MAX_REQUEST_BYTES}).encode()
    return Request("too large", dice.choice(("/v1/completions", "/invocations")), content, frozenset({413}))


def _no_json(dice: random.Random) -> Request:
    request = invalid(dice.choice(tuple(KINDS)), dice)
    content = b'{"model": "soak", ' + bytes(dice.choices(range(256), k=20))
    return replace(request, kind="no JSON", content=content, allowed=WRONG | REFUSED | {412})  # OVMS says 412


def _unknown_path(dice: random.Random) -> Request:
    return Request("unknown path", f"/v1/{dice.getrandbits(20):x}", b"{}", frozenset({404}), is_call=False)


def _wrong_method(dice: random.Random) -> Request:
    path = KINDS[dice.choice(tuple(KINDS))].path
    return Request("wrong method", path, b"{}", frozenset({405}), method="PATCH", is_call=False)


FAULTS: Mapping[str, Callable[[random.Random], Request]] = {
    "hook": _hook,
    "template": _template,
    "grammar": _grammar,
    "deadline": _deadline,
    "cancelled": _cancelled,
    "half": _half,
    "garbage": _garbage,
    "too large": _too_large,
    "no JSON": _no_json,
    "unknown path": _unknown_path,
    "wrong method": _wrong_method,
}
"""What goes wrong -> a request at which it does."""
