"""Compiles a request's output grammar into a TokenMasker, through llguidance, and caches the results.

llguidance counts most of its work, and stops. Bounds on sources, and on how many are compiled at once, are for the rest:
regular expressions that it builds first, their intersections, and the states of `multipleOf`. The service calls
`compile`, on any thread; the maskers are used on the engine thread only.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from copy import copy
from decimal import Decimal
from functools import cache
from typing import Any

from dragoman.errors import CATCH_PANICS, InvalidParameter, Overloaded, Panicked, ServerError, UnsupportedFeature
from dragoman.grammar.gbnf import RULE, gbnf_to_lark
from dragoman.grammar.masker import GrammarMasker, MaskBudget, Spelling, Vocabulary, explained
from dragoman.grammar.trial import MAX_BYTES, MAX_CPU_S, TooCostly, check_cost
from dragoman.schemas.enforceable import enforceable, with_settings
from dragoman.schemas.places import Place, innermost_fault
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import Grammar, TokenMasker

_MAX_CACHED = 128  # compiled grammars; one takes some 10 KB,
_MAX_CACHED_CHARS = 1_048_576  # but up to 200 bytes for a character of its source
_LEADS_OUT = re.compile(r'"\$\w*[rR]ef"\s*:\s*"(?!#/(?:\$defs|definitions)/)')  # of a part that is checked by itself

logger = logging.getLogger("dragoman.grammar")

OUTPUT = "@output"  # the place of the grammar in its frame
_RULE = "client_output"  # its name in Lark
_START = re.compile(r"^start:", re.MULTILINE)


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Keep it, as building the vocabulary's trie takes a moment.

    `max_mask_s`: processor seconds for following one request's grammar. Raises: UnsupportedFeature.
    """

    def __init__(self, vocabulary: Vocabulary, max_mask_s: float = float("inf")) -> None:
        try:
            self._llguidance = importlib.import_module("llguidance")
        except ImportError as error:
            raise UnsupportedFeature(
                "response_format: grammars need the package llguidance, which is not installed", param="response_format"
            ) from error
        try:
            with CATCH_PANICS:
                facts = self._llguidance.TokenizerWrapper(_TokenizerFacts(vocabulary))
                eos_ids = [vocabulary.eos_id, *sorted(vocabulary.eos_ids - {vocabulary.eos_id})]
                self._tokenizer = self._llguidance.LLTokenizer(facts, eos_token=eos_ids)
        except (Panicked, ValueError) as error:
            problem = f"response_format: grammars are not possible with the model's vocabulary: {error}"
            raise UnsupportedFeature(problem, param="response_format") from error
        self._vocabulary = vocabulary
        self._spelling = Spelling(vocabulary.encode or self._tokenizer.greedy_tokenize)
        self._limits = self._llguidance.LLParserLimits(max_lexer_states=LEXER_STATES, step_max_items=MASK_ITEMS)
        self._max_mask_s = max_mask_s
        self._lanes = Lanes()
        # Results, least recently used first: a matcher, or the error, as finding it takes long.
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()
        self._num_chars = 0  # of their sources
        self._coming: dict[Grammar, threading.Event] = {}  # grammars that a thread compiles now
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> TokenMasker:
        """The grammar's start state, to fork and advance. Raises: InvalidParameter; Overloaded if too many wait."""
        while True:
            with self._lock:
                known = self._compiled.get(grammar)
                if known is not None:
                    self._compiled.move_to_end(grammar)
                    return self._masker(known, grammar)
                others = self._coming.get(grammar)
                if others is None:
                    ended = self._coming[grammar] = threading.Event()
                    break
            others.wait()  # many callers begin with one schema: only one compiles it
        try:
            outcome = self._outcome(grammar)  # outside the lock, so that small grammars do not wait for large ones
            with self._lock:
                self._keep(grammar, outcome)
                return self._masker(outcome, grammar)
        finally:
            del self._coming[grammar]
            ended.set()

    def _outcome(self, grammar: Grammar) -> Any:
        try:
            check_source(grammar)
            with self._lanes.enter(grammar):
                return self._build(grammar)
        except InvalidParameter as error:
            return copy(error)  # without its traceback and the objects there

    def _masker(self, outcome: Any, grammar: Grammar) -> GrammarMasker:
        if isinstance(outcome, InvalidParameter):
            reason = outcome.message.removeprefix(str(outcome.param))
            raise InvalidParameter(f"{grammar.param}{reason}", param=grammar.param)
        budget = MaskBudget(self._max_mask_s, param=grammar.param)
        return GrammarMasker(outcome.deep_copy(), self._vocabulary, self._spelling, budget)

    def _keep(self, grammar: Grammar, outcome: Any) -> None:
        self._num_chars += num_chars(grammar)
        self._compiled[grammar] = outcome
        while len(self._compiled) > _MAX_CACHED or self._num_chars > _MAX_CACHED_CHARS:
            forgotten, _ = self._compiled.popitem(last=False)
            self._num_chars -= num_chars(forgotten)

    def _build(self, grammar: Grammar) -> Any:
        try:
            with CATCH_PANICS:
                source = llguidance_source(grammar)
                if needs_trial(grammar):
                    _try(source, grammar.param)
                matcher = self._made(source)
                reason = matcher.get_error()
        except ServerError:
            raise
        except ValueError as error:  # also malformed text, such as half a surrogate pair
            reason = str(error)
        except Exception as error:  # a foreign compiler: any error is the request's fault
            logger.warning("a %s grammar could not be compiled", grammar.kind, exc_info=error)
            reason = str(error) or type(error).__name__
        if not reason:
            return matcher
        kind, where = "GBNF" if is_gbnf(grammar) else grammar.kind, ""
        if inner := self._inner_fault(grammar):
            place, reason = inner
            where = f"at {place}: "
        message = f"{grammar.param}: the {kind} grammar does not compile: {where}{explained(reason)}"
        raise InvalidParameter(message, param=grammar.param)

    def _made(self, source: str) -> Any:
        matcher = self._llguidance.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        matcher.compute_bitmask()  # some grammars prove too complex at their first use
        return matcher

    def _inner_fault(self, grammar: Grammar) -> tuple[Place, str] | None:
        """The wrong part of a schema with the reason; None for a large schema, or if the search takes long."""
        if grammar.kind != "json_schema" or num_chars(grammar) > LARGE_CHARS or needs_trial(grammar):
            return None
        if _LEADS_OUT.search(grammar.source):
            return None
        try:
            with CATCH_PANICS:
                return innermost_fault(json.loads(grammar.source), self._reason)
        except (ValueError, TypeError, AttributeError, RecursionError, Panicked):  # not a schema
            return None

    def _reason(self, schema: Any) -> str:
        return str(self._made(llguidance_source(Grammar("json_schema", json.dumps(schema)))).get_error())


def compiler_for(
    tokenizer: HfTokenizer, turn_end_ids: frozenset[int] = frozenset(), max_mask_s: float = float("inf")
) -> Callable[[Grammar], TokenMasker]:
    """Compiles grammars; builds the vocabulary's tables for the first one, since most servers never get any.

    The model may have more or fewer logits than the tokenizer has tokens. `turn_end_ids` end an output like the
    tokenizer's end-of-sequence tokens. Raises: InvalidParameter, UnsupportedFeature.
    """

    @cache  # two threads may make two compilers; one is dropped, which is harmless
    def compiler() -> GrammarCompiler:
        return GrammarCompiler(_vocabulary(tokenizer, turn_end_ids), max_mask_s)

    def compiled(grammar: Grammar) -> TokenMasker:
        return compiler().compile(grammar)

    return compiled


def _vocabulary(tokenizer: HfTokenizer, turn_end_ids: frozenset[int]) -> Vocabulary:
    ids, eos_ids, eos_token_id = range(tokenizer.vocab_size), sorted(tokenizer.eos_token_ids), tokenizer.eos_token_id
    return Vocabulary(
        token_bytes=[tokenizer.token_bytes(token_id) for token_id in ids],
        special_ids=frozenset(token_id for token_id in ids if tokenizer.is_special(token_id)),
        eos_id=eos_token_id if eos_token_id in eos_ids and eos_token_id is not None else (eos_ids or [0])[0],
        extra_eos_ids=frozenset(eos_ids) | turn_end_ids,
        encode=tokenizer.encode_continuation,
    )


def _try(source: str, param: str) -> None:
    try:
        check_cost(source)
    except TooCostly as error:
        message = f"{param}: the grammar takes more than {MAX_CPU_S} s or {MAX_BYTES >> 20} MiB to compile"
        raise InvalidParameter(f"{message}, write a simpler one", param=param) from error
    except TimeoutError as error:
        raise Overloaded("the trial of the grammar took too long, try again later") from error
    except OSError as error:
        raise Overloaded(
            f"the process that tries the grammar cannot be started ({error.strerror}), try again later"
        ) from error


def is_gbnf(grammar: Grammar) -> bool:
    """True for llama.cpp's notation, which clients also send in place of Lark."""
    return grammar.kind == "lark" and RULE.search(grammar.source) is not None


def llguidance_source(grammar: Grammar) -> str:
    """The grammar in llguidance's form: JSON of two grammars, the frame and its content. Raises: ValueError."""
    matcher_class = importlib.import_module("llguidance").LLMatcher
    match grammar.kind:
        case "json_schema":
            # Parsed and written again, as llguidance pastes the text unchanged into a larger JSON document.
            schema = json.dumps(_enforceable(_parse_json(grammar.source)))
            inner = matcher_class.grammar_from_json_schema(schema)
        case "json_object":
            inner = matcher_class.grammar_from_json_schema(json.dumps(with_settings({"type": "object"})))
        case "regex":
            inner = matcher_class.grammar_from_regex(grammar.source)
        case "lark":
            inner = _lark(gbnf_to_lark(grammar.source) if is_gbnf(grammar) else grammar.source)
        case "choice":
            inner = _lark(_choice_rule(grammar.source))
    return _without_forcing(inner, grammar.frame)


def lark_of(grammar: Grammar, end_ids: Set[int] = frozenset()) -> str:
    """The grammar with its frame in llguidance's Lark, for engines with their own compilers.

    `end_ids`: tokens allowed at its end. Raises: InvalidParameter.
    """
    frame, output = json.loads(llguidance_source(grammar))["grammars"]
    schema = output.get("json_schema")
    body = f"%lark {{\n{output['lark_grammar']}\n}}" if schema is None else f"%json {json.dumps(schema)}"
    text = frame["lark_grammar"].replace(OUTPUT, _RULE)
    if end_ids:
        ends = " | ".join(f"<[{token}]>" for token in sorted(end_ids))
        text = _START.sub(f"start: framed ({ends})?\nframed:", text, count=1)
    return f"{text}\n{_RULE}: {body}\n"


class _TokenizerFacts:
    """A vocabulary in llguidance's form.

    llguidance reads only some kinds of tokenizer.json, and treats every added token as special, even text such as
    <tool_call>.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_id
        self.bos_token_id = None
        self.tokens = list(vocabulary.token_bytes)
        self.special_token_ids = sorted(vocabulary.special_ids | vocabulary.eos_ids)

    def __call__(self, text: bytes) -> list[int]:
        """No tokens: llguidance tokenises only forced text, and `_without_forcing` leaves every choice to the model."""
        return []


def _lark(source: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": source}]})


def _without_forcing(source: str, frame: str) -> str:
    """The grammar within another that allows every tokenisation of a forced text, not only llguidance's own choice."""
    grammars = json.loads(source)["grammars"]
    grammars[0]["name"] = "output"
    outer = {"lark_grammar": '%llguidance {"no_forcing": true}\n' + (frame or f"start: {OUTPUT}")}
    return json.dumps({"grammars": [outer, *grammars]})


def _enforceable(schema: Any) -> Any:
    with suppress(AttributeError, TypeError, ValueError, RecursionError):
        schema = enforceable(schema).schema
    return with_settings(schema) if isinstance(schema, dict) else schema


def _parse_json(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _choice_rule(source: str) -> str:
    choices = _parse_json(source)
    if not (isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices)):
        raise ValueError("must be a JSON array of one or more strings")
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


# --- bounds -----------------------------------------------------------------------------------------------------------

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
