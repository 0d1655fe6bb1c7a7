"""Finds and loads an operator's model.py, and picks the functions that act. At start-up, on a worker thread.

The file and its neighbours are modules of one package, so that two models may each have their own `utils.py`.
The files are compiled with `import utils` read as `import <package>.utils as utils`, for the names in the directory.
Names made at run time (`importlib.import_module("utils")`) are not found. A file never hides a standard module.
Source: LMI's entryPoint option and its scan of module attributes in alphabetical order, v0.31.
"""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import invalidate_caches
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from dragoman.server.apis.lmi.hooks.functions import Handler, OutputFormatter, function_name
from dragoman.server.apis.lmi.hooks.lmi_package import INPUT_MARK, LMI_PACKAGE, OUTPUT_MARK, provide_lmi_package

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
        _input_formatter(path, _marked(module, INPUT_MARK)),
        None if found is None else _output_formatter(path, found),
        _handler(path, module, handler_name, is_entry_point=is_own_entry_point(entry_point)),
    )
    return hooks if formatter_name is None else replace(hooks, output_formatter=hooks.named(formatter_name))


def find_file(entry_point: str | None, directories: Sequence[Path]) -> Path | None:
    """A name may lack .py, or be a path. None if none was named and there is no model.py. Raises: HookLoadError."""
    if entry_point is None or not is_own_entry_point(entry_point):
        return next((path for path in (directory / DEFAULT_NAME for directory in directories) if path.is_file()), None)
    if "://" in entry_point:
        raise HookLoadError(f"option.entryPoint={entry_point}: must be a file on this machine; code is not downloaded")
    names = [entry_point] if entry_point.endswith(".py") else [entry_point, f"{entry_point}.py"]
    for path in [directory / name for directory in directories for name in names]:
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
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path.resolve()):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


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


def _input_formatter(path: Path, function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if function is None:
        return None
    try:
        inspect.signature(function).bind_partial(None)
    except TypeError as error:
        name = function_name(function)
        raise HookLoadError(
            f"{path}: input formatter {name}: {name} must take one argument at least: {error}"
        ) from error
    return function


def _output_formatter(path: Path, function: Callable[..., Any]) -> OutputFormatter:
    try:
        return OutputFormatter(function)
    except (TypeError, ValueError) as error:
        raise HookLoadError(f"{path}: output formatter {function_name(function)}: {error}") from error


def _listed(directories: Sequence[Path]) -> str:
    return " or ".join(dict.fromkeys(str(directory) for directory in directories))


_NUMBERS = count(1)  # of the packages, one for each file that is loaded


class FileImporter(MetaPathFinder):
    def __init__(self, directory: Path) -> None:
        self._package = ModuleType(f"dragoman_model_{next(_NUMBERS)}", f"The files in {directory}")
        self._package.__path__ = [str(directory)]
        self._names = _importable(directory)

    def load(self, path: Path) -> ModuleType:
        """The module of the operator's file, run. Raises: whatever running it raises; FileNotFoundError."""
        package = self._package.__name__
        self._names.add(path.stem)
        provide_lmi_package()
        invalidate_caches()  # of directories: a file that was just written is there
        sys.modules[package] = self._package
        sys.meta_path.insert(0, self)  # before the one that would load the files as they are
        name = f"{package}.{path.stem}"
        spec = spec_from_file_location(name, path, loader=self._loader(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            self.unload()
            raise
        return module

    def unload(self) -> None:
        package = self._package.__name__
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for key in [key for key in list(sys.modules) if key == package or key.startswith(f"{package}.")]:
            del sys.modules[key]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self._package.__name__}."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = self._loader(fullname, spec.loader.path)
        return spec

    def _loader(self, fullname: str, path: str) -> _Loader:
        return _Loader(fullname, path, _OwnImports(self._package.__name__, frozenset(self._names)))


def _importable(directory: Path) -> set[str]:
    files = {path.stem for path in directory.glob("*.py")}
    packages = {path.parent.name for path in directory.glob("*/*.py")}
    return (files | packages) - sys.stdlib_module_names - {"dragoman", LMI_PACKAGE}


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, own_imports: _OwnImports) -> None:
        super().__init__(fullname, path)
        self._own_imports = own_imports

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = self._own_imports.visit(ast.parse(data, path))
        code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True, optimize=_optimize)
        return code

    def path_stats(self, path: Any) -> NoReturn:
        """Raises: OSError, so that no compiled file is read or written: the package's name is in the code."""
        raise OSError(f"{path} is being recompiled")


class _OwnImports(ast.NodeTransformer):
    """`import name` becomes `import package.name as name` where `name` is a neighbour's."""

    def __init__(self, package: str, names: frozenset[str]) -> None:
        self._package = package
        self._names = names

    def visit_Import(self, node: ast.Import) -> list[ast.Import]:
        """One statement for each name, in order; `import a.b` loads a.b and then binds a, as it does without a package."""
        made: list[ast.Import] = []
        for alias in node.names:
            top, dot, _ = alias.name.partition(".")
            if top not in self._names:
                made.append(ast.Import([alias]))
                continue
            made.append(ast.Import([ast.alias(f"{self._package}.{alias.name}", alias.asname or top)]))
            if dot and alias.asname is None:
                made.append(ast.Import([ast.alias(f"{self._package}.{top}", top)]))
        return [ast.copy_location(statement, node) for statement in made]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.level == 0 and node.module and node.module.partition(".")[0] in self._names:
            node.module = f"{self._package}.{node.module}"
        return node
