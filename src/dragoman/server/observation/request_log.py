"""Writes one line in the log for each ended call. Prompts and messages that quote clients are in it only on request."""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

import msgspec

from dragoman.errors import ServerError
from dragoman.server.observation.record import CallRecord

LOGGER_NAME = "dragoman.requests"

LogForm = Literal["off", "text", "json", "short", "coloured"]
"""`short` and `coloured` are for people who watch a terminal."""

_LONGEST_PATH = 80
_COLOURS = {1: "36", 2: "32", 3: "36", 4: "33"}  # by a status's first digit: cyan, green, cyan, yellow; else red

_PARAMETER = re.compile(r"[A-Za-z0-9_-]{1,64}")

logger = logging.getLogger(LOGGER_NAME)


class RequestLog:
    """The lines of calls. `shows_prompts`: adds prompts and messages of errors."""

    def __init__(self, form: LogForm, *, shows_prompts: bool = False) -> None:
        self._form = form
        self._shows_prompts = shows_prompts

    def write(self, record: CallRecord) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        if self._form in ("short", "coloured"):
            logger.info("%s", _short(record, has_colours=self._form == "coloured"))
            return
        facts = facts_of(record)
        if self._shows_prompts:
            facts["message"] = None if record.error is None else record.error.message
            facts["prompts"] = [request.prompt_text for request in record.requests]
        logger.info("%s", msgspec.json.encode(facts).decode() if self._form == "json" else _sentence(facts))


def _short(record: CallRecord, *, has_colours: bool) -> str:
    path = "".join(character if character.isprintable() else "?" for character in record.path)
    shown = path if len(path) <= _LONGEST_PATH else path[: _LONGEST_PATH - 3] + "..."
    seconds = record.end_s - record.begin_s
    took = f"{1000 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
    status = str(record.status or "-")
    if has_colours:
        status = f"\x1b[{_COLOURS.get(record.status // 100, '31')}m{status}\x1b[0m"
    words = [record.method, shown, status, took]
    if record.num_prompt_tokens or record.num_completion_tokens:
        words.append(f"{record.num_prompt_tokens}+{record.num_completion_tokens} tokens")
    if record.is_client_gone:
        words.append("client gone")
    elif record.error is not None:
        words.append(record.error.kind)
    return " ".join(words)


def facts_of(record: CallRecord) -> dict[str, Any]:
    """The facts of the line. Durations in milliseconds; None = not known."""
    requests = record.requests
    firsts = [request.first_token_s for request in requests if request.first_token_s is not None]
    queues = [request.queue_s for request in requests if request.queue_s is not None]
    gaps = [gap for request in requests for gap in request.gaps_s()]
    return {
        "id": record.call_id,
        "time": record.began_s,
        "api": record.api,
        "path": record.path,
        "caller": record.caller,
        "model": record.model,
        "adapter": record.adapter,
        "outcome": str(record.outcome),
        "status": record.status,
        "error": None if record.error is None else record.error.kind,
        "param": None if record.error is None else _parameter(record.error),
        "requests": len(requests),
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "stored_tokens": record.num_stored_tokens,
        "completion_tokens": record.num_completion_tokens,
        "draft_tokens": sum(request.num_draft_tokens for request in requests),
        "accepted_tokens": sum(request.num_accepted_tokens for request in requests),
        "preemptions": sum(request.num_preemptions for request in requests),
        "queue_ms": _ms(max(queues, default=None)),
        "first_token_ms": _ms(min(firsts, default=None)),
        "inter_token_ms": _ms(sum(gaps) / len(gaps) if gaps else None),
        "inter_token_max_ms": _ms(max(gaps, default=None)),
        "total_ms": _ms(record.end_s - record.begin_s),
    }


def _parameter(error: ServerError) -> str | None:
    """The parameter of an error, without the path inside it, which may hold names that the client made up."""
    if error.param is None or not error.names_parameter:
        return None
    found = _PARAMETER.match(error.param)
    return found[0] if found else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _sentence(facts: dict[str, Any]) -> str:
    """`name=value` for all that is not zero, quoted as JSON where a value could be read as several words."""
    words = []
    for name, value in facts.items():
        if value in (None, "", 0) or name == "time":
            continue
        is_plain = isinstance(value, (int, float)) or (isinstance(value, str) and value.isascii() and value.isalnum())
        words.append(f"{name}={value if is_plain else _quoted(value)}")
    return " ".join(words)


def _quoted(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    is_word = isinstance(value, str) and not set(value) & set(' "\\=\x7f') and value.isprintable()
    return str(value) if is_word else text
