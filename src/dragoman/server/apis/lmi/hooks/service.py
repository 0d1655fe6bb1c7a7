"""LMI's own handlers, for a model.py that puts its code around one: `_service.initialize`, `_service.inference`.

Made and called by the operator's code, on a hook thread; the served model (`Input.model`) generates.
Source: LMI's handlers and its examples of customised pre- and post-processing, v0.23 to v0.26.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dragoman.server.apis.lmi.hooks.content import decode
from dragoman.server.apis.lmi.hooks.inputs import Input
from dragoman.server.apis.lmi.hooks.outputs import Output

logger = logging.getLogger("dragoman.hooks")


class ParsedInput(NamedTuple):
    """The result of `parse_input`: prompts, their number by request, parameters, errors by request, the requests."""

    input_data: list[Any]
    input_size: list[int]
    parameters: list[dict[str, Any]]
    errors: dict[int, str]
    batch: list[Input]


class Service:
    """The served model in the place of LMI's. An operator's file may put functions of its own in place of `parse_input`."""

    def __init__(self) -> None:
        self.initialized = False
        self._output_formatter: Callable[..., Any] | None = None

    def initialize(self, properties: Mapping[str, Any]) -> None:
        """Take `output_formatter`, if that is a function: it then writes the answers. The model is the server's matter."""
        formatter = properties.get("output_formatter")
        self._output_formatter = formatter if callable(formatter) else None
        self.initialized = True

    def parse_input(self, inputs: Input) -> ParsedInput:
        """The prompts and parameters of a request. Requests come one by one, so the lists hold what is one request's."""
        parsed = ParsedInput([], [], [], {}, inputs.get_batches())
        for number, item in enumerate(parsed.batch):
            try:
                body = decode(item, item.get_property("Content-Type"))
                if not isinstance(body, dict):
                    raise ValueError(f"the body must be an object with the field 'inputs', got a {type(body).__name__}")
                prompts = body.pop("inputs", body)
                parameters = body.pop("parameters", {})
            except Exception as error:  # a body may be wrong in any way, of any content type
                logger.warning("the input of a request cannot be read", exc_info=error)
                parsed.input_size.append(0)
                parsed.errors[number] = str(error)
                continue
            prompts = prompts if isinstance(prompts, list) else [prompts]
            parsed.input_data.extend(prompts)
            parsed.input_size.append(len(prompts))
            parsed.parameters.extend([parameters] * len(prompts))
        return parsed

    def inference(self, inputs: Input) -> Output:
        """LMI's answer to a dynamic batch, or what the output formatter writes. Blocks. Raises: ServerError, ValueError."""
        if inputs.model is None:
            raise ValueError("there is no model to generate with: this directory has none, or it is not loaded yet")
        parsed = ParsedInput(*self.parse_input(inputs))
        if parsed.errors:
            return Output().error("; ".join(dict.fromkeys(parsed.errors.values())))
        parameters = parsed.parameters or [{}]
        if any(one != parameters[0] for one in parameters):
            raise ValueError(f"all prompts of a request must have the same parameters, got {parameters}")
        prompts: Any = parsed.input_data[0] if len(parsed.input_data) == 1 else parsed.input_data
        made: Output = inputs.model.answer(
            {"inputs": prompts, "parameters": parameters[0]}, output_formatter=self._output_formatter
        )
        return made
