"""Every golden answer is one that the OpenAPI document promises, and what was answered is a documented request."""

from __future__ import annotations

import json
from functools import cache

import msgspec

from dragoman.server.api import ModelProfile
from tests.support.api_document import Checker
from tests.support.golden import GOLDENS, case_names, load_case
from tests.support.live_routes import live_document
from tests.support.tables import table

PREDICTIONS = "/predictions/"


@cache
def checker_for(options: str) -> Checker:
    """The document of a server whose LMI dialect has these options, as JSON."""
    return Checker(live_document(ModelProfile(settings=json.loads(options))))


def answer_file(name: str) -> tuple[int, str, bytes]:
    """Status, media type and body of a golden answer."""
    path = GOLDENS / name / "response.txt"
    head, _, body = (path if path.exists() else path.with_name("stream.txt")).read_bytes().partition(b"\n\n")
    status, _, media_type = head.splitlines()[0].decode().partition(" ")
    return int(status), media_type, body.removesuffix(b"<connection cut>")


@table("name", case_names(""))
def test_a_golden_answer_is_a_documented_one(name: str) -> None:
    case = load_case(name)
    checker = checker_for(json.dumps(case.options if name.startswith("lmi_") else {}))
    status, media_type, body = answer_file(name)
    path = f"{PREDICTIONS}{{model}}" if case.path.startswith(PREDICTIONS) else case.path
    checker.check_answer(("POST", path), status, media_type, body)
    if status in (200, 206) and case.body != msgspec.Raw():
        assert checker.is_documented(path, json.loads(bytes(case.body)))
