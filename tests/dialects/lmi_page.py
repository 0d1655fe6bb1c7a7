"""Writes the parameter tables of docs/dialects/lmi.md from the rows that parse the parameters.

Does: Markdown. Does not: read or write files. Called by the test that keeps the page current.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.parameters import UINT32_MAX, Bounds, Need
from dragoman.server.apis.lmi_wire.parameters import (
    BACKENDS,
    OF_OPERATOR,
    TABLE,
    TGI,
    Param,
    profile_of,
    schemas_of_fields,
)
from dragoman.server.apis.openai_wire.fields import BOUNDS
from dragoman.server.descriptions import BOOLEAN, LENIENT_BOOLEAN, NULL, Schema
from dragoman.types import Limits

BEGIN = "<!-- parameters: written from the parameter table, do not edit -->"
END = "<!-- end of parameters -->"


def parameter_section() -> str:
    """The generated part of the page: LMI's parameters by profile, then those of TGI's routes."""
    lmi = [row for row in TABLE if row.profiles != (TGI,)]
    tgi = [row for row in TABLE if TGI in row.profiles]
    return "\n".join(
        [
            BEGIN,
            "",
            "| parameter | type and range | default | profiles | effect |",
            "|---|---|---|---|---|",
            *(_lmi_line(row) for row in lmi),
            "",
            "On TGI's own routes:",
            "",
            "| parameter | type and range | default | effect |",
            "|---|---|---|---|",
            *(_tgi_line(row) for row in tgi),
            "",
            END,
        ]
    )


def _lmi_line(row: Param) -> str:
    profiles = [name for name in row.profiles if name != TGI]
    shown = "all" if set(profiles) == set(BACKENDS) else ", ".join(profiles)
    return f"| {_names(row)} | {_type(row)} | {_defaults(row)} | {shown} | {_effect(row)} |"


def _tgi_line(row: Param) -> str:
    return f"| {_names(row)} | {_type(row)} | {_value(row.default)} | {_effect(row)} |"


def _names(row: Param) -> str:
    return ", ".join(f"`{name}`" for name in (row.name, *row.aliases))


_WORDS = {
    "integer": "an integer", "number": "a number", "string": "a string", "object": "an object", "boolean": "a boolean",
}  # fmt: skip


def _type(row: Param) -> str:
    """The type and range, in words."""
    limits = Limits()
    (schema,) = schemas_of_fields({row.name: row}, limits).values()
    choices = [one for one in schema["anyOf"] if one != NULL]
    if all(one in choices for one in LENIENT_BOOLEAN["anyOf"]):
        choices = [BOOLEAN, *(one for one in choices if one not in LENIENT_BOOLEAN["anyOf"])]
    if row.field in OF_OPERATOR:
        low, limit = OF_OPERATOR[row.field]
        return f"an integer, {low} to `{limit}`"
    bounds = profile_of({row.name: row}, limits).bounds.get(row.field) or BOUNDS.get(row.field)
    return " or ".join(_word(one) for one in choices) + _range(bounds)


def _word(choice: Schema) -> str:
    if "const" in choice:
        return f'"{choice["const"]}"'
    if choice.get("type") == "array":
        return f"a list of {choice['items']['type']}s"
    return _WORDS[choice.get("type", "object")]


def _range(bounds: Bounds | None) -> str:
    if bounds is None or bounds.low is None:
        return ""
    if bounds.high is not None and bounds.high < UINT32_MAX:
        return f", {'above ' if bounds.is_low_open else ''}{bounds.low:g} to {bounds.high:g}"
    return f", {'above' if bounds.is_low_open else 'at least'} {bounds.low:g}" if bounds.low > -UINT32_MAX else ""


def _defaults(row: Param) -> str:
    special = [f"{where}: {_value(value)}" for where, value in row.defaults.items()]
    return "; ".join([_value(row.default), *special])


def _value(value: Any) -> str:
    return "-" if value is None or value == () else f"`{msgspec.json.encode(value).decode()}`"


def _effect(row: Param) -> str:
    return row.effect if row.needs is Need.NOTHING else f"{row.effect} ({row.needs})"
