"""The books of a soak: what the clients counted, against the server's log and its metrics.

Does: keep a line for each request that was sent, and tell every place where the log or the metrics say something else. Does
not: send or read anything. Nothing here is approximate: one call too many or too few is a mismatch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.client import End, Seen, cancelling, named
from benchmarks.soak.request import UNREAD, Request, Tokens

Line = Mapping[str, Any]
"""A line of the request log, as JSON."""

Sample = tuple[str, Mapping[str, str], float]
"""Of `/metrics`: name, labels, value."""

IMAGE_MEMORY = "dragoman_image_memory_bytes"
_HELD = frozenset(
    {
        "dragoman_requests_running",
        "dragoman_requests_waiting",
        "dragoman_kv_blocks_used",
        "dragoman_body_memory_bytes",
        IMAGE_MEMORY,
    }
)
"""The metrics that are 0 where there are no calls."""

MAX_SHOWN = 5  # of mismatches of one kind

TOKENS = ("prompt", "cached", "completion")
"""Which tokens a line of the log counts."""

_LABELS_ELSE = ("api", "model")
_LABELS = {"dragoman_requests_total": (*_LABELS_ELSE, "outcome"), "dragoman_errors_total": ("api",)}
"""By which labels a metric is compared with the log; summed over its others."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that was sent, and what its client saw.

    `is_call`: there has to be a line for it, None = there may be. `is_whole`: all of it was sent. `tokens`: that its answer
    told.
    """

    kind: str
    path: str
    end: End
    status: int
    allowed: frozenset[int]
    is_call: bool | None
    is_whole: bool
    may_be_cut: bool
    tokens: Tokens | None


@dataclass
class Books:
    """All requests by their ids."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def note(self, call_id: str, request: Request, seen: Seen) -> None:
        """Write down how a request went."""
        tokens = None
        if request.tokens is not None and seen.end is End.ANSWERED and seen.status == 200:
            tokens = request.tokens(seen.body)
        self.entries[call_id] = Entry(
            request.kind,
            request.path,
            seen.end,
            seen.status,
            request.allowed,
            _is_call(request, seen),
            request.sent_bytes is None,
            request.may_be_cut or request.raw is not None,
            tokens,
        )
        if seen.cancel is not None:
            self.note(f"{call_id}-cancel", cancelling(call_id), seen.cancel)
        for index, (behind, one) in enumerate(zip(request.behind, seen.behind, strict=True), 1):
            self.note(named(call_id, index), behind, one)

    @property
    def num_calls(self) -> int:
        """Requests that have to have a line in the log."""
        return sum(entry.is_call is True for entry in self.entries.values())

    def outcomes(self) -> dict[str, dict[str, int]]:
        """How many requests of each kind ended how: `left`, `broken`, `late`, or a status."""
        counts: dict[str, Counter[str]] = {}
        for entry in self.entries.values():
            end = str(entry.status) if entry.end is End.ANSWERED else str(entry.end)
            counts.setdefault(entry.kind, Counter())[end] += 1
        return {kind: dict(sorted(count.items())) for kind, count in sorted(counts.items())}


def client_mismatches(books: Books) -> dict[str, list[str]]:
    """What clients saw that is wrong by itself, by check."""
    late, odd = [], []
    for call_id, entry in books.entries.items():
        is_broken = entry.end is End.BROKEN and not entry.may_be_cut
        if entry.end is End.LATE or is_broken:
            late.append(f"{_name(call_id, entry)}: {entry.end}, status {entry.status}")
        if entry.status and entry.status not in entry.allowed:
            allowed = ", ".join(map(str, sorted(entry.allowed)))
            odd.append(f"{_name(call_id, entry)}: status {entry.status}, not one of {allowed}")
    return {"every request is answered": late, "every status is one of those that are right": odd}


def log_mismatches(books: Books, lines: Iterable[Line]) -> dict[str, list[str]]:
    """Where the log says something else than the clients, by check."""
    calls = {call_id: entry for call_id, entry in books.entries.items() if entry.is_call is not False}
    found: dict[str, Line] = {}
    counting, statuses, outcomes, tokens = [], [], [], []
    per_path = Counter(entry.path for entry in calls.values() if entry.is_call)
    logged_per_path: Counter[str] = Counter()
    for line in lines:
        call_id = line["id"]
        logged_per_path[line["path"]] += 1
        entry = calls.get(call_id)
        if entry is None or call_id in found:
            counting.append(
                f"{call_id} on {line['path']}: {'a second line' if entry else 'a line for what is no call'}"
            )
            continue
        found[call_id] = line
        per_path[entry.path] += not entry.is_call
        if entry.end is End.ANSWERED and line["status"] != entry.status:
            statuses.append(f"{_name(call_id, entry)}: {entry.status} was answered, {line['status']} logged")
        wrong = _wrong_outcome(entry, line)
        if wrong:
            outcomes.append(f"{_name(call_id, entry)}: {wrong}")
        if entry.tokens is not None and not _agrees(entry.tokens, line):
            logged = (line["prompt_tokens"], line["completion_tokens"])
            tokens.append(f"{_name(call_id, entry)}: {tuple(entry.tokens)} tokens were told, {logged} logged")
    missing = [call_id for call_id, entry in calls.items() if entry.is_call and call_id not in found]
    counting += [f"{_name(call_id, calls[call_id])}: no line" for call_id in missing]
    counting += [
        f"{path}: {per_path[path]} calls were made, {logged_per_path[path]} logged"
        for path in sorted(per_path | logged_per_path)
        if per_path[path] != logged_per_path[path]
    ]
    return {
        "the log has one line for each call": counting,
        "the log's statuses are those of the answers": statuses,
        "the log's outcomes fit what clients saw": outcomes,
        "the log's tokens are those that answers tell": tokens,
    }


def _wrong_outcome(entry: Entry, line: Line) -> str:
    """What does not fit; "" = all does. A client that left, or was cut off, cannot know how far its call had come."""
    outcome, has_error = line["outcome"], line["error"] is not None
    if (outcome == "finished" and has_error) or (outcome in ("refused", "failed") and not has_error):
        return f"{outcome} with error {line['error']!r}"
    if not entry.is_whole and outcome != "refused":
        return f"not all of it was sent, and it is logged as {outcome}"
    if entry.end is not End.ANSWERED:
        return ""
    if outcome == "client_gone":
        return "the client read it all, and is logged as gone"
    if entry.status >= 300 and outcome == "finished":
        return f"{entry.status} is logged as finished"
    if (entry.status < 300 and outcome == "refused") or (entry.tokens is not None and outcome != "finished"):
        return f"{entry.status} with {'all' if entry.tokens else 'some'} of its answer is logged as {outcome}"
    return ""


def _agrees(told: Tokens, line: Line) -> bool:
    return told.completion == line["completion_tokens"] and told.prompt in (None, line["prompt_tokens"])


def metric_mismatches(lines: Iterable[Line], samples: Iterable[Sample]) -> dict[str, list[str]]:
    """Where `/metrics` says something else than the log, by check; counters of a server that has just been started."""
    logged: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        key = (line["api"], line["model"])
        logged["dragoman_requests_total", *key, line["outcome"]] += 1
        logged["dragoman_request_seconds_count", *key] += 1
        for kind in TOKENS:
            logged[f"dragoman_{kind}_tokens_of_requests_total", *key] += line[f"{kind}_tokens"]
        if line["error"] is not None:
            logged["dragoman_errors_total", line["api"]] += 1
    names = {key[0] for key in logged} | {"dragoman_requests_total", "dragoman_errors_total"}
    counted: Counter[tuple[str, ...]] = Counter()
    for name, labels, value in samples:
        if name in names:
            told = (labels[label] for label in _LABELS.get(name, _LABELS_ELSE))
            counted[(name, *told)] += int(value)
    wrong = [
        f"{key[0]}{{{', '.join(key[1:])}}}: {counted[key]} in /metrics, {logged[key]} in the log"
        for key in sorted(logged.keys() | counted.keys())
        if counted[key] != logged[key]
    ]
    return {"/metrics adds up with the log": wrong}


def rest_mismatches(samples: Iterable[Sample], running: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What a server without calls still holds."""
    held = [
        f"{name} of {labels.get('model', 'all')} is {value:g}"
        for name, labels, value in samples
        if name in _HELD and value
    ]
    listed = [f"{call['id']} on {call['path']} is listed as {call['state']}" for call in running]
    return {"nothing is held in the end": held + listed}


def shown(check: str, mismatches: list[str]) -> Iterator[str]:
    """The lines that tell how a check went."""
    yield f"{'ok ' if not mismatches else 'NOT'} {check}"
    for text in mismatches[:MAX_SHOWN]:
        yield f"      {text}"
    if len(mismatches) > MAX_SHOWN:
        yield f"      and {len(mismatches) - MAX_SHOWN} more"


def _is_call(request: Request, seen: Seen) -> bool | None:
    if request.is_call is None and seen.end is End.ANSWERED:
        return seen.status not in UNREAD
    return request.is_call


def _name(call_id: str, entry: Entry) -> str:
    return f"{call_id} ({entry.kind}) on {entry.path}"
