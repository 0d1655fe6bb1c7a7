"""Writes the parameter tables of docs/dialects/lmi.md from the rows that parse the parameters.

Does: Markdown. Does not: read or write files. Called by the test that keeps the page current.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.server.apis.lmi_wire.parameters.table import BACKENDS, TABLE, TGI, Param
from dragoman.server.apis.lmi_wire.parameters.values import ValueType
from dragoman.server.parameters import Need

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


def _type(row: Param) -> str:
    low, most = row.bounds.low, row.bounds.high
    high = f"`{row.limit}`" if row.limit else None if most is None else f"{most:g}"
    if row.type is ValueType.INTEGER and most is not None and most > 2**53:
        return "an integer of 64 bits"
    if low is None:
        return row.type.label
    if high is None:
        return f"{row.type.label}, {'above' if row.bounds.is_low_open else 'at least'} {low:g}"
    return f"{row.type.label}, {'above ' if row.bounds.is_low_open else ''}{low:g} to {high}"


def _defaults(row: Param) -> str:
    special = [f"{where}: {_value(value)}" for where, value in row.defaults.items()]
    return "; ".join([_value(row.default), *special])


def _value(value: Any) -> str:
    return "-" if value is None or value == () else f"`{msgspec.json.encode(value).decode()}`"


def _effect(row: Param) -> str:
    return row.effect if row.needs is Need.NOTHING else f"{row.effect} ({row.needs})"
