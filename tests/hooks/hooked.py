"""A model.py written by a test, loaded, around the LMI dialect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec

from dragoman.server.api import Dialect, Dialects, HttpCall, Runner
from dragoman.server.apis.lmi.dialect import CHAT, COMPLETIONS, INPUTS, LmiDialect
from dragoman.server.apis.lmi.hooks.loader import Hooks, load_hooks
from dragoman.server.apis.lmi.operator.formatters import with_hooks
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from tests.support.golden import Answer, answer
from tests.support.real_dialects import real_dialects

IMPORTS = """
import json
from djl_python import Input, Output
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import RequestOutput, TextGenerationOutput, output_formatter
from djl_python.request_io import RequestInput, TextInput
"""

ECHO = """
@output_formatter
def write(request_output: RequestOutput) -> str:
    token, is_first, is_last = request_output.sequences[0].get_next_token()
    return f"[{token.text}]" + ("." if is_last else "")
"""


async def in_place(work: Callable[[], Any]) -> Any:
    """A runner that runs nothing elsewhere."""
    return work()


def write_file(directory: Path, source: str, name: str = "model.py") -> Path:
    """A Python file with the usual imports before `source`."""
    path = directory / name
    path.write_text(IMPORTS + dedent(source), encoding="utf-8")
    return path


def loaded(directory: Path, source: str, formatter_name: str | None = None) -> Hooks:
    """The hooks of such a file."""
    write_file(directory, source)
    hooks = load_hooks(None, [directory], formatter_name)
    assert hooks is not None
    return hooks


def hooked_dialects(
    hooks: Hooks, run: Runner = in_place, context: dict[str, Any] | None = None, **options: Any
) -> Dialects:
    """All dialects with these hooks. `options` are LMI's."""
    lmi = LmiOptions(**options)
    dialects = real_dialects()
    of_lmi = {name: dialects[name] for name in (INPUTS, CHAT, COMPLETIONS)}
    return {**dialects, **with_hooks(of_lmi, LmiDialect(lmi), hooks, context or {}, run)}


def hooked(directory: Path, source: str, formatter_name: str | None = None, **options: Any) -> Dialect:
    """The LMI dialect with the formatters of such a file."""
    return hooked_dialects(loaded(directory, source, formatter_name), **options)["lmi"]


def call_of(body: Any, **headers: str) -> HttpCall:
    """A call with a JSON body."""
    named = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return HttpCall("POST", "/invocations", msgspec.json.encode(body), named, {"from": "query"}, request_id="req-1")


def ask(dialect: Dialect, body: Any, **headers: str) -> Answer:
    """The answer to a JSON body with a scripted generation."""
    return answer(dialect, call_of(body, **headers))


def text_of(dialect: Dialect, body: Any) -> str:
    """The body of that answer."""
    return ask(dialect, body).body.decode()


def prompt(**parameters: Any) -> dict[str, Any]:
    """A body in LMI's form; three tokens: " Deep", " learning", " is"."""
    return {"inputs": "hi", "parameters": {"max_new_tokens": 3, **parameters}}
