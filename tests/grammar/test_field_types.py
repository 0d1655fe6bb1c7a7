"""The schemas that pydantic and zod write for fields of every type: each compiles, and is followed as far as can be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.server.apis.openai_wire.grammars import read_json_schema
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.types import TokenMasker

pytest.importorskip("llguidance")

RECORDED = Path(__file__).parent / "field_types"  # with the scripts that recorded them
EOS = 256
COMPILER = GrammarCompiler(Vocabulary([*(bytes([byte]) for byte in range(256)), b"<eos>"], frozenset({EOS}), EOS))

# What is not enforced; of everything else, all is.
PASSED_OVER: dict[str, dict[str, list[str]]] = {
    "pydantic": {
        "set[int]": [".uniqueItems"],
        "frozenset[Literal]": [".uniqueItems"],
        "dict[UUID, int]": [".propertyNames"],
        "conset": [".uniqueItems"],
        "dataclass of dataclasses": [".properties.kinds.uniqueItems"],
    },
    "zod": {
        "emoji": [".pattern"],  # look-ahead
        "iso.duration": [".pattern"],  # look-ahead; its format is followed
        "float32": [".minimum", ".maximum"],
    },
}
# Where wrong values are allowed: what forbids them is passed over, an unknown format, or not in the schema at all.
NOT_REFUSED = {"pydantic": ["PostgresDsn", "dict[pattern, int]"], "zod": ["emoji"]}


def is_taken(masker: TokenMasker, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False).encode()
    return all(masker.advance(byte) for byte in text) and masker.advance(EOS)


@pytest.mark.parametrize("writer", PASSED_OVER)
def test_fields_of_every_type_are_followed(writer: str) -> None:
    rows = json.loads((RECORDED / f"{writer}.json").read_text())["rows"]
    passed_over: dict[str, list[str]] = {}
    not_refused = []
    for row in rows:
        name = row["name"]
        grammar = read_json_schema("guided_json", row["schema"], V1)
        masker = COMPILER.compile(grammar)
        if found := [place.removeprefix("guided_json") for place in grammar.passed_over]:
            passed_over[name] = found
        assert all(is_taken(masker.fork(), value) for value in row["valid"]), name
        not_refused += [name] * any(is_taken(masker.fork(), value) for value in row["invalid"])
    assert passed_over == PASSED_OVER[writer]
    assert not_refused == NOT_REFUSED[writer]
