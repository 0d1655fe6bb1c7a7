"""Finds and loads an operator's model.py, and picks the functions that act. At start-up, on a worker thread.

Source: LMI's entryPoint option and its scan of module attributes in alphabetical order, v0.31.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from dragoman.server.apis.lmi.hooks.formatter import OutputFormatter, function_name
from dragoman.server.apis.lmi.hooks.handler import Handler
from dragoman.server.apis.lmi.hooks.importer import FileImporter
from dragoman.server.apis.lmi.hooks.lmi_package import INPUT_MARK, LMI_PACKAGE, OUTPUT_MARK

DEFAULT_NAME = "model.py"
HANDLER = "handle"  # LMI's default of option.handler


class HookLoadError(Exception):
    """The operator's file cannot be used; the message says why, with the file's own traceback if it raised."""


@dataclass(frozen=True, slots=True)
class Hooks:
    path: Path
    module: ModuleType
    importer: FileImporter
    input_formatter: Callable[..., Any] | None = None
    output_formatter: OutputFormatter | None = None
    handler: Handler | None = None

    def close(self) -> None:
        """Forget the modules, so that they go with the model; nothing may be called any more."""
        self.importer.unload()

    def named(self, name: str) -> OutputFormatter:
        function = getattr(self.module, name, None)
        if not callable(function):
            raise HookLoadError(f"{self.path}: has no function named {name}")
        return _output_formatter(self.path, function)


def load_hooks(
    entry_point: str | None,
    directories: Sequence[Path],
    formatter_name: str | None = None,
    handler_name: str = HANDLER,
) -> Hooks | None:
    """None if no file was named and there is no model.py. `formatter_name` goes before a mark. Raises: HookLoadError."""
    path = find_file(entry_point, directories)
    if path is None:
        if formatter_name is not None:
            raise HookLoadError(
                f"option.output_formatter={formatter_name}: must be json, jsonlines, sse or a function of {DEFAULT_NAME}, "
                f"and there is no {DEFAULT_NAME} in {_listed(directories)}"
            )
        if handler_name != HANDLER:
            raise HookLoadError(
                f"option.handler={handler_name}: must be a function of {DEFAULT_NAME}, and there is no {DEFAULT_NAME} in "
                f"{_listed(directories)}"
            )
        return None
    importer = FileImporter(path.resolve().parent)
    module = _run(importer, path)
    found = _marked(module, OUTPUT_MARK)
    hooks = Hooks(
        path,
        module,
        importer,
        _marked(module, INPUT_MARK),
        None if found is None else _output_formatter(path, found),
        _handler(path, module, handler_name, is_entry_point=is_own_entry_point(entry_point)),
    )
    return hooks if formatter_name is None else replace(hooks, output_formatter=hooks.named(formatter_name))


def find_file(entry_point: str | None, directories: Sequence[Path]) -> Path | None:
    """A name may lack .py, or be a path. None if none was named and there is no model.py. Raises: HookLoadError."""
    if entry_point is None or not is_own_entry_point(entry_point):
        return next((path for path in (one / DEFAULT_NAME for one in directories) if path.is_file()), None)
    if "://" in entry_point:
        raise HookLoadError(f"option.entryPoint={entry_point}: must be a file on this machine; code is not downloaded")
    names = [entry_point] if entry_point.endswith(".py") else [entry_point, f"{entry_point}.py"]
    for path in [one / name for one in directories for name in names]:
        if path.is_file() and path.suffix == ".py":
            return path
    raise HookLoadError(
        f"option.entryPoint={entry_point}: must be a Python file in {_listed(directories)}, or a whole path to one; "
        "there is none of that name"
    )


def is_own_entry_point(entry_point: str | None) -> bool:
    """True if option.entryPoint names a file of the operator's, not a handler of LMI's such as djl_python.huggingface."""
    return entry_point is not None and entry_point.partition(".")[0] != LMI_PACKAGE


def _run(importer: FileImporter, path: Path) -> ModuleType:
    try:
        return importer.load(path.resolve())
    except BaseException as error:  # hook call: sys.exit in the file stops the start as well, with the same message
        if isinstance(error, KeyboardInterrupt):
            raise
        raise HookLoadError(f"{path} does not load:\n{own_traceback(error, path)}") from error


def own_traceback(error: BaseException, path: Path) -> str:
    """The traceback from the operator's file on: how it was reached from here tells an operator nothing."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename != str(path.resolve()):
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own)).rstrip()


def _handler(path: Path, module: ModuleType, name: str, *, is_entry_point: bool) -> Handler | None:
    function = getattr(module, name, None)
    if not callable(function):
        if name == HANDLER:
            return None
        raise HookLoadError(f"option.handler={name}: must be a function of {path}, which has none of that name")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise HookLoadError(f"{path}: {name}() must take one argument, the Input: {error}") from error
    return Handler(function, name, is_entry_point)


def _marked(module: ModuleType, mark: str) -> Callable[..., Any] | None:
    """The first function with that mark; attributes in alphabetical order, as LMI scans them."""
    for name in sorted(vars(module)):
        value = vars(module)[name]
        if callable(value) and not isinstance(value, type) and getattr(value, mark, False) is True:
            found: Callable[..., Any] = value
            return found
    return None


def _output_formatter(path: Path, function: Callable[..., Any]) -> OutputFormatter:
    try:
        return OutputFormatter(function)
    except (TypeError, ValueError) as error:
        raise HookLoadError(f"{path}: output formatter {function_name(function)}: {error}") from error


def _listed(directories: Sequence[Path]) -> str:
    return " or ".join(dict.fromkeys(str(directory) for directory in directories))
