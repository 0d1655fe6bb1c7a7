"""The `parameters` of an LMI or TGI request: the options that shape them, and a table with one row each.

Reading, the `x-dragoman-ignored` header, docs/dialects/lmi.md and the OpenAPI document are derived from the table, for
every backend profile and version. Types and ranges are those of all APIs; errors tell the names that were sent.
Read on the event loop. Sources: the LMI schema pages v0.31 and v0.26, the TGI API.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dragoman.errors import InvalidRequest
from dragoman.parameters import FURTHER, PARAMETERS, Bounds, Need, neutral_value
from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.common import Reading
from dragoman.server.apis.openai_wire.describe import field_schemas
from dragoman.server.apis.openai_wire.fields import check_bounds, read_struct
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.sampling import SharedBody
from dragoman.server.descriptions import BOOLEAN, Schema, any_of, described, struct_schemas
from dragoman.types import Limits

BACKENDS = ("auto", "vllm", "lmi-dist", "trtllm", "scheduler", "deepspeed")
TGI = "tgi"  # the profile of TGI's own routes; its names are also taken on LMI routes with tgi_compat
VERSIONS = ("0.26", "0.31", "0.32")


@dataclasses.dataclass(frozen=True, slots=True)
class LmiOptions:
    """The way that routes read requests and answer them. `rolling_batch` is `TGI` on TGI's own routes.

    Named as `option.*` in serving.properties, but for the model's facts.
    """

    rolling_batch: str = "auto"
    lmi_version: str = "0.31"
    batch_size: int = 1
    enable_streaming: bool = False
    output_formatter: str | None = None
    tgi_compat: bool = False
    model: ModelProfile = dataclasses.field(default_factory=ModelProfile)

    @property
    def is_dynamic(self) -> bool:
        return self.rolling_batch == "disable" or self.batch_size > 1

    @property
    def profile(self) -> str:
        return "disable" if self.is_dynamic else self.rolling_batch

    @property
    def is_tgi_route(self) -> bool:
        return self.rolling_batch == TGI

    @property
    def is_tgi(self) -> bool:
        """True if answers have TGI's shapes."""
        return self.is_tgi_route or (self.tgi_compat and not self.is_dynamic)

    @property
    def is_v026(self) -> bool:
        return self.lmi_version == "0.26"


_EVERY = (*BACKENDS, TGI)
_VLLM = ("auto", "vllm", "lmi-dist")
_TRT = ("auto", "trtllm")
_PENALISING = (*_VLLM, "trtllm")
_CUTTING = ("auto", "lmi-dist", "deepspeed")


@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """One parameter in some profiles.

    `field`: of `LmiBody`, which it sets. `default`: for all profiles; `defaults`: by profile or profile/version.
    `bounds`: the range of a number; None = as everywhere. `skips_booleans`: these are legal and have no meaning.
    """

    name: str
    field: str
    profiles: tuple[str, ...]
    effect: str
    default: Any = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    bounds: Bounds | None = None
    needs: Need = Need.NOTHING
    skips_booleans: bool = False

    def default_for(self, options: LmiOptions) -> Any:
        of_profile = self.defaults.get(options.profile, self.default)
        return self.defaults.get(f"{options.profile}/{options.lmi_version}", of_profile)


def _row(name: str, profiles: tuple[str, ...] = BACKENDS, *, of: str = "", **changes: Any) -> Param:
    """`of`: the field that it sets, its name if absent. `changes`: what LMI says otherwise."""
    field = of or name
    facts: dict[str, Any] = {}
    if field in PARAMETERS:
        common = PARAMETERS[field]
        facts = {"effect": common.effect.replace("`", ""), "aliases": common.aliases, "needs": common.needs}
        facts["default"] = neutral_value(field)
    return Param(name, field, profiles, **{**facts, **changes})


_ABOVE_0_TO_1 = Bounds(0.0, 1.0, is_low_open=True)
_TRT_LENGTH = {"trtllm/0.26": 128}
_TGI_ALWAYS: Mapping[str, Any] = {"needs": Need.NOTHING}  # TGI samples as soon as one of them is given

_SAMPLING = (
    _row("do_sample", _EVERY, effect="sample instead of taking the most likely token"),
    _row("seed"),
    _row("seed", (TGI,), bounds=Bounds(0, 2**64 - 1)),
    _row("temperature", defaults={"trtllm/0.26": 0.8}),
    _row("temperature", (TGI,), effect="divides the logits", bounds=Bounds(0.0, is_low_open=True), **_TGI_ALWAYS),
    _row("top_k", defaults={"vllm": -1, "lmi-dist/0.31": -1, "lmi-dist/0.32": -1, "trtllm": 5}),
    _row("top_k", (TGI,), effect="only the k most likely tokens", bounds=Bounds(1), **_TGI_ALWAYS),
    _row(
        "top_p",
        _TRT,
        effect=f"{PARAMETERS['top_p'].effect}; 0 together with top_k 0 is greedy",
        defaults={"trtllm": 0.85},
    ),
    _row("top_p", ("vllm", "lmi-dist", "scheduler", "deepspeed"), bounds=_ABOVE_0_TO_1),
    _row("top_p", (TGI,), bounds=_ABOVE_0_TO_1, **_TGI_ALWAYS),
    _row("min_p", _VLLM),
    _row("typical_p", _CUTTING),
    _row("typical_p", (TGI,), **_TGI_ALWAYS),
    _row("repetition_penalty", _EVERY),
    _row("presence_penalty", _PENALISING),
    _row("frequency_penalty", (*_PENALISING, TGI)),
    _row("logit_bias", _VLLM, default=None),
    _row("bad_sequences", _TRT, of="bad_words", default=None, aliases=("bad_words_list",)),
    *(_row(name, _EVERY) for name in FURTHER),
)

_LENGTH = (
    _row("max_new_tokens", of="max_tokens", default=30, defaults=_TRT_LENGTH),
    _row("max_new_tokens", (TGI,), of="max_tokens", default=100),
    _row("max_tokens", _VLLM, effect="the same as max_new_tokens, which wins", default=30),
    _row(
        "request_output_len",
        ("trtllm",),
        of="max_tokens",
        effect="the same as max_new_tokens, which wins",
        default=30,
        defaults=_TRT_LENGTH,
    ),
    _row("min_tokens", _VLLM),
    _row("thinking_token_budget", _VLLM),
    _row("min_length", _TRT, of="min_tokens", defaults={"trtllm/0.31": 1, "trtllm/0.32": 1}),
    _row("truncate", (*_CUTTING, TGI), of="truncate_prompt_tokens"),
)

_STOPPING = (
    _row("stop_sequences", of="stop", effect="texts that end the answer and are not part of it", default=None),
    _row(
        "stop",
        effect="the same as stop_sequences, and added to them; a boolean is ignored",
        default=None,
        skips_booleans=True,
    ),
    _row("stop", (TGI,), default=None, aliases=("stop_sequences",)),
    _row("stop_words_list", _TRT, of="stop", effect="the same as stop_sequences", default=None),
    _row("stop_token_ids", _VLLM, default=None),
    _row("include_stop_str_in_output", _VLLM, effect=PARAMETERS["include_stop_in_text"].effect, default=False),
    _row("ignore_eos_token", _VLLM, of="ignore_eos", aliases=("ignore_eos",)),
)

_SEQUENCES = (
    _row("n", _VLLM, effect="sequences returned", default=None, needs=Need.ONE_ANSWER),
    _row("best_of", (*_VLLM, TGI)),
    _row("num_beams", (*_VLLM, "trtllm", "scheduler")),
    _row("use_beam_search", _VLLM, effect="best_of is the width of a beam search", default=False),
    _row("length_penalty", _PENALISING),
    _row("early_stopping", _VLLM),
)

_GRAMMAR = (
    _row("response_format", _VLLM, effect="the answer is JSON, or JSON of a schema"),
    _row("guided_json", _VLLM, effect="the answer is JSON of this schema"),
    _row("guided_regex", _VLLM, effect="the answer matches this regular expression"),
    _row("guided_choice", _VLLM, effect="the answer is one of these texts"),
    _row("guided_grammar", _VLLM, effect="the answer is a sentence of this grammar"),
    _row("grammar", ("auto", TGI), of="response_format", effect="the answer is JSON of a schema or matches a regex"),
)

_WITH_DETAILS: Mapping[str, Any] = {"needs": Need.DETAILS}
_ANSWER = (
    _row("details", _EVERY, effect="the answer carries details; on by default with tgi_compat", needs=Need.ROLLING),
    _row("return_full_text", _EVERY, effect="the answer begins with the prompt", default=False),
    _row(
        "decoder_input_details",
        (*_VLLM, TGI),
        effect="details.prefill lists the prompt's tokens",
        default=False,
        **_WITH_DETAILS,
    ),
    _row(
        "prompt_logprobs",
        _VLLM,
        effect="details.prefill lists the prompt's tokens, each with this number of alternatives",
        **_WITH_DETAILS,
    ),
    _row(
        "top_n_tokens",
        _EVERY,
        effect="details.top_tokens lists this number of alternatives for every token",
        **_WITH_DETAILS,
    ),
    _row("logprobs", effect="the same as top_n_tokens, which wins", **_WITH_DETAILS),
    _row("skip_special_tokens", _VLLM),
    _row("spaces_between_special_tokens", _VLLM),
    _row("stream", effect="the same as the body's stream, which wins", default=False),
    _row("output_formatter", effect="json, jsonlines or sse: the form of this answer"),
    _row("adapter_id", (TGI,), effect="the adapter to answer with", needs=Need.ADAPTERS),
)

TABLE: tuple[Param, ...] = (*_SAMPLING, *_LENGTH, *_STOPPING, *_SEQUENCES, *_GRAMMAR, *_ANSWER)


def rows_for(profile: str, *, with_tgi_names: bool = False) -> dict[str, Param]:
    """`disable` (dynamic batch) takes what `auto` takes. TGI's names: where the profile lacks them with LMI's own ranges."""
    name = "auto" if profile == "disable" else profile
    rows = [row for row in TABLE if name in row.profiles]
    if with_tgi_names:
        names = {row.name for row in rows}
        rows += [row for row in TABLE if TGI in row.profiles and row.name not in names]
    by_name: dict[str, Param] = {}
    for row in rows:
        by_name |= {spelling: row for spelling in (row.name, *row.aliases) if spelling not in by_name}
    return by_name


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
    def __init__(self, options: LmiOptions) -> None:
        self._rows = rows_for(options.profile, with_tgi_names=options.tgi_compat)
        self._places = {name: place for place, name in enumerate(self._rows)}
        self._documented = {row.field: row.name for row in (*reversed(TABLE), *reversed(self._rows.values()))}
        self._defaults: dict[str, Any] = {}
        for row in self._rows.values():
            default = row.default_for(options)
            is_neutral = row.field in PARAMETERS and default == neutral_value(row.field)
            if default and not is_neutral:  # the others are what a request without them has
                self._defaults.setdefault(row.field, default)
        limits = options.model.limits
        self._defaults |= options.model.overriding_defaults
        thinking = ModelProfile(limits=limits, abilities=frozenset({"thinking"}))
        # Too long a prompt and answer together: LMI has a shorter answer, TGI's routes refuse them.
        words = replace(profile_of(self._rows, limits), clips_overflow=not options.is_tgi_route)
        self._reading = Reading(words, thinking)

    def read(self, raw: Mapping[str, Any]) -> Parsed:
        """null means not given. Raises: InvalidParameter for the first that is not legal."""
        values: dict[str, Any] = {}
        sent: dict[str, Param] = {}
        unused = [name for name, value in raw.items() if value is not None and name not in self._rows]
        for name, row in self._present(raw):
            value, is_list = raw[name], row.field in _LISTS
            if (row.skips_booleans and isinstance(value, bool)) or (row.field in values and not is_list):
                unused.append(name)
                continue
            if is_list:
                value = [*values.get(row.field, ()), *(value if isinstance(value, list) else [value])]
            values[row.field] = value
            sent[name] = row
        filled = {**self._defaults, **values}
        try:
            body = read_struct(filled, LmiBody, self._reading.profile)
            check_bounds(values, body, self._reading.profile)
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
    problem, got, value = error.message.partition(", got ")
    error.message = known.sub(lambda found: names[found[0]], problem) + got + value
    error.args = (error.message,)
    error.param = known.sub(lambda found: names[found[0]], error.param or "")


_COERCED = (
    "Numbers may also come as strings, the only entry of a list of texts or ids without the list. null means not given. "
    "Unknown parameters have no effect."
)


def parameter_schemas(name: str, options: LmiOptions) -> dict[str, Schema]:
    """The `parameters` object with these options, as component `name`, and the components it refers to."""
    made = struct_schemas([LmiBody])
    rows = rows_for(options.profile, with_tgi_names=options.tgi_compat)
    fields = schemas_of_fields(rows, options.model.limits)
    properties = {}
    for spelling, row in rows.items():
        effect = row.effect if row.needs is Need.NOTHING else f"{row.effect} ({row.needs})"
        default = row.default_for(options)
        text = effect if spelling == row.name else f"the same as {row.name}"
        is_legal = row.bounds is None or default is None or not row.bounds.problem(default)  # TGI's top_k 0 is left out
        field = any_of(*fields[row.field]["anyOf"], BOOLEAN) if row.skips_booleans else fields[row.field]
        properties[spelling] = described(field, text, default if is_legal else None)
    parts = {part: schema for part, schema in made.items() if part != LmiBody.__name__}
    return {**parts, name: {"type": "object", "description": _COERCED, "properties": properties}}


def schemas_of_fields(rows: Mapping[str, Param], limits: Limits) -> dict[str, Schema]:
    made = struct_schemas([LmiBody])[LmiBody.__name__]
    typed = {row.field: made["properties"][row.field] for row in rows.values()}
    found = field_schemas({"properties": typed}, {}, profile_of(rows, limits), ModelProfile(limits=limits))
    return {field: {key: value for key, value in schema.items() if key != "default"} for field, schema in found.items()}
