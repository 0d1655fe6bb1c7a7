"""Reads the `parameters` object of an LMI or TGI request by the rows of the parameter table.

Does: types, ranges, aliases, defaults; lists what is unknown. Does not: decide how parameters act together
(`request`). Called by the LMI and TGI dialects, on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from dragoman.errors import InvalidParameter
from dragoman.server.apis.lmi_wire.parameters.table import TABLE, Param, rows_for
from dragoman.server.apis.lmi_wire.parameters.values import IGNORED, MAX_INTEGER, ValueType, show, wrong
from dragoman.server.apis.openai_wire.grammars import GrammarFault
from dragoman.server.bounds import Bounds
from dragoman.types import Grammar, Limits, SamplingParams

DOCUMENTED_NAMES: Mapping[str, str] = {row.field: row.name for row in reversed(TABLE)}
"""For every field, the name of the first row that sets it."""


class Parameters(SamplingParams, frozen=True, kw_only=True):
    """The parameters of one request: every field some row of the table sets, with that profile's defaults filled in.

    None, or 0 for `n`, means that the client did not give it and that its default depends on other parameters.
    """

    n: int = 0
    do_sample: bool | None = None
    max_tokens: int = 30
    truncate_prompt_tokens: int | None = None
    stop: tuple[str, ...] = ()
    include_stop_in_text: bool = False
    use_beam_search: bool = False
    details: bool | None = None
    return_full_text: bool = False
    decoder_input_details: bool = False
    top_n_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    stream: bool = False
    output_formatter: str | None = None
    adapter_id: str | None = None


class Sent(NamedTuple):
    """A parameter the client gave: its row and the name it was sent under."""

    row: Param
    name: str


class Parsed(msgspec.Struct, frozen=True):
    """The content of a `parameters` object. `unused`: names that are unknown, or that another name for the same overrode."""

    values: Parameters
    sent: tuple[Sent, ...] = ()
    unused: tuple[str, ...] = ()

    def has(self, target: str) -> bool:
        """True if the client gave a parameter that sets `target`."""
        return any(sent.row.field == target for sent in self.sent)

    def name_of(self, target: str) -> str:
        """The name under which the client gave `target`; the documented name where it did not."""
        names = (sent.name for sent in self.sent if sent.row.field == target)
        return next(names, DOCUMENTED_NAMES.get(target, target))


class ParameterReader:
    """Reads `parameters` objects for one profile. `limits`: the operator's bounds.

    `defaults`: values by the names of `Parameters` that go before the profile's own.
    """

    def __init__(
        self,
        profile: str,
        version: str,
        limits: Limits,
        *,
        with_tgi_names: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._rows = rows_for(profile, with_tgi_names=with_tgi_names)
        self._places = {name: place for place, name in enumerate(self._rows)}
        self._limits = limits
        self._defaults: dict[str, Any] = {}
        for row in self._rows.values():
            default = row.default_for(profile, version)
            if default is not None:
                self._defaults.setdefault(row.field, default)
        self._defaults |= defaults or {}

    def read(self, raw: Mapping[str, Any]) -> Parsed:
        """The parameters in `raw`; null means not given. Raises: InvalidParameter for the first that is not legal."""
        values: dict[str, Any] = {}
        sent: list[Sent] = []
        unused = [name for name, value in raw.items() if value is not None and name not in self._rows]
        for name, row in self._present(raw):
            value = self._value(row, name, raw[name])
            if value is IGNORED or not _store(values, row, value):
                unused.append(name)
            else:
                sent.append(Sent(row, name))
        self._check_stop(values)
        _check_sizes(values, self._limits)
        return Parsed(Parameters(**{**self._defaults, **values}), tuple(sent), tuple(unused))

    def _present(self, raw: Mapping[str, Any]) -> Iterator[tuple[str, Param]]:
        """The known parameters of `raw` in the order of the table: of two names for one target the first wins."""
        known = [name for name, value in raw.items() if value is not None and name in self._rows]
        return ((name, self._rows[name]) for name in sorted(known, key=self._places.__getitem__))

    def _value(self, row: Param, name: str, value: Any) -> Any:
        bounds = bounds_under(row, self._limits)
        allowed = row.type.label + _range_text(bounds, row.limit)
        if isinstance(value, list | dict) and len(value) > self._limits.max_token_ids:  # before each of them is read
            raise _too_many(name, len(value), self._limits.max_token_ids)
        try:
            number = row.type.reader(value)
        except GrammarFault as fault:
            raise InvalidParameter(f"Parameter '{name}{fault.param}' {fault}", param=name) from None
        except (ValueError, RecursionError) as error:
            raise wrong(name, value, allowed) from error
        if isinstance(number, Grammar):
            passed_over = {f"{name}{place}": reason for place, reason in number.passed_over.items()}
            return replace(number, param=f"{name}{number.param}", passed_over=passed_over)
        if row.type in (ValueType.INTEGER, ValueType.FLOAT) and bounds.problem(number):
            raise wrong(name, value, allowed)
        if row.type is ValueType.INTEGER and bounds.high is None and number > MAX_INTEGER:
            raise wrong(name, value, f"{row.type.label} of at most {MAX_INTEGER}")
        return number

    def _check_stop(self, values: Mapping[str, Any]) -> None:
        stop, limit = values.get("stop", ()), self._limits.max_stop_strings
        if len(stop) > limit:
            raise InvalidParameter(
                f"Parameter 'stop_sequences' must have at most {limit} entries, got {len(stop)}", param="stop_sequences"
            )


_LISTS = frozenset(("bad_words", "stop_token_ids", "logit_bias", "stop"))


def _check_sizes(values: Mapping[str, Any], limits: Limits) -> None:
    """Raises InvalidParameter for lists that nobody can mean, and that would keep the server busy."""
    if _LISTS.isdisjoint(values):  # as nearly always
        return
    counts = {
        "bad_words": limits.max_bad_words,
        **dict.fromkeys(("stop_token_ids", "logit_bias"), limits.max_token_ids),
    }
    for target, most in counts.items():
        if len(values.get(target) or ()) > most:
            raise _too_many(DOCUMENTED_NAMES[target], len(values[target]), most)
    for target in ("stop", "bad_words"):
        longest = max((len(word) for word in values.get(target, ())), default=0)
        if longest > limits.max_word_chars:
            name = DOCUMENTED_NAMES[target]
            problem = f"must hold strings of at most {limits.max_word_chars} characters, got {longest}"
            raise InvalidParameter(f"Parameter '{name}' {problem}", param=name)


def _too_many(name: str, count: int, most: int) -> InvalidParameter:
    return InvalidParameter(f"Parameter '{name}' must have at most {most} entries, got {count}", param=name)


def _store(values: dict[str, Any], row: Param, value: Any) -> bool:
    """Set the row's target; lists are joined. False if another parameter has set it already."""
    old = values.get(row.field)
    if old is None:
        values[row.field] = value
        return True
    if isinstance(old, tuple):
        values[row.field] = tuple(dict.fromkeys((*old, *value)))
        return True
    if isinstance(old, Grammar) and value is not None and value != old:
        raise InvalidParameter(
            f"Parameter '{row.name}' contradicts another output constraint: give one", param=row.name
        )
    return False


def bounds_under(row: Param, limits: Limits) -> Bounds:
    """The range of a row's value, under the operator's limits."""
    return replace(row.bounds, high=getattr(limits, row.limit)) if row.limit else row.bounds


def _range_text(bounds: Bounds, limit: str) -> str:
    """The range as words: " from 0 to 1", " above 0", " of at least 1"."""
    if bounds.low is None:
        return ""
    low = _whole(bounds.low)
    if bounds.high is None:
        return f" above {low}" if bounds.is_low_open else f" of at least {low}"
    named = f" ({limit})" if limit else ""
    if bounds.is_low_open:
        return f" above {low} and at most {_whole(bounds.high)}{named}"
    return f" from {low} to {_whole(bounds.high)}{named}"


def _whole(number: float) -> str:
    """The number without decimals, where it has none to tell."""
    return show(int(number) if number == int(number) else number)
