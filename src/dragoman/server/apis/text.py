"""The plain-text service as an API: `/api/generate-one` and `/api/generate-batch`, text in and text out.

A status of 200 means ended by itself, 206 cut or still unknown. In bodies `null` means "not given"; ids keep their exact
JSON text, so that they return as sent. On the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from dragoman.errors import InvalidParameter, InvalidPayload, ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    TEXT_MEDIA_TYPE,
    Call,
    Dialects,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    ModelProfile,
    PureDialect,
    Reply,
    json_reply,
    model_of_query_or_header,
)
from dragoman.server.descriptions import (
    BY_NAME,
    GENERATED,
    NON_EMPTY_TEXT,
    NUMBER,
    QUESTION,
    TEXT,
    VERSIONED,
    Answer,
    Answers,
    ErrorFamily,
    Schema,
    Shape,
    an_object,
    any_of,
    array,
    described,
    header,
    json_errors,
    merged,
    nullable,
    parameter,
    ref,
    statuses,
)
from dragoman.server.json_body import NotJson, check_fields, decode_json
from dragoman.server.operations import Api, GenerateOperation
from dragoman.types import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Limits,
    Prompt,
    SamplingParams,
    TextPrompt,
)

ONE_PATH = "/api/generate-one"
BATCH_PATH = "/api/generate-batch"

COMPLETE = 200  # the text ended with the end-of-sequence token
PARTIAL = 206  # it was cut at maxLength, or it is not known yet how it will end
TRAILER_NAMES = "X-Status, X-Finish-Reason"

ERROR_STATUS = statuses(overloaded=503, engine_dead=500)
"""The body is the reason, as text or in the batch's `{"error"}`."""

PROMPT_FIELDS = ("id", "prompt", "maxLength")
BATCH_FIELDS = ("prompts", "maxLength")
MAX_SHOWN_LENGTH = 60  # how much of a wrong value an error repeats

Fields = Mapping[str, msgspec.Raw]


class PromptEntry(NamedTuple):
    """One prompt to continue. `id` is JSON text; `max_length` counts generated tokens."""

    id: msgspec.Raw
    prompt: str
    max_length: int


Parsed = tuple[list[PromptEntry], list[str]]
"""The prompts in order, and the names of fields that mean nothing here."""


class BatchAnswerItem(msgspec.Struct, frozen=True):
    """One element of a batch's answer, which has the order of the request; `id` as it was sent."""

    id: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["string", "number"]})]
    data: str


_FIELDS: Mapping[str, tuple[Any, str, str]] = {
    "id": (str | int | float, "a string or a number", ""),
    "prompt": (Annotated[str, Meta(min_length=1)], "a string", " that is not empty"),
    # 10.0 is an integer in JSON.
    "maxLength": (
        Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1, multiple_of=1)],
        "an integer of at least 1",
        "",
    ),
    "prompts": (list[msgspec.Raw], "an array of {id, prompt, maxLength}", ""),
}
"""The type of each field, its words in errors, and a further condition."""


def parse_one(body: bytes) -> Parsed:
    fields = _object(body, "The request body")
    return [_entry(fields, "", None)], _unknown(fields, PROMPT_FIELDS, "")


def parse_batch(body: bytes, max_prompts: int) -> Parsed:
    """The prompts, the shared `maxLength` filled in. Raises: InvalidPayload."""
    fields = _object(body, "The request body")
    shared = _value(fields, "", "maxLength")
    items = _needed(fields, "", "prompts")
    if not 1 <= len(items) <= max_prompts:
        raise InvalidPayload(f"prompts has {len(items)} entries, 1 to {max_prompts} are allowed", param="prompts")
    ignored = _unknown(fields, BATCH_FIELDS, "")
    entries: list[PromptEntry] = []
    for position, item in enumerate(items):
        name = f"prompts[{position}]"
        item_fields = _object(item, name)
        try:
            entries.append(_entry(item_fields, f"{name}.", shared))
        except InvalidPayload as error:
            has_id = "id" in item_fields and error.param != "id"
            raise (error.of(label_of(item_fields["id"])) if has_id else error) from error
        ignored.extend(_unknown(item_fields, PROMPT_FIELDS, f"{name}."))
    _refuse_duplicates(entries)
    return entries, ignored


def label_of(entry_id: msgspec.Raw) -> str:
    return f"id {_shown(entry_id)}"


def _object(raw: bytes | msgspec.Raw, name: str) -> Fields:
    """The fields of a JSON object, `null` ones left out."""
    try:
        fields: Fields = decode_json(raw, dict[str, msgspec.Raw])
        check_fields(fields)
    except msgspec.ValidationError as error:
        raise InvalidPayload(f"{name} must be a JSON object, got {_shown(raw)}") from error
    except NotJson as error:
        raise InvalidPayload(error.of(name)) from error
    return {key: value for key, value in fields.items() if bytes(value) != b"null"}


def _entry(fields: Fields, prefix: str, shared_max_length: int | None) -> PromptEntry:
    own_max_length = _value(fields, prefix, "maxLength")
    _needed(fields, prefix, "id")
    # A copy, or the id would keep the whole body alive while tokens are generated.
    entry_id, prompt = fields["id"].copy(), _needed(fields, prefix, "prompt")
    max_length = shared_max_length if own_max_length is None else own_max_length
    return PromptEntry(entry_id, prompt, int(max_length or _needed(fields, prefix, "maxLength")))


def _needed(fields: Fields, prefix: str, name: str) -> Any:
    value = _value(fields, prefix, name)
    if value is None:
        raise InvalidPayload(f"{prefix}{name} is missing: it must be {_FIELDS[name][1]}", param=name)
    return value


def _value(fields: Fields, prefix: str, name: str) -> Any:
    """None if it is not given. Raises: InvalidPayload if it is wrong."""
    if name not in fields:
        return None
    kind, allowed, condition = _FIELDS[name]
    try:
        return decode_json(fields[name], kind)
    except msgspec.ValidationError as error:
        message = f"{prefix}{name} must be {allowed}{condition}, got {_shown(fields[name])}"
        raise InvalidPayload(message, param=name) from error
    except NotJson as error:
        raise InvalidPayload(error.of(f"{prefix}{name}"), param=name) from error


def _refuse_duplicates(entries: list[PromptEntry]) -> None:
    """Answers are told apart by ids. `1` and `"1"` do differ."""
    seen: set[tuple[bool, Any]] = set()
    for entry in entries:
        value = decode_json(entry.id)
        key = (isinstance(value, str), value)
        if key in seen:
            message = f"id {_shown(entry.id)} occurs twice, ids must be unique in a batch"
            raise InvalidPayload(message, param="id")
        seen.add(key)


def _unknown(fields: Fields, known: tuple[str, ...], prefix: str) -> list[str]:
    return [f"{prefix}{name}" for name in fields if name not in known]


def _shown(raw: bytes | msgspec.Raw) -> str:
    text = bytes(raw)[: 4 * MAX_SHOWN_LENGTH].decode("utf-8", "replace")
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."


class TextError(msgspec.Struct):
    """The body of an error where answers are JSON."""

    error: str


@dataclass(frozen=True, eq=False)
class TextDialect(PureDialect):
    """`hold_ms`: a streamed answer's head waits that long for the outcome, so that short answers have the exact status."""

    hold_ms: int = 200
    chat_template: bool = False  # wrap each prompt as one user turn instead of giving it to the model raw
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    limits: Limits = field(default_factory=Limits)

    def parse(self, http: HttpCall) -> Call:
        if http.path == BATCH_PATH:
            entries, unknown = parse_batch(http.body, self.limits.max_prompts)
            requests = self._requests(entries, [f"{http.request_id}-{place}" for place in range(len(entries))])
            idle = dict.fromkeys((*unknown, *(("stream",) if _wants_stream(http, default=False) else ())), "")
            labels = tuple(label_of(entry.id) for entry in entries)
            return Call(requests, BatchEncoder(entries), idle=idle, labels=labels)
        entries, unknown = parse_one(http.body)
        wants_stream = _wants_stream(http, default=True)
        hold_s = self.hold_ms / 1000 if wants_stream else 0.0
        requests = self._requests(entries, [http.request_id])
        idle = dict.fromkeys(unknown, "")
        return Call(requests, TextEncoder(), stream=wants_stream, idle=idle, hold_s=hold_s, is_head_fixed=False)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        status = ERROR_STATUS[error.kind]
        if http.path == ONE_PATH:
            return Reply(status, _utf8(error.message) + b"\n", TEXT_MEDIA_TYPE)
        return json_reply(status, TextError(error.message))

    def _requests(self, entries: Sequence[PromptEntry], request_ids: Sequence[str]) -> tuple[GenerationRequest, ...]:
        return tuple(
            GenerationRequest(
                request_id=request_id,
                prompt=self._prompt(entry),
                sampling=self.sampling,
                max_tokens=entry.max_length,
                on_overflow="clip",
            )
            for request_id, entry in zip(request_ids, entries, strict=True)
        )

    def _prompt(self, entry: PromptEntry) -> Prompt:
        if self.chat_template:
            return ChatPrompt(messages=({"role": "user", "content": entry.prompt},))
        return TextPrompt(entry.prompt)


class TextEncoder(Encoder):
    def __init__(self) -> None:
        self._finish: FinishReason | None = None

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        sequence = results[0].sequences[0]
        return Reply(_status(sequence.finish_reason), _utf8(sequence.text), TEXT_MEDIA_TYPE)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """Status 200 if the text is known to have ended by itself, else 206; the trailers will have the last word."""
        outcome = next((item.event.finish_reason for item in events if item.event.finish_reason is not None), None)
        return Head(TEXT_MEDIA_TYPE, _status(outcome), {"trailer": TRAILER_NAMES})

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        self._finish = event.finish_reason or self._finish
        return _utf8(event.text)

    def stream_error(self, error: ServerError) -> None:
        """No bytes could tell an error from text, so the connection is cut."""
        return

    def trailers(self) -> Sequence[tuple[str, str]]:
        is_complete = self._finish is FinishReason.EOS
        return (("X-Status", str(_status(self._finish))), ("X-Finish-Reason", "eos" if is_complete else "length"))


class BatchEncoder(TextEncoder):
    """The answer of generate-batch: a JSON array in request order, complete or not at all. It is never streamed."""

    def __init__(self, entries: Sequence[PromptEntry]) -> None:
        super().__init__()
        self._entries = entries

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        sequences = [result.sequences[0] for result in results]
        status = max(_status(sequence.finish_reason) for sequence in sequences)
        pairs = zip(self._entries, sequences, strict=True)
        return json_reply(status, [BatchAnswerItem(entry.id, sequence.text) for entry, sequence in pairs])


def _wants_stream(http: HttpCall, *, default: bool) -> bool:
    value = http.query.get("stream")
    if value is None:
        return default
    match value.strip().lower():
        case "true" | "1" | "":
            return True
        case "false" | "0":
            return False
    raise InvalidParameter(f"stream must be true or false, got {value!r}", param="stream")


def _status(finish: FinishReason | None) -> int:
    return COMPLETE if finish is FinishReason.EOS else PARTIAL


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a lone surrogate has no encoding and must not end the answer


NAME = "text"


def set_up(profile: ModelProfile) -> Dialects:
    options = {"hold_ms": "text_status_hold_ms", "chat_template": "text_chat_template"}
    chosen = {name: profile.settings[option] for name, option in options.items() if option in profile.settings}
    return {NAME: TextDialect(sampling=profile.default_sampling, limits=profile.limits, **chosen)}


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    name, prompt = (
        described(any_of(TEXT, NUMBER), "the caller's name for the prompt"),
        described(NON_EMPTY_TEXT, "the text to continue"),
    )
    length: Schema = {"type": "integer", "minimum": 1}
    most = described(length, "tokens to generate at most, the end-of-sequence token included")
    entry = an_object(
        {"id": name, "prompt": prompt}, {"maxLength": described(nullable(length), "wins over the shared one")}
    )
    entries = {**array(entry, minItems=1, maxItems=profile.limits.max_prompts), "description": "ids must differ"}
    shared = {"maxLength": described(nullable(length), "for prompts without their own")}
    return {
        "GenerateOneRequest": an_object({"id": name, "prompt": prompt, "maxLength": most}),
        "GenerateBatchRequest": an_object({"prompts": entries}, shared),
    }


def _generated(media_type: str, shape: Shape, whole: str, part: str, errors: Answers, *headers: str) -> Answers:
    """`whole`, `part`: what a status of 200 or 206 means."""
    content, names = {media_type: shape}, (*GENERATED, *headers)
    return merged({COMPLETE: Answer(whole, content, names), PARTIAL: Answer(part, content, names)}, errors)


_STATUS = "200 if the text ended by itself; 206 if it was cut at `maxLength`, or if its end is not known yet."
_operation = partial(GenerateOperation, tag="Plain text", dialect=NAME, model=model_of_query_or_header)

API = Api(
    name=NAME,
    title="plain text",
    owns=("/api",),
    set_up=set_up,
    teller=lambda dialects: dialects[NAME],
    schemas=_schemas,
    operations=(
        _operation(
            path=ONE_PATH,
            summary="Continue one prompt; the body of the answer is the text",
            answers=_generated(
                TEXT_MEDIA_TYPE,
                TEXT,
                "the text, complete",
                "the text, cut, or not known yet to be complete",
                ErrorFamily(ERROR_STATUS, lambda status: {TEXT_MEDIA_TYPE: TEXT}).answers(),
                "Trailer",
            ),
            description=f"{_STATUS} With `TE: trailers`, the trailers `X-Status` and `X-Finish-Reason` tell the exact "
            "outcome. A failure in the middle closes the connection without the final chunk.",
            parameters=(*BY_NAME, *VERSIONED, "stream_query"),
            body={JSON_MEDIA_TYPE: ref("GenerateOneRequest")},
            example={"id": "123", "prompt": QUESTION, "maxLength": 32},
        ),
        _operation(
            path=BATCH_PATH,
            summary="Continue several prompts at once",
            answers=_generated(
                JSON_MEDIA_TYPE,
                list[BatchAnswerItem],
                "the texts, all of them complete",
                "the texts, at least one of them cut",
                json_errors(ERROR_STATUS, TextError).answers(),
            ),
            description="200 if every text ended by itself, else 206. Never streamed.",
            parameters=(*BY_NAME, *VERSIONED),
            body={JSON_MEDIA_TYPE: ref("GenerateBatchRequest")},
            example={
                "prompts": [
                    {"id": "123", "prompt": QUESTION, "maxLength": 10},
                    {"id": "456", "prompt": "Write a story."},
                ],
                "maxLength": 20,
            },
        ),
    ),
    parameters={
        "stream_query": parameter(
            "query",
            "stream",
            "false waits for the whole text and gives the exact status; an empty value means true",
            {"enum": ["true", "false", "1", "0", ""], "default": "true"},
        ),
    },
    headers={"Trailer": header("the trailers that follow, for clients that take them")},
)
