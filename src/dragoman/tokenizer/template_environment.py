"""The Jinja in which chat templates run: sandboxed, with Hugging Face's extras, and bounded.

Does: compile a template so that every loop round and macro call is counted, and render it within limits.
Does not: know messages or roles (`chat_template` does). The sandbox keeps a model's template away from the process; the
limits end one that runs away, they do not price every expression an ill-meaning author could write.
Source of the extras: the "Chat templates" pages of the Hugging Face transformers documentation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_TICK = "dragoman_tick"
_CONCATENATE = "dragoman_concatenate"
_METER = "dragoman_meter"


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may use. Rounds are loop rounds and macro calls; the size bounds the rendered text and
    every value made by +, ~, * or **, in characters or items.

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
        environment.globals["strftime_now"] = lambda template: now().strftime(template)
        self._template = environment.from_string(_Metering().visit(environment.parse(source)))
        self._limits = limits

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises: TemplateRejection, TemplateLimit, or whatever the template's own code raises."""
        meter = _Meter(self._limits)
        pieces: list[str] = []
        for piece in self._template.generate({**variables, _METER: meter}):
            meter.add_text(piece)
            pieces.append(piece)
        return "".join(pieces)


class _Meter:
    """Counts what one rendering uses."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._num_rounds = 0
        self._size = 0
        self._deadline = time.monotonic() + limits.max_duration_s

    def tick(self) -> None:
        """Count one loop round or macro call."""
        self._num_rounds += 1
        if self._num_rounds > self._limits.max_rounds:
            raise TemplateLimit(f"it ran more than {self._limits.max_rounds} loop rounds")
        if self._num_rounds % 256 == 0 and time.monotonic() > self._deadline:
            raise TemplateLimit(f"it ran longer than {self._limits.max_duration_s:g} s")

    def add_text(self, piece: str) -> None:
        """Count rendered text."""
        self._size += len(piece)
        if self._size > self._limits.max_size:
            raise TemplateLimit(f"it rendered more than {self._limits.max_size} characters")


class _Environment(ImmutableSandboxedEnvironment):
    """Hugging Face's settings, on top of Jinja's sandbox."""

    intercepted_binops = frozenset(["+", "*", "**"])

    def __init__(self, limits: RenderLimits) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
        self._limits = limits
        self.filters |= {"tojson": _tojson, _TICK: _tick, _CONCATENATE: self._concatenate}
        self.globals["raise_exception"] = _raise_exception

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse to build huge values, which would take all memory within one expression."""
        if _result_size(operator, left, right) > self._limits.max_size:
            raise TemplateLimit(f"it made a value of more than {self._limits.max_size} characters or items")
        return super().call_binop(context, operator, left, right)

    def _concatenate(self, values: list[Any]) -> str:
        """What `~` does, but not without bounds; Jinja lets sandboxes intercept all operators except this one."""
        texts = [str(value) for value in values]
        if sum(map(len, texts)) > self._limits.max_size:
            raise TemplateLimit(f"it made a value of more than {self._limits.max_size} characters or items")
        return "".join(texts)


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
        return _size(left) * right if isinstance(right, int) else _size(right) * left if isinstance(left, int) else 0
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        return left.bit_length() * right
    return 0


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


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
