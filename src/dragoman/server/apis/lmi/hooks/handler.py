"""An operator's own handler, LMI's `handle(inputs: Input) -> Output`: what kind it is, and the call that initialises it.

`start` runs on a hook thread, `start_async` on the handler's event loop.
Source: LMI's Python engine, v0.31; asynchronous handlers v0.36.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.server.apis.lmi.hooks.inputs import Input
from dragoman.server.apis.lmi.hooks.outputs import Output


class StartRefused(Exception):
    """The handler answered its first call with an error; the message is the error's text."""


@dataclass(frozen=True, slots=True)
class Handler:
    """`is_entry_point`: option.entryPoint names its file."""

    function: Callable[..., Any]
    name: str = "handle"
    is_entry_point: bool = False

    @property
    def is_async(self) -> bool:
        return any(
            is_kind(one)
            for one in (self.function, getattr(self.function, "__call__", None))  # noqa: B004  # the method itself
            for is_kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        )

    @property
    def falls_through(self) -> bool:
        """True if a call that it answers with None is generated for: an asynchronous one beside LMI's own handler."""
        return self.is_async and not self.is_entry_point

    def start(self, properties: Mapping[str, str]) -> None:
        _check_start(self.function(Input(properties, function_name=self.name)))

    async def start_async(self, properties: Mapping[str, str]) -> None:
        made = self.function(Input(properties, function_name=self.name))
        if inspect.isasyncgen(made):
            async for output in made:
                _check_start(output)
        else:
            _check_start(await made)


def _check_start(output: Any) -> None:
    if not isinstance(output, Output) or (output.code < 300 and output.failure is None):
        return
    body = output.body()
    text = output.failure or (body.decode("utf-8", "replace") if body else output.message)
    raise StartRefused(f"the handler answered its initialisation with status {output.code}: {text}")
