"""Finds the source of each parameter, by parsing the call again with one thing changed, dozens of times. On a thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import Call, HttpCall, ModelProfile
from dragoman.server.explaining.report import Parameter, SourceKind
from dragoman.server.json_body import NotJson
from dragoman.types import Grammar, LineLimits, SamplingParams

Parse = Callable[[HttpCall, ModelProfile], Call]
"""Parses a call for a model with that profile. Raises: ServerError."""

_NESTED = "parameters"  # where APIs that separate them from the prompt have them
# Fields that are part of another parameter here, or none at all; `passed_over` is in `ignored`.
_NOT_PARAMETERS = ("request_id", "prompt", "sampling", "passed_over", "biased_texts", "called_tool", "lines")
_IN_USERS_WORDS = {
    "include_stop_in_text": "include_stop_str_in_output",
    "cache_key": "prompt_cache_key",
    "may_shift": "shift",
    "cache_keep_s": "seconds to keep the prompt",
    "on_overflow": "if prompt and max_tokens exceed the context",
    "parse_tool_calls": "separate tool calls",
    "parse_reasoning": "separate reasoning",
}
MAX_VARIANTS = 2_000  # that are read
MAX_WORK = 64 * 1024 * 1024  # bytes of their bodies

Values = Mapping[str, Any]
Variants = Callable[[], Iterator[HttpCall]]
"""Variants of a call with one field changed: first without it, then with other values."""


@dataclass(frozen=True, slots=True)
class Told:
    """`other_fields`: decide no parameter. `note`: what was not found out."""

    parameters: list[Parameter]
    other_fields: list[str]
    note: str = ""


def values_of(call: Call) -> dict[str, Any]:
    """The parameters of a call's first request, and whether it streams, in users' words."""
    request = call.requests[0]
    lines = request.lines or LineLimits()
    values = {
        "stream": call.stream,
        **msgspec.structs.asdict(request.sampling),
        **msgspec.structs.asdict(request),
        "n_indent": lines.min_indent,
        "t_max_predict_ms": None if lines.max_s is None else round(1000 * lines.max_s),
    }
    values["logit_bias"] = {**request.sampling.logit_bias, **request.biased_texts}
    if request.called_tool:
        values["tool_choice"] = {"name": request.called_tool}
    return {_IN_USERS_WORDS.get(name, name): value for name, value in values.items() if name not in _NOT_PARAMETERS}


def told(call: Call, http: HttpCall, profile: ModelProfile, parse: Parse) -> Told:
    """Each parameter of `call`, with its source."""
    values = values_of(call)
    try:
        return _told(values, frozenset(call.ignored), http, profile, _bounded(parse))
    except (_TooMuch, RecursionError):
        parameters = [Parameter(name, _plain(value), "request") for name, value in values.items()]
        return Told(parameters, [], "the body is too large to find out who decided each parameter")


class _TooMuch(Exception):
    """Going on would take too long."""


def _bounded(parse: Parse) -> Parse:
    """`parse` with bounded work. Raises: _TooMuch."""
    num_variants = num_bytes = 0

    def bounded(http: HttpCall, profile: ModelProfile) -> Call:
        nonlocal num_variants, num_bytes
        num_variants += 1
        num_bytes += len(http.body)
        if num_variants > MAX_VARIANTS or num_bytes > MAX_WORK:
            raise _TooMuch
        return parse(http, profile)

    return bounded


def _told(values: Values, ignored: frozenset[str], http: HttpCall, profile: ModelProfile, parse: Parse) -> Told:
    def read(variant: HttpCall, other: ModelProfile = profile) -> Values | None:
        try:
            return values_of(parse(variant, other))
        except ServerError:
            return None

    def decided(other: ModelProfile) -> set[str]:
        return _differing(values, [read(http, other)]) or set()

    by_field = {field: _decided(field, variants, http, values, read) for field, variants in _fields(http)}
    by_model = decided(
        replace(
            profile, generation_defaults={}, overriding_defaults={}, default_sampling=SamplingParams(temperature=0.0)
        )
    )
    by_option = {
        name: decided(replace(profile, settings=_dropped(profile.settings, name))) for name in profile.settings
    }
    parameters = []
    for name, value in values.items():
        names = [field for field, decided in by_field.items() if name in decided and field not in ignored]
        options = [option for option, decided in by_option.items() if name in decided]
        source: SourceKind = "API default"
        if names:
            source = "request"
        elif name in by_model and name in profile.default_options:
            source, names = "server option", [profile.default_options[name]]
        elif name in by_model:
            source = "generation_config.json"
        elif options:
            source, names = "server option", options
        parameters.append(Parameter(name, _plain(value), source, names))
    others = [name for name, decided in by_field.items() if not decided and name not in ignored]
    return Told(parameters, others)


def _differing(values: Values, variants: Iterable[Values | None]) -> set[str] | None:
    """The parameters with another value in a variant; None if each variant was refused."""
    found = [variant for variant in variants if variant is not None]
    return {name for variant in found for name, value in variant.items() if value != values[name]} if found else None


def _decided(
    field: str, variants: Variants, http: HttpCall, values: Values, read: Callable[[HttpCall], Values | None]
) -> set[str]:
    """The parameters that a field decides. If another field needs it, both calls are compared without that one."""
    if (found := _differing(values, map(read, variants()))) is not None:
        return found
    for rest in (next(of_other()) for other, of_other in _fields(http) if other != field):  # without the other
        if (plain := read(rest)) is None:
            continue
        for same in (of_same for name, of_same in _fields(rest) if name == field):
            if (found := _differing(plain, map(read, same()))) is not None:
                return found
    return set()


def _fields(http: HttpCall) -> Iterator[tuple[str, Variants]]:
    """The fields of the body, of its `parameters`, and of the query."""
    for name in http.query:
        yield name, partial(_without_query, http, name)
    try:
        body = http.json()
    except NotJson:
        return
    if not isinstance(body, dict):
        return
    for name, value in body.items():
        if name == _NESTED and isinstance(value, dict):
            yield from ((inner, partial(_bodies, http, body, inner, value)) for inner in value)
        else:
            yield name, partial(_bodies, http, body, name)


def _without_query(http: HttpCall, name: str) -> Iterator[HttpCall]:
    yield msgspec.structs.replace(http, query=_dropped(http.query, name))


def _bodies(http: HttpCall, body: Values, name: str, nested: Values | None = None) -> Iterator[HttpCall]:
    for changed in _objects(body if nested is None else nested, name):
        whole = changed if nested is None else {**body, _NESTED: changed}
        yield msgspec.structs.replace(http, body=json.dumps(whole).encode(), _decoded=[])


def _objects(given: Values, name: str) -> Iterator[Values]:
    """The object without the field, then with other values in it: a field that repeats the default decides as well."""
    yield _dropped(given, name)
    for other in _others(given[name]):
        yield {**given, name: other}


def _others(value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield not value
        case int():
            yield value + 1
            yield value - 1
        case float():
            yield value / 2
            yield value + 0.125
        case str() if len(value) < 100:
            yield value + "x"
        case list() if len(value) < 100:
            yield value[:-1]
            yield [*value, *value[-1:]]
            if value and isinstance(value[0], dict):
                yield from ([changed, *value[1:]] for name in value[0] for changed in _objects(value[0], name))


def _dropped(given: Values, name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


def _plain(value: Any) -> Any:
    return {value.kind: value.source} if isinstance(value, Grammar) else msgspec.to_builtins(value, str_keys=True)
