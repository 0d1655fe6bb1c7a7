"""Reads the `parameters` object of an LMI or TGI request by the rows of the parameter table: names, aliases, defaults.

Types and ranges are those of all APIs; errors tell the names that were sent. On the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dragoman.errors import InvalidRequest
from dragoman.parameters import PARAMETERS, Bounds, neutral_value
from dragoman.server.api import ModelProfile
from dragoman.server.apis.lmi_wire.parameters.table import TABLE, Param, rows_for
from dragoman.server.apis.openai_wire.common import Reading
from dragoman.server.apis.openai_wire.fields import check_bounds, read_struct
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.sampling import SharedBody
from dragoman.types import Limits

_LISTS = frozenset({"stop", "bad_words", "stop_token_ids", "dry_sequence_breakers"})
"""Lists, for which clients may send the only entry. Those of several names are joined."""


class LmiBody(SharedBody, kw_only=True):
    """The parameters that some row of the table sets; None = not given, and the default depends on others."""

    do_sample: bool | None = None
    num_beams: int | None = None
    details: bool | None = None
    return_full_text: bool | None = None
    decoder_input_details: bool | None = None
    logprobs: int | None = None
    top_n_tokens: int | None = None
    output_formatter: str | None = None
    adapter_id: str | None = None


class Parsed(msgspec.Struct, frozen=True):
    """The content of a `parameters` object, defaults filled in. `fields`: the names of those that have a value.

    `sent`: the rows of what the client gave, by the names that it used. `documented`: the fields' names here.
    `unused`: names that are unknown, or overridden by another name for the same.
    """

    values: LmiBody
    fields: Collection[str]
    reading: Reading
    documented: Mapping[str, str]
    sent: dict[str, Param]
    unused: list[str]

    def has(self, target: str) -> bool:
        return any(row.field == target for row in self.sent.values())

    def name_of(self, target: str) -> str:
        """The name under which the client gave `target`; the documented name where it did not."""
        names = (name for name, row in self.sent.items() if row.field == target)
        return next(names, self.documented.get(target, target))


class ParameterReader:
    """`is_clipped`: a prompt and an answer that are too long together have a shorter answer."""

    def __init__(
        self,
        profile: str,
        version: str,
        model: ModelProfile,
        *,
        with_tgi_names: bool = False,
        is_clipped: bool = True,
    ) -> None:
        self._rows = rows_for(profile, with_tgi_names=with_tgi_names)
        self._places = {name: place for place, name in enumerate(self._rows)}
        self._documented = {row.field: row.name for row in (*reversed(TABLE), *reversed(self._rows.values()))}
        self._defaults: dict[str, Any] = {}
        for row in self._rows.values():
            default = row.default_for(profile, version)
            is_neutral = row.field in PARAMETERS and default == neutral_value(row.field)
            if default and not is_neutral:  # the others are what a request without them has
                self._defaults.setdefault(row.field, default)
        self._defaults |= model.overriding_defaults
        words = profile_of(self._rows, model.limits)
        thinking = ModelProfile(limits=model.limits, abilities=frozenset({"thinking"}))
        self._reading = Reading(replace(words, clips_overflow=is_clipped), thinking)

    def read(self, raw: Mapping[str, Any]) -> Parsed:
        """null means not given. Raises: InvalidParameter for the first that is not legal."""
        given: dict[str, Any] = {}
        sent: dict[str, Param] = {}
        unused = [name for name, value in raw.items() if value is not None and name not in self._rows]
        for name, row in self._present(raw):
            value, is_list = raw[name], row.field in _LISTS
            if (row.skips_booleans and isinstance(value, bool)) or (row.field in given and not is_list):
                unused.append(name)
                continue
            if is_list:
                value = [*given.get(row.field, ()), *(value if isinstance(value, list) else [value])]
            given[row.field] = value
            sent[name] = row
        filled = {**self._defaults, **given}
        try:
            body = read_struct(filled, LmiBody, self._reading.profile)
            check_bounds(given, body, self._reading.profile)
        except InvalidRequest as error:
            name_as_sent(error, self._documented, sent)
            raise
        if body.stop and sum(row.field == "stop" for row in sent.values()) > 1:
            body.stop = list(dict.fromkeys(body.stop))  # the same under several names
        return Parsed(body, filled.keys(), self._reading, self._documented, sent, unused)

    def _present(self, raw: Mapping[str, Any]) -> Iterator[tuple[str, Param]]:
        """The known parameters in the order of the table: of two names for one target the first wins."""
        known = [name for name, value in raw.items() if value is not None and name in self._rows]
        return ((name, self._rows[name]) for name in sorted(known, key=self._places.__getitem__))


OF_OPERATOR: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(("n", "best_of", "num_beams"), (1, "max_best_of")),
    **dict.fromkeys(("logprobs", "top_n_tokens", "prompt_logprobs"), (0, "max_logprobs")),
}
"""Fields with a limit of the operator's: the smallest value, and the limit's name."""


def profile_of(rows: Mapping[str, Param], limits: Limits) -> Profile:
    """The ranges of these rows, as the shared checks and the description take them."""
    bounds = {"temperature": PARAMETERS["temperature"].bounds or Bounds()}
    bounds |= {field: Bounds(low, getattr(limits, limit)) for field, (low, limit) in OF_OPERATOR.items()}
    return Profile("lmi", bounds=bounds | {row.field: row.bounds for row in rows.values() if row.bounds is not None})


def name_as_sent(error: InvalidRequest, documented: Mapping[str, str], sent: dict[str, Param]) -> None:
    """Have the error tell the names that the client knows: those that it sent, or those that are documented."""
    names = {**documented, **{row.field: name for name, row in reversed(sent.items())}}
    known = re.compile(rf"\b({'|'.join(names)})\b")
    said, got, value = error.message.partition(", got ")
    error.message = known.sub(lambda found: names[found[0]], said) + got + value
    error.args = (error.message,)
    error.param = known.sub(lambda found: names[found[0]], error.param or "")
