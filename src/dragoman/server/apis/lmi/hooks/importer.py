"""Imports for an operator's file: `djl_python`, and the files beside it, which other code does not see.

The file and its neighbours are modules of one package, so that two models may each have their own `utils.py`.
The files are compiled with `import utils` read as `import <package>.utils as utils`, for the names in the directory.
Names made at run time (`importlib.import_module("utils")`) are not found. A file never hides a standard module.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import invalidate_caches
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from dragoman.server.apis.lmi.hooks.lmi_package import LMI_PACKAGE, provide_lmi_package

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
        return [ast.copy_location(one, node) for one in made]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.level == 0 and node.module and node.module.partition(".")[0] in self._names:
            node.module = f"{self._package}.{node.module}"
        return node
