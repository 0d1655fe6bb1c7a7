"""Bounds on the source of grammars, and on how many are compiled at once.

Does: refuse sources that would take long to compile, whatever llguidance's own limits say; tell which are to be tried first
(`trial`); let those and large ones in one at a time.
Does not: compile. Called by the compiler, on the thread that compiles.

llguidance counts most of its work, and stops. These bounds are for what it does not count: regular expressions that it
builds first, what several of them have in common, and the states of `multipleOf`. Their time and memory grow with the
square of how many parts may be left out.
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
MAX_MULTIPLE = 20_000  # the least common multiple of a schema's `multipleOf`: as many states are computed at once
LARGE_CHARS = 4_096  # smaller sources compile in a fraction of a second, or are refused in it
MAX_WAITING = 12  # such grammars that wait for another
MANY_REPEATS = 100  # in all regular expressions of a grammar: with less, one compiles in a fraction of a second

LEXER_STATES = 50_000  # 1 to 2 kB each, kept with the compiled grammar
# That the parser keeps for one mask. With an ambiguous grammar they take up to 0.1 s; twice as many take six times as long.
MASK_ITEMS = 10_000

_EMBEDDED = re.compile(r"%json\s*")  # before a schema in a Lark grammar
_PATTERNS = frozenset({"pattern", "whitespace_pattern"})
_REPEAT = re.compile(r"[*+?{]|\|(?=[|)])|\((?=[|)])")  # also what may be empty, as in (a|)
_DECODER = json.JSONDecoder()


class Lanes:
    """The turns of those that compile grammars. Usable from any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(1 + MAX_WAITING)

    @contextmanager
    def enter(self, grammar: Grammar) -> Iterator[None]:
        """At once for a small grammar; a costly one waits for those before it. Raises: Overloaded if too many wait."""
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
    """Raises: InvalidParameter (param: the grammar's) for a source that would take too much to compile."""
    kind = grammar.kind
    most = MAX_REGEX_CHARS if kind == "regex" else MAX_LARK_CHARS if kind == "lark" else MAX_SOURCE_CHARS
    if kind == "lark" and grammar.covers_tool_calls and not grammar.frame:
        most = MAX_SOURCE_CHARS  # made of the tools' schemas, not by the client
    _check(grammar.param, f"a {kind} grammar must have at most {most} characters", len(grammar.source), most)
    most = MAX_SOURCE_CHARS
    _check(grammar.param, f"a grammar and its tools must have at most {most} characters", num_chars(grammar), most)
    _check_schemas(grammar.param, list(_schemas(grammar)))


def needs_trial(grammar: Grammar) -> bool:
    """True if a grammar may cost far more than its length suggests.

    Grammars that clients write in Lark may: terminals multiply, and one may be what others have in common. So may grammars
    of tool calls, where a text's pattern meets its length and the mark at its end.
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
    """About how many parts of a regular expression may be left out, or come again."""
    return sum(1 for _ in _REPEAT.finditer(expression))


def num_chars(grammar: Grammar) -> int:
    """The number of characters to compile."""
    return len(grammar.source) + len(grammar.frame)


def _schemas(grammar: Grammar) -> Iterator[Any]:
    """Every JSON schema in the grammar; other texts are left to the compiler, which refuses them."""
    texts = [(grammar.frame, begin.end()) for begin in _EMBEDDED.finditer(grammar.frame)]
    if grammar.kind == "json_schema":
        texts.append((grammar.source, 0))
    elif grammar.kind == "lark":
        texts.extend((grammar.source, begin.end()) for begin in _EMBEDDED.finditer(grammar.source))
    for text, begin in texts:
        with suppress(ValueError, RecursionError):
            yield _DECODER.raw_decode(text, begin)[0]


def _check_schemas(param: str, schemas: list[Any]) -> None:
    """Raises: InvalidParameter if their patterns or their `multipleOf` would take too much."""
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
    """The regular expressions of schemas."""
    for name, value in _members(schemas):
        if name in _PATTERNS and isinstance(value, str):
            yield value
        elif name == "patternProperties" and isinstance(value, dict):
            yield from value


def _members(schemas: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Every member of every object, at any depth, but for values that `enum` lists: those are not schemas."""
    waiting = [*schemas]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend(value for name, value in part.items() if name != "enum" or not isinstance(value, list))
            yield from part.items()


def _num_states(number: float) -> int:
    """The number without its power of ten: the count of states that tell whether digits are a multiple of it."""
    if isinstance(number, float) and not math.isfinite(number):
        return 1  # no number of JSON: the compiler says so
    return max(int("".join(map(str, Decimal(str(number)).normalize().as_tuple().digits))), 1)


def _check(param: str, what: str, number: int, most: int) -> None:
    if number > most:
        shown = number if number < 10**20 else f"more than {10**20}"
        raise InvalidParameter(f"{param}: {what}, got {shown}", param=param)
