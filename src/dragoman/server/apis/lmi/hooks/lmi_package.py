"""LMI's package `djl_python` as operators' files import it: our objects under LMI's names, and its own handlers.

Sources: the imports in LMI's documentation and examples, v0.23 to v0.31, and v0.36 for `async_utils`; LMI's handlers and
its examples of customised pre- and post-processing, v0.23 to v0.26.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from dragoman.server.apis.lmi.hooks import request_io
from dragoman.server.apis.lmi.hooks.handler_io import (
    Input,
    Output,
    create_non_stream_output,
    create_stream_chunk_output,
    decode,
    encode,
    handle_streaming_response,
)

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
        if any(other != parameters[0] for other in parameters):
            raise ValueError(f"all prompts of a request must have the same parameters, got {parameters}")
        prompts: Any = parsed.input_data[0] if len(parsed.input_data) == 1 else parsed.input_data
        made: Output = inputs.model.answer(
            {"inputs": prompts, "parameters": parameters[0]}, output_formatter=self._output_formatter
        )
        return made


LMI_PACKAGE = "djl_python"

Function = TypeVar("Function", bound=Callable[..., Any])

# The attribute names are LMI's, so functions that were marked by hand count too.
INPUT_MARK = "is_input_formatter"
OUTPUT_MARK = "is_output_formatter"


def input_formatter(function: Function) -> Function:
    """The function itself, marked as the one that reads requests: `f(input_item, **kwargs) -> TextInput`."""
    setattr(function, INPUT_MARK, True)
    return function


def output_formatter(function: Function) -> Function:
    """The function itself, marked as the one that writes answers: `f(request_output: TextGenerationOutput) -> str`."""
    setattr(function, OUTPUT_MARK, True)
    return function


_OBJECTS = {name: getattr(request_io, name) for name in request_io.__all__}
_SUBMODULES: Mapping[str, Mapping[str, Any]] = {
    "async_utils": {
        "create_non_stream_output": create_non_stream_output,
        "create_stream_chunk_output": create_stream_chunk_output,
        "handle_streaming_response": handle_streaming_response,
    },
    "deepspeed": {"DeepSpeedService": Service},
    "encode_decode": {"decode": decode, "encode": encode},
    "fastertransformer": {"FasterTransformerService": Service},
    "huggingface": {"HuggingFaceService": Service},
    "input_parser": {**_OBJECTS, "Input": Input, "input_formatter": input_formatter},
    "inputs": {"Input": Input},
    "output_formatter": {**_OBJECTS, "output_formatter": output_formatter},
    "outputs": {"Output": Output},
    "request_io": _OBJECTS,
    "tensorrt_llm": {"TRTLLMService": Service},
    "transformers_neuronx": {"TransformersNeuronXService": Service},
}


def _module(name: str, contents: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name, f"LMI's `{name}`.")
    module.__spec__ = ModuleSpec(name, None)  # code that asks whether it runs in LMI's container looks for it
    vars(module).update(contents, __all__=[*contents])
    return module


_MODULES = {name: _module(f"{LMI_PACKAGE}.{name}", contents) for name, contents in _SUBMODULES.items()}
_PACKAGE = _module(LMI_PACKAGE, {"Input": Input, "Output": Output})
vars(_PACKAGE).update(_MODULES, __path__=[])  # a path makes it a package, and an empty one has no other modules


def provide_lmi_package() -> None:
    """Let `import djl_python` and its modules find these."""
    sys.modules.update({module.__name__: module for module in (_PACKAGE, *_MODULES.values())})
