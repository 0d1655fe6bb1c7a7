"""Imports for an operator's file: the `djl_python` shim and the files beside it, seen by nobody else.

Does: run the file; resolve its imports, at the top and inside its functions. Does not: leave anything in `sys.path`,
`sys.meta_path` or `sys.modules`: what others import is what it was, and two models may each have their own `utils.py`.

A file named like a module of the standard library does not hide that module.

How: code finds `import` in the `__builtins__` of its globals. The file and its neighbours get builtins whose `import` puts
their own modules into `sys.modules`, imports, and takes them out again, under one lock. Any thread may import.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from dragoman.hooks.shim import PACKAGE, shim_modules

SYS_MODULES_LOCK = RLock()  # the one global: what it guards, the interpreter's table of modules, is global as well


class FileImporter(MetaPathFinder):
    """The imports of one operator's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._own = shim_modules()
        self._tops = {PACKAGE} | _importable(directory)
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._depth = 0

    def load(self, path: Path) -> ModuleType:
        """The module of the operator's file, run. Raises: whatever running it raises; FileNotFoundError."""
        spec = spec_from_file_location(path.stem, path, loader=_Loader(path.stem, str(path), self._builtins))
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        with self._active():
            sys.modules[path.stem] = module  # dataclasses look their module up there; `_active` takes it out
            self._tops.add(path.stem)
            spec.loader.exec_module(module)
        return module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a file in the operator's directory, below it for packages; None for anything else."""
        top = fullname.partition(".")[0]
        if top not in self._tops or top == PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, [self._directory] if path is None else path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self._builtins)
        return spec

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        """What `import` does in the operator's files."""
        if level == 0 and name.partition(".")[0] not in self._tops:
            return builtins.__import__(name, globals, locals, fromlist, level)
        with self._active():
            return builtins.__import__(name, globals, locals, fromlist, level)

    @contextmanager
    def _active(self) -> Iterator[None]:
        """While the block runs, the operator's modules can be imported; imports within imports come through here again."""
        with SYS_MODULES_LOCK:
            if self._depth:
                yield
                return
            self._depth += 1
            hidden = self._take_out()
            sys.modules.update(self._own)
            sys.meta_path.insert(0, self)
            try:
                yield
            finally:
                sys.meta_path.remove(self)
                self._own = self._take_out()
                sys.modules.update(hidden)
                self._depth -= 1

    def _take_out(self) -> dict[str, ModuleType]:
        """Remove the modules whose names the operator's directory or the shim uses from `sys.modules`."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._tops]
        return {name: sys.modules.pop(name) for name in names}


def _importable(directory: Path) -> set[str]:
    """The names that files and packages in a directory have when they are imported."""
    files = {path.stem for path in directory.glob("*.py")}
    packages = {path.parent.name for path in directory.glob("*/__init__.py")}
    return (files | packages) - sys.stdlib_module_names - {"dragoman"}


class _Loader(SourceFileLoader):
    """Runs a file with the builtins that resolve its imports."""

    def __init__(self, fullname: str, path: str, own_builtins: dict[str, Any]) -> None:
        super().__init__(fullname, path)
        self._own_builtins = own_builtins

    def exec_module(self, module: ModuleType) -> None:
        """Run the file in the module."""
        vars(module)["__builtins__"] = self._own_builtins
        super().exec_module(module)
