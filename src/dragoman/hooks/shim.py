"""The package `djl_python` as an operator's file sees it: our own objects under LMI's module names.

Does: build module objects. Does not: make them importable (`importer` does, for the operator's file only).
Source of the names: the imports in LMI's documentation and examples, v0.26 to v0.31, and v0.36 for `async_utils`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dragoman.hooks import async_utils, content, inputs, marks, outputs, request_io

PACKAGE = "djl_python"

_REQUEST_IO: dict[str, Any] = {
    one.__name__: one
    for one in (
        request_io.Token,
        request_io.Sequence,
        request_io.RequestInput,
        request_io.TextInput,
        request_io.RequestOutput,
        request_io.TextGenerationOutput,
    )
}
_CONTENTS: dict[str, dict[str, Any]] = {
    PACKAGE: {"Input": inputs.Input, "Output": outputs.Output},
    f"{PACKAGE}.inputs": {"Input": inputs.Input},
    f"{PACKAGE}.outputs": {"Output": outputs.Output},
    f"{PACKAGE}.async_utils": {
        one.__name__: one
        for one in (
            async_utils.create_non_stream_output,
            async_utils.create_stream_chunk_output,
            async_utils.handle_streaming_response,
        )
    },
    f"{PACKAGE}.encode_decode": {"decode": content.decode, "encode": content.encode},
    f"{PACKAGE}.input_parser": {"input_formatter": marks.input_formatter, "Input": inputs.Input, **_REQUEST_IO},
    f"{PACKAGE}.output_formatter": {"output_formatter": marks.output_formatter, **_REQUEST_IO},
    f"{PACKAGE}.request_io": _REQUEST_IO,
}


def shim_modules() -> dict[str, ModuleType]:
    """Fresh modules by full name: what one file does to them, another does not see."""
    modules = {name: ModuleType(name, f"dragoman's stand-in for LMI's {name}") for name in _CONTENTS}
    for name, module in modules.items():
        vars(module).update(_CONTENTS[name])
        if name == PACKAGE:
            module.__path__ = []
        else:
            setattr(modules[PACKAGE], name.rpartition(".")[2], module)
    return modules
