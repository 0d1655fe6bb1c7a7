"""Bounds on the source of grammars, and on how many are compiled at once.

llguidance counts most of its work, and stops. These bounds are for the rest: regular expressions that it builds first,
their intersections, and the states of `multipleOf`.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

from dragoman.errors import InvalidParameter, Overloaded
from dragoman.types import Grammar

MAX_REGEX_CHARS = 16_384  # of a regular expression, and of all of a schema's together
MAX_LARK_CHARS = 32_768
MAX_SOURCE_CHARS = 262_144  # of a schema, a list of choices, or a grammar of tool calls
MAX_MULTIPLE = 20_000  # the least common multiple of a schema's `multipleOf`, which is the number of states
LARGE_CHARS = 4_096  # smaller sources compile or fail in a fraction of a second
MAX_WAITING = 12  # waiting grammars of this kind
MANY_REPEATS = 100  # in all regular expressions of a grammar: with fewer, it compiles in a fraction of a second

LEXER_STATES = 50_000  # 1 to 2 kB each, kept with the compiled grammar
# That the parser keeps for one mask. An ambiguous grammar takes up to 0.1 s with them, and six times that with twice as
# many.
MASK_ITEMS = 10_000

_EMBEDDED = re.compile(r"%json\s*")  # before a schema in a Lark grammar
_PATTERNS = frozenset({"pattern", "whitespace_pattern"})
_REPEAT = re.compile(r"[*+?{]|\|(?=[|)])|\((?=[|)])")  # also possibly empty parts, as in (a|)
_DECODER = json.JSONDecoder()


class Lanes:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(1 + MAX_WAITING)

    @contextmanager
    def enter(self, grammar: Grammar) -> Iterator[None]:
        """Enter at once with a small grammar; wait with a costly one. Raises: Overloaded if too many wait."""
        if num_chars(grammar) <= LARGE_CHARS and not needs_trial(grammar):
            yield
            return
        if not self._places.acquire(blocking=False):
            raise Overloaded(f"{1 + MAX_WAITING} large grammars are being compiled already, try again later")
        try:
            with self._turn:
                yield
        finally:
            self._places.release()


def check_source(grammar: Grammar) -> None:
    """Raises: InvalidParameter (param: the grammar's) for a source that is too costly to compile."""
    kind = grammar.kind
    most = MAX_REGEX_CHARS if kind == "regex" else MAX_LARK_CHARS if kind == "lark" else MAX_SOURCE_CHARS
    if kind == "lark" and grammar.covers_tool_calls and not grammar.frame:
        most = MAX_SOURCE_CHARS  # made of the tools' schemas, not by the client
    _check(grammar.param, f"a {kind} grammar must have at most {most} characters", len(grammar.source), most)
    most = MAX_SOURCE_CHARS
    _check(grammar.param, f"a grammar and its tools must have at most {most} characters", num_chars(grammar), most)
    _check_schemas(grammar.param, list(_schemas(grammar)))


def needs_trial(grammar: Grammar) -> bool:
    """True if a grammar may cost far more than its length: in clients' Lark terminals multiply and intersect, in
    grammars of tool calls a text's pattern, length and end mark.
    """
    if grammar.kind == "lark" and not grammar.covers_tool_calls:
        return True
    if grammar.kind == "regex" and _num_repeats(grammar.source) > MANY_REPEATS:
        return True
    patterns = list(_patterns(_schemas(grammar)))
    return sum(map(_num_repeats, patterns)) > MANY_REPEATS or bool(
        patterns and (grammar.frame or grammar.kind == "lark")
    )


def _num_repeats(expression: str) -> int:
    return sum(1 for _ in _REPEAT.finditer(expression))


def num_chars(grammar: Grammar) -> int:
    return len(grammar.source) + len(grammar.frame)


def _schemas(grammar: Grammar) -> Iterator[Any]:
    texts = [(grammar.frame, begin.end()) for begin in _EMBEDDED.finditer(grammar.frame)]
    if grammar.kind == "json_schema":
        texts.append((grammar.source, 0))
    elif grammar.kind == "lark":
        texts.extend((grammar.source, begin.end()) for begin in _EMBEDDED.finditer(grammar.source))
    for text, begin in texts:
        with suppress(ValueError, RecursionError):
            yield _DECODER.raw_decode(text, begin)[0]


def _check_schemas(param: str, schemas: list[Any]) -> None:
    multiple = 1
    for name, value in _members(schemas):
        if name == "multipleOf" and isinstance(value, int | float) and not isinstance(value, bool):
            multiple = math.lcm(multiple, _num_states(value))
            what = (
                f"the numbers of multipleOf must have a common multiple of at most {MAX_MULTIPLE}, powers of ten aside"
            )
            _check(param, what, multiple, MAX_MULTIPLE)
    most, length = MAX_REGEX_CHARS, sum(map(len, _patterns(schemas)))
    _check(param, f"the patterns of schemas must have at most {most} characters together", length, most)


def _patterns(schemas: Iterable[Any]) -> Iterator[str]:
    for name, value in _members(schemas):
        if name in _PATTERNS and isinstance(value, str):
            yield value
        elif name == "patternProperties" and isinstance(value, dict):
            yield from value


def _members(schemas: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Every member of every object, at any depth, except values in `enum`, which are not schemas."""
    waiting = [*schemas]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend(value for name, value in part.items() if name != "enum" or not isinstance(value, list))
            yield from part.items()


def _num_states(number: float) -> int:
    """The number without its power of ten: the count of states that recognise its multiples."""
    if isinstance(number, float) and not math.isfinite(number):
        return 1  # not a number of JSON: the compiler reports it
    return max(int("".join(map(str, Decimal(str(number)).normalize().as_tuple().digits))), 1)


def _check(param: str, what: str, number: int, most: int) -> None:
    if number > most:
        shown = number if number < 10**20 else f"more than {10**20}"
        raise InvalidParameter(f"{param}: {what}, got {shown}", param=param)
