"""The operator's functions as the server calls them: an input formatter, an output formatter, a handler.

Tells their signatures, old and new, what they may return, what they raise. Formatters run on a hook thread, one request at
a time per object; whatever goes wrong becomes a HookError with a log entry.
Sources: the LMI output formatter pages, v0.26 (five arguments), v0.27 (six) and v0.28 to v0.31 (one); LMI's Python engine,
v0.31; LMI's asynchronous handlers, v0.36, also for input formatters that take a decoded body.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_origin

from dragoman.errors import HookError
from dragoman.server.apis.lmi.hooks.handler_io import Input, Output, decode, to_json
from dragoman.server.apis.lmi.hooks.request_io import RequestInput, RequestOutput, Sequence, TextGenerationOutput

logger = logging.getLogger("dragoman.hooks")

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OUTPUT_NAMES = ("RequestOutput", "TextGenerationOutput")


class Signature(Enum):
    REQUEST_OUTPUT = 1
    LEGACY_V026 = 5  # token, first_token, last_token, details, generated_text
    LEGACY = 6  # and request_id


def signature_of(function: Callable[..., Any]) -> Signature:
    """Raises: TypeError if it fits none of the forms.

    To LMI a function is legacy if its first argument is not annotated with RequestOutput or TextGenerationOutput.
    A function without annotations that takes one argument can only be meant as a new one.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and _is_request_output(parameters[0].annotation):
        return Signature.REQUEST_OUTPUT
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return Signature.LEGACY
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    num_required = sum(parameter.default is inspect.Parameter.empty for parameter in positional)
    for form in (Signature.LEGACY, Signature.LEGACY_V026, Signature.REQUEST_OUTPUT):
        if num_required <= form.value <= len(positional):
            return form
    raise TypeError(
        f"{function_name(function)} must take one argument (a RequestOutput), or the five or six of older releases, "
        f"got {len(positional)}"
    )


def function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _is_request_output(annotation: Any) -> bool:
    if isinstance(annotation, str):  # from __future__ import annotations
        return annotation.rpartition(".")[2] in _OUTPUT_NAMES
    return isinstance(annotation, type) and issubclass(annotation, RequestOutput)


def takes_payload(function: Callable[..., Any]) -> bool:
    """True for an input formatter of LMI's asynchronous handlers: `f(decoded_payload: dict, **kwargs) -> dict`."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    annotation = first.annotation
    bare = annotation.partition("[")[0] if isinstance(annotation, str) else get_origin(annotation) or annotation
    return bare in (dict, "dict", "Dict") or first.name == "decoded_payload"


class InputFormatter:
    """An operator's input formatter. `context`: the keyword arguments offered; it gets those that it takes."""

    def __init__(self, function: Callable[..., Any], context: Mapping[str, Any]) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        names = {parameter.name for parameter in parameters}
        self._context = {name: value for name, value in context.items() if takes_all or name in names}

    def __call__(self, item: Any) -> RequestInput:
        request = self._call(item)
        if not isinstance(request, RequestInput):
            raise bad_input(f"{function_name(self._function)} must return a RequestInput, got {type(request).__name__}")
        return request

    def payload(self, item: Input) -> bytes:
        try:  # decoded for it alone, since it may change what it is given
            decoded = decode(item, item.get_property("content-type"))
        except Exception as error:  # hook call: also what an image library raises
            raise bad_input(_reason(error)) from error
        made = self._call(decoded)
        if not isinstance(made, dict):
            raise bad_input(f"{function_name(self._function)} must return a dict, got {type(made).__name__}")
        try:
            return to_json(made)
        except (TypeError, ValueError) as error:
            raise bad_input(
                f"{function_name(self._function)} must return values that JSON can hold: {error}"
            ) from error

    def _call(self, read: Any) -> Any:
        try:
            return self._function(read, **self._context)
        except Exception as error:  # hook call: any error of the operator's code fails this request only
            logger.warning("the input formatter %s failed", function_name(self._function), exc_info=error)
            raise bad_input(_reason(error)) from error


def bad_input(reason: str) -> HookError:
    return HookError(f"Input Parsing failed. Ensure that the request payload is valid. {reason}")


def _reason(error: Exception) -> str:
    """A KeyError's text alone would be a bare name."""
    return f"Invalid Request Property: {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__


class OutputFormatter:
    """An operator's output formatter. Raises: TypeError if its arguments fit none of the known forms."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.signature = signature_of(function)

    def call(self, output: TextGenerationOutput) -> bytes:
        try:
            written = self._call(output)
        except Exception as error:  # hook call: any error of the operator's code fails this request only
            logger.warning("the output formatter %s failed", function_name(self.function), exc_info=error)
            raise HookError(
                f"Output formatter {function_name(self.function)} failed: {type(error).__name__}: {error}"
            ) from error
        if isinstance(written, bytes):
            return written
        if isinstance(written, str):
            return written.encode("utf-8", "replace")  # lone surrogates, as json.loads lets them through
        raise HookError(
            f"Output formatter {function_name(self.function)} must return a string, got {type(written).__name__}"
        )

    def _call(self, output: TextGenerationOutput) -> Any:
        if self.signature is Signature.REQUEST_OUTPUT:
            return self.function(output)
        sequence = output.sequences[output.best_sequence_index]
        *_, is_first, is_last = walked = sequence.get_next_token()
        if walked[0] is None:
            return ""
        arguments = (walked[0], is_first, is_last, _details(output, sequence, is_last=is_last), _text(output, sequence))
        return self.function(*arguments, *((output.request_id,) if self.signature is Signature.LEGACY else ()))


def _text(output: TextGenerationOutput, sequence: Sequence) -> str:
    prompt = output.input.input_text if output.input.parameters.get("return_full_text") else ""
    return prompt + "".join(token.text for token in sequence.tokens[: sequence.position])


def _details(output: TextGenerationOutput, sequence: Sequence, *, is_last: bool) -> dict[str, Any]:
    if not (is_last and output.input.parameters.get("details", output.input.tgi_compat)):
        return {}
    details: dict[str, Any] = {
        "finish_reason": sequence.finish_reason,
        "generated_tokens": len(sequence.tokens),
        "inputs": output.input.input_text,
        "tokens": output.get_tokens_as_dict(output.best_sequence_index),
    }
    if output.prompt_tokens_details:
        details["prefill"] = output.get_prompt_tokens_as_dict()
    return details


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
            is_kind(candidate)
            for candidate in (self.function, getattr(self.function, "__call__", None))  # noqa: B004  # the method itself
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
