"""A parrot as a complete client API, served when this module's name is in `apis.NAMES`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.errors import InvalidPayload, ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    JSONLINES_MEDIA_TYPE,
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
    jsonline,
    model_of_body,
)
from dragoman.server.descriptions import IGNORED, LISTING, Answer, json_answer, json_teller, statuses
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server
from dragoman.server.security.callers import Scope
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult, TextPrompt

# --- what clients send, and the answers ---------------------------------------------------------------------------------


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """The input. `model` None = the default model."""

    heard: str
    most_tokens: int = 16
    stream: bool = False
    model: str | None = None


class Said(msgspec.Struct):
    """The whole answer."""

    said: str


class Squawk(msgspec.Struct):
    """One line of a stream."""

    squawk: str


class Complaint(msgspec.Struct):
    """The body of an error."""

    complaint: str
    about: str | None


class Perches(msgspec.Struct):
    """The available models."""

    perches: list[str]


# --- errors ------------------------------------------------------------------------------------------------------------


def complaint(error: ServerError) -> Complaint:
    """The body of an error."""
    return Complaint(error.message, error.param)


ERRORS = json_teller(statuses(overloaded=503, engine_dead=500), Complaint, lambda error, http: complaint(error))


# --- from bytes to a request, from events to bytes ---------------------------------------------------------------------


class Parrot(PureDialect):
    """The parrot's words for one model."""

    errors = ERRORS

    def parse(self, http: HttpCall) -> Call:
        """The call in neutral words. Raises: InvalidPayload."""
        try:
            question = msgspec.convert(http.json(), Question)
        except ValueError as error:  # no JSON, or not a question
            raise InvalidPayload(f"the parrot did not understand: {error}") from error
        request = GenerationRequest(http.request_id, TextPrompt(question.heard), max_tokens=question.most_tokens)
        return Call((request,), ParrotEncoder(), stream=question.stream)


class ParrotEncoder(Encoder):
    """Writes one answer."""

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """The whole text."""
        return json_reply(200, Said(results[0].sequences[0].text))

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """A stream's head."""
        return Head(JSONLINES_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """A squawk for every piece of text."""
        return jsonline(msgspec.json.encode(Squawk(event.text))) if event.text else b""

    def stream_error(self, error: ServerError) -> bytes:
        """The complaint as the stream's last line."""
        return jsonline(msgspec.json.encode(complaint(error)))


# --- operations --------------------------------------------------------------------------------------------------------


def set_up(profile: ModelProfile) -> Dialects:
    """The dialect for a model."""
    return {"parrot": Parrot()}


async def perches(http: HttpCall, server: Server) -> Perches:
    """The names of the models."""
    return Perches([model.name for model in server.models.models])


API = Api(
    name="parrot",
    title="Parrot",
    owns=("/parrot",),
    set_up=set_up,
    teller=lambda dialects: ERRORS,
    operations=(
        GenerateOperation(
            path="/parrot/say",
            tag="Parrot",
            summary="Say something",
            answers=ERRORS.beside(
                Answer("what it says", {JSON_MEDIA_TYPE: Said, JSONLINES_MEDIA_TYPE: (Squawk, Complaint)}, IGNORED)
            ),
            body={JSON_MEDIA_TYPE: Question},
            example={"heard": "Polly wants a cracker", "most_tokens": 8, "stream": True},
            dialect="parrot",
            model=model_of_body,
        ),
        AnswerOperation(
            method="GET",
            path="/parrot/perches",
            tag="Parrot",
            summary="List the models",
            answers=ERRORS.beside(json_answer(Perches), LISTING),
            scope=Scope.INFERENCE,
            answer=perches,
        ),
    ),
)
