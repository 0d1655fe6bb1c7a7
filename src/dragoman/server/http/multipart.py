"""Takes multipart bodies apart. APIs call it, on the event loop or a thread."""

from __future__ import annotations

from typing import NamedTuple

from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_options_header

from dragoman.errors import InvalidPayload
from dragoman.server.api import HttpCall

MULTIPART = "multipart/form-data"
MAX_FORM_FIELDS = 2_000  # LMI's `inputs` comes as often as there are prompts


class Part(NamedTuple):
    """One part. `file_name` None = a plain field."""

    name: str
    content: bytes
    file_name: str | None = None


def read_parts(http: HttpCall) -> list[Part]:
    """The named parts of a multipart body, in order. Raises: InvalidPayload if the body is malformed."""
    _, options = parse_options_header(http.headers["content-type"])
    check_count(http.body.count(b"--" + options.get(b"boundary", b"")))
    parts: list[Part] = []
    is_ended = False

    def take(part: Field | File) -> None:
        name = (part.field_name or b"").decode("utf-8", "replace")
        if isinstance(part, Field):
            parts.append(Part(name, part.value or b""))
        else:
            part.file_object.seek(0)
            file_name = (part.file_name or b"").decode("utf-8", "replace")
            parts.append(Part(name, part.file_object.read(), file_name))

    def end() -> None:
        nonlocal is_ended
        is_ended = True

    try:
        parser = FormParser(
            MULTIPART,
            take,
            take,
            end,
            options.get(b"boundary"),
            config={"MAX_MEMORY_FILE_SIZE": len(http.body) + 1},  # the body is in memory already: no temporary files
        )
        parser.write(http.body)
    except FormParserError as error:
        raise InvalidPayload(f"The multipart body is malformed: {error}") from error
    if not is_ended:
        raise InvalidPayload(
            "The multipart body is malformed: it lacks the last boundary, which its content type names"
        )
    return parts


def check_count(num_fields: int) -> None:
    if num_fields > MAX_FORM_FIELDS:
        raise InvalidPayload(f"A form must have at most {MAX_FORM_FIELDS} fields, got {num_fields} or more")
