"""LMI's package `djl_python` as operators' files import it: our objects under LMI's names.

Source of the names: the imports in LMI's documentation and examples, v0.23 to v0.31, and v0.36 for `async_utils`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from dragoman.server.apis.lmi.hooks import async_utils, request_io
from dragoman.server.apis.lmi.hooks.content import decode, encode
from dragoman.server.apis.lmi.hooks.inputs import Input
from dragoman.server.apis.lmi.hooks.outputs import Output
from dragoman.server.apis.lmi.hooks.service import Service

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
    "async_utils": {name: getattr(async_utils, name) for name in async_utils.__all__},
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
