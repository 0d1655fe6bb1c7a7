"""The Jinja in which chat templates run: sandboxed, with Hugging Face's extras, and bounded.

Does: compile a template so that every loop round and macro call is counted, and render it within limits. What an
operator, a method or a filter would make is estimated from its operands, and refused before it takes any memory.
Does not: know messages or roles (`chat_template` does). The sandbox keeps a model's template away from the process; the
limits end one that runs away, they do not price every expression an ill-meaning author could write.
Source of the extras: the "Chat templates" pages of the Hugging Face transformers documentation.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from json.encoder import encode_basestring_ascii
from types import BuiltinMethodType, GeneratorType, MappingProxyType, MethodType
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

_TICK = "dragoman_tick"
_CONCATENATE = "dragoman_concatenate"
_METER = "dragoman_meter"

_OF_JINJA = frozenset(["_loop_vars", "_block_vars"])  # arguments of every call in a loop or block; Jinja drops them
_ITEM = 64  # characters that one item of a list counts for: what a short text and its place in the list take in memory
_FLOAT = 350  # characters of the longest float that a format writes without a width
_PIECE = 65536  # characters
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPACES = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
_PERCENT_NUMBERS = re.compile(r"(?<![0-9])([0-9]++)(?=(?:\.[0-9*]*+)?[hlL]?[diouxXeEfFgGcrsab%])")

Estimator = Callable[..., int]
"""From what a method or filter is called with, an upper bound for the size of what it makes."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may use. Rounds are loop rounds and macro calls; the size bounds the rendered text and
    every value that an operator, method or filter makes, in characters; an item of a list counts for 64.

    The numbers are far beyond any real conversation and still stop a runaway template in seconds.
    """

    max_rounds: int = 200_000
    max_size: int = 20_000_000
    max_duration_s: float = 5.0


class TemplateRejection(Exception):
    """The template called `raise_exception`: it does not take these messages."""


class TemplateLimit(Exception):
    """The rendering exceeded one of its limits."""


class CompiledTemplate:
    """One template, ready to render; every rendering is independent, on any thread.

    Raises: jinja2.TemplateSyntaxError.
    """

    def __init__(self, source: str, limits: RenderLimits, now: Callable[[], datetime]) -> None:
        environment = _Environment(limits)
        environment.globals["strftime_now"] = lambda template: now().strftime(environment.short(template))
        self._template = environment.from_string(_Metering().visit(environment.parse(source)))
        # Each rendering copies them, and copying Jinja's chain of maps is slow.
        self._template.globals = dict(self._template.globals)
        self._limits = limits

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises: TemplateRejection, TemplateLimit, or whatever the template's own code raises."""
        limits, size = self._limits, 0
        pieces: list[str] = []
        for piece in self._template.generate({**variables, _METER: _Meter(limits)}):
            size += len(piece)
            if size > limits.max_size:
                raise _too_long(limits)
            pieces.append(piece)
        return "".join(pieces)


class _Meter:
    """Counts what one rendering uses."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._num_rounds = 0
        self._num_printed = 0
        self._deadline = time.monotonic() + limits.max_duration_s

    def tick(self) -> None:
        """Count one loop round or macro call."""
        self._num_rounds += 1
        if self._num_rounds > self._limits.max_rounds:
            raise TemplateLimit(f"it ran more than {self._limits.max_rounds} loop rounds")
        if self._num_rounds % 256 == 0 and time.monotonic() > self._deadline:
            raise TemplateLimit(f"it ran longer than {self._limits.max_duration_s:g} s")

    def add_printed(self, text: str) -> None:
        """Count what the template prints, which in a macro or a block is kept before it is rendered, if it ever is."""
        self._num_printed += len(text)
        if self._num_printed > self._limits.max_size:
            raise _too_long(self._limits)


def _too_long(limits: RenderLimits) -> TemplateLimit:
    return TemplateLimit(f"it rendered more than {limits.max_size} characters")


class _Environment(ImmutableSandboxedEnvironment):
    """Hugging Face's settings, on top of Jinja's sandbox."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, limits: RenderLimits) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self._limits = limits
        self._methods = {**_METHODS, "format": self._format_size, "format_map": self._format_map_size}
        self.filters["tojson"] = _tojson
        self.filters = {name: self._bounded_filter(name, function) for name, function in self.filters.items()}
        self.filters |= {_TICK: _tick, _CONCATENATE: self._concatenate}
        self.finalize = self._printed
        self.concat = self._join  # type: ignore[method-assign]  # what macros and blocks put their text together with
        self.globals["raise_exception"] = _raise_exception
        del self.globals["lipsum"]  # placeholder text of any size: no prompt has a use for it

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse to build huge values, which would take all memory within one expression."""
        self._refuse_huge(_result_size(operator, left, right), left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """The same for what methods build. The names are Jinja's: they leave all others to the keyword arguments."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        if isinstance(method, BuiltinMethodType | MethodType) and method.__name__ in __self._methods:
            args = tuple(map(_listed, args))
            owner, *operands = map(_as_text, (method.__self__, *args))
            options = {name: value for name, value in kwargs.items() if name not in _OF_JINJA}
            size = __self._methods[method.__name__](owner, *operands, **options)
            __self._refuse_huge(size, method.__self__, *args, *options.values())
        return super().call(__context, __obj, *args, **kwargs)

    def short(self, template: str) -> str:
        """The template of a date, unless the date could be huge: a date may take 256 times as long."""
        self._refuse_huge(256 * len(template))
        return template

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, refused where its result would be huge; what it makes one by one is counted as it comes."""
        estimate = _TEXT_FILTERS.get(name) or _OTHER_FILTERS.get(name)
        num_passed = int(hasattr(function, "jinja_pass_arg"))

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if estimate is not None:
                args = (*args[:num_passed], *map(_listed, args[num_passed:]))
                value, *operands = args[num_passed:]
                for operand in (*operands, *kwargs.values()):
                    self._refuse_huge(_written(operand))
                if name in _TEXT_FILTERS:
                    value = self._text(value)
                self._refuse_huge(estimate(value, *operands, **kwargs), value, *operands, *kwargs.values())
            result = function(*args, **kwargs)
            return self._bounded_items(result) if isinstance(result, Iterator) else result

        return bounded

    def _bounded_items(self, items: Iterator[Any]) -> Iterator[Any]:
        size = 0
        for item in items:
            size += _ITEM + _size(item)
            self._refuse_huge(size)
            yield item

    @jinja2.pass_context
    def _printed(self, context: jinja2.runtime.Context, value: Any) -> str:
        """What `{{ value }}` prints."""
        text = self._text(value)
        context[_METER].add_printed(text)
        return text

    def _text(self, value: Any) -> str:
        """The value as text. A list of few items may be a huge text, where the items are."""
        if isinstance(value, str):
            return value
        self._refuse_huge(_written(value))
        return str(value)

    def _join(self, pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        self._refuse_huge(sum(map(len, pieces)))
        return "".join(pieces)

    def _concatenate(self, values: list[Any]) -> str:
        """What `~` does, but not without bounds; Jinja lets sandboxes intercept all operators except this one."""
        return self._join([self._text(value) for value in values])

    def _format_size(self, text: str, *args: Any, **kwargs: Any) -> int:
        """Formats twice: only a formatter knows which values it writes, how often and how wide."""
        _BoundedFormatter(self, self._refuse_huge).vformat(text, args, kwargs)
        return len(text)

    def _format_map_size(self, text: str, values: Mapping[str, Any]) -> int:
        return self._format_size(text, **values)

    def _refuse_huge(self, size: int, *operands: Any) -> None:
        """Raise if that size is too much. Where an operand is marked as safe, the others are escaped: `"` to `&#34;`."""
        if any(isinstance(operand, Markup) for operand in operands) and not all(
            isinstance(operand, Markup) for operand in operands
        ):
            size *= 5
        if size > self._limits.max_size:
            raise TemplateLimit(f"it made a value of more than {self._limits.max_size} characters or items")


class _BoundedFormatter(SandboxedFormatter):
    """Jinja's formatter, refusing each field that would make the text huge before it is written."""

    def __init__(self, environment: jinja2.Environment, refuse_huge: Callable[[int], None]) -> None:
        super().__init__(environment)
        self._refuse_huge = refuse_huge
        self._size = 0

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """What `!r` makes of a value."""
        if conversion is not None:
            self._refuse_huge(_written([value]))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        """The value as wide as its format wants it."""
        self._size += _written(value) + _FLOAT + sum(map(int, re.findall(r"\d+", format_spec)))
        self._refuse_huge(self._size)
        return str(super().format_field(value, format_spec))


class _Metering(NodeTransformer):
    """Rewrites a template so that its loops, macros and concatenations are counted.

    It calls filters for that: unlike functions they need no permission from the sandbox, which costs more than they do.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A loop that counts its rounds."""
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        """A macro that counts its calls."""
        return self._counted(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """A concatenation of bounded size."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), _CONCATENATE).set_lineno(node.lineno)

    def _counted(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filter(nodes.Const(None), _TICK)).set_lineno(node.lineno))
        return node


def _filter(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)


@jinja2.pass_context
def _tick(context: jinja2.runtime.Context, _: None) -> None:
    context[_METER].tick()


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks an assistant's words for training, and renders what is inside."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        """The nodes between the tags, in a scope of their own: what is set inside is not seen after them."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


def _result_size(operator: str, left: Any, right: Any) -> int:
    """An upper bound for the size of the result, 0 where it cannot grow dangerously."""
    if operator == "+":
        return _size(left) + _size(right)
    if operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            return left.bit_length() + right.bit_length()
        return _size(left) * right if isinstance(right, int) else _size(right) * left if isinstance(left, int) else 0
    if operator == "%":
        return _percent_size(_as_text(left), right) if isinstance(left, str | bytes) else 0
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        return left.bit_length() * right
    return 0


def _size(value: Any) -> int:
    """What the value itself takes, without what its items refer to."""
    if isinstance(value, str | bytes):
        return len(value)
    return _ITEM * len(value) if isinstance(value, list | tuple) else 0


class _Shape(NamedTuple):
    """What a value written out takes at most."""

    size: int
    num_nodes: int
    depth: int


def _written(value: Any) -> int:
    """An upper bound for the value's length as text, as Python and JSON write it."""
    return len(value) if isinstance(value, str) else _shape(value).size


def _shape(value: Any, seen: dict[int, tuple[Any, _Shape]] | None = None) -> _Shape:
    """`seen` keeps what was visited: a list may hold the same value many times, over many levels."""
    if isinstance(value, str) and len(value) <= _PIECE:
        return _Shape(_quoted_size(value), 1, 0)
    seen = {} if seen is None else seen
    if id(value) not in seen:
        seen[id(value)] = (value, _new_shape(value, seen))
    return seen[id(value)][1]


def _new_shape(value: Any, seen: dict[int, tuple[Any, _Shape]]) -> _Shape:
    if isinstance(value, str):
        # Piece by piece: the whole, escaped, may be huge itself.
        return _Shape(sum(_quoted_size(value[i : i + _PIECE]) for i in range(0, len(value), _PIECE)), 1, 0)
    if isinstance(value, bytes):
        return _Shape(4 * len(value) + 16, 1, 0)
    if isinstance(value, int):
        return _Shape(value.bit_length() + 8, 1, 0)
    children = _children(value)
    if children is None:
        return _Shape(_ITEM, 1, 0)
    size, num_nodes, depth = 32, 1, 0
    for child in children:
        child_size, child_num_nodes, child_depth = _shape(child, seen)
        size += child_size + 4
        num_nodes += child_num_nodes
        depth = max(depth, child_depth + 1)
    return _Shape(size, num_nodes, depth)


def _quoted_size(text: str) -> int:
    """JSON's escapes are never shorter than Python's, except for single quotes."""
    return len(encode_basestring_ascii(text)) + text.count("'") + 16


def _children(value: Any) -> list[Any] | None:
    """What is inside the value and written with it, None if it is no container."""
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | type({}.items()) | type({}.keys()) | type({}.values())):
        return list(value)
    return None


def _listed(value: Any) -> Any:
    """A list in place of what can be read only once; what filters make one by one is bounded."""
    return list(value) if isinstance(value, GeneratorType) else value


def _as_text(value: Any) -> Any:
    """A text of the same length in place of bytes, so that one estimate serves both."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _count(text: str, characters: str) -> int:
    return sum(map(text.count, characters))


def _percent_size(text: str, values: Any) -> int:
    """Widths and precisions, and the values; a mapping's may be written several times."""
    num_times = 1
    if isinstance(values, Mapping):
        num_times = text.count("%")
        values = (values,)
    values = values if isinstance(values, tuple) else (values,)
    widths = sum(map(int, _PERCENT_NUMBERS.findall(text)))
    if "*" in text:
        widths += sum(abs(value) for value in values if isinstance(value, int))
    return len(text) + widths + num_times * sum(_written([value]) + _FLOAT for value in values)


def _padded_size(text: str, width: int = 80, *_: Any) -> int:
    return max(len(text), width)


def _untabbed_size(text: str, tabsize: int = 8) -> int:
    return len(text) + text.count("\t") * max(tabsize, 0)


def _replaced_size(text: str, old: Any, new: Any, count: int | None = -1) -> int:
    old, new = str(old), str(new)
    num_times = text.count(old)
    if count is not None and count >= 0:
        num_times = min(num_times, count)
    return len(text) + num_times * max(len(new) - len(old), 0)


def _joined_size(separator: Any, values: Any) -> int:
    if isinstance(values, str):
        return len(values) * (_ITEM + len(separator))
    children = _children(values) or []
    return sum(len(separator) + _written(_as_text(child)) for child in children)


def _join_filter_size(values: Any, d: Any = "", attribute: Any = None) -> int:
    return _joined_size(str(d), values)


def _indented_size(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> int:
    return _lines_size(text) + (_count(text, _LINE_ENDS) + 2) * (len(width) if isinstance(width, str) else width)


def _lines_size(text: str, keepends: bool = False) -> int:
    return len(text) + _ITEM * (_count(text, _LINE_ENDS) + 1)


def _split_size(text: str, sep: str | None = None, maxsplit: int = -1) -> int:
    if maxsplit == 0 or sep == "":
        return len(text)
    num_pieces = _count(text, _SPACES) if sep is None else text.count(sep)
    return len(text) + _ITEM * ((num_pieces if maxsplit < 0 else min(num_pieces, maxsplit)) + 1)


def _cased_size(text: str) -> int:
    """A letter beyond ASCII may become three."""
    return len(text) * (1 if text.isascii() else 3)


def _encoded_size(text: str, encoding: str = "utf-8", errors: str = "strict") -> int:
    """What an encoding lacks may be written by its name, in 100 characters."""
    return len(text) * (4 if errors in ("strict", "ignore", "replace") else 100)


def _translated_size(text: str, table: Any) -> int:
    values = table.values() if isinstance(table, Mapping) else table
    return len(text) * max((len(value) for value in values if isinstance(value, str)), default=1)


def _items_size(values: Any, *_: Any, **__: Any) -> int:
    return _ITEM * len(values) if hasattr(values, "__len__") else 0


def _batch_size(values: Any, linecount: int, fill_with: Any = None) -> int:
    return _items_size(values) + (0 if fill_with is None else _ITEM * linecount)


def _sum_size(values: Any, attribute: Any = None, start: Any = 0) -> int:
    """Lists can be summed, too."""
    return _shape(values).num_nodes * _ITEM if isinstance(start, list | tuple) else 0


def _rounded_size(value: Any, precision: int = 0, method: str = "common") -> int:
    return 4 * abs(precision)


def _json_size(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> int:
    shape = _shape(value)
    indentation = len(indent) if isinstance(indent, str) else max(indent or 0, 0)
    return shape.size + shape.num_nodes * (shape.depth * indentation + sum(map(len, separators or ())))


def _pretty_size(value: Any) -> int:
    """Values are indented as far as their keys are long."""
    shape = _shape(value)
    return shape.size * shape.num_nodes


def _times(factor: int) -> Estimator:
    return lambda text, *_, **__: factor * len(text)


_METHODS: Mapping[str, Estimator] = MappingProxyType(
    {
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded_size),
        **dict.fromkeys(("upper", "lower", "casefold", "swapcase", "title", "capitalize"), _cased_size),
        **dict.fromkeys(("split", "rsplit"), _split_size),
        "expandtabs": _untabbed_size,
        "replace": _replaced_size,
        "join": _joined_size,
        "splitlines": _lines_size,
        "encode": _encoded_size,
        "translate": _translated_size,
        "maketrans": lambda _, keys, *__: 2 * _items_size(keys),
        "fromkeys": lambda _, keys, *__: 2 * _items_size(keys),
        "escape": lambda _, value: 5 * _written(value),  # of what is marked as safe
        "hex": lambda value, *_: 3 * len(value) if isinstance(value, str) else 0,
        "to_bytes": lambda _, length=1, *__, **___: length,
    }
)
"""By a method's name, of whichever type: those that can make far more than they are given."""

_TEXT_FILTERS: Mapping[str, Estimator] = MappingProxyType(
    {
        **dict.fromkeys(("upper", "lower", "capitalize"), _cased_size),
        **dict.fromkeys(("trim", "string", "safe", "striptags"), _times(1)),
        **dict.fromkeys(("e", "escape", "forceescape"), _times(5)),
        **dict.fromkeys(("title", "wordcount"), _times(_ITEM)),  # they cut it into words
        "center": _padded_size,
        "replace": _replaced_size,
        "indent": _indented_size,
        "format": lambda text, *args, **kwargs: _percent_size(text, kwargs or args),
        "truncate": lambda text, length=255, killwords=False, end="...", leeway=None: len(text) + len(end),
        "urlencode": _times(12),
        "urlize": lambda text, *args, **kwargs: len(text) * (2 * _ITEM + sum(map(_written, (*args, *kwargs.values())))),
        "wordwrap": lambda text, width=79, break_long_words=True, wrapstring=None, break_on_hyphens=True: (
            len(text) * (_ITEM + len(wrapstring or ""))
        ),
    }
)
"""Filters that take a text, or any value as its text."""

_OTHER_FILTERS: Mapping[str, Estimator] = MappingProxyType(
    {
        **dict.fromkeys(("list", "sort", "unique", "groupby", "dictsort"), _items_size),
        "batch": _batch_size,
        "join": _join_filter_size,
        "pprint": _pretty_size,
        "round": _rounded_size,
        "slice": lambda values, slices, fill_with=None: _items_size(values) + _ITEM * slices,
        "sum": _sum_size,
        "tojson": _json_size,
        "xmlattr": lambda values, *_: 5 * _written(values),
    }
)


def _raise_exception(message: str) -> None:
    raise TemplateRejection(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: Jinja's own filter escapes <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
