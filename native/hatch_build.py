"""Has the library of kernels built when dragoman is installed, or its wheel is made.

Does: run build.py, and say for which machines the wheel is then. Does not: fail where there is no C++ compiler. Called by
hatchling.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("src", "dragoman", "kernels")
_LIBRARY = _FOLDER / "libdragoman.so"
_FILES = (_LIBRARY, _FOLDER / "built_from.txt", _FOLDER / "why_not.txt")  # none of which git has


class NativeBuild(BuildHookInterface[Any]):
    """The hook of pyproject.toml, for wheels and for editable installations."""

    def dependencies(self) -> list[str]:
        """The packages that the build needs beside hatchling: OpenVINO with its headers, and programs that are not here."""
        if runpy.run_path(str(Path(self.root, "native", "build.py")))["compiler"]() is None:
            return []
        programs = [name for name in ("cmake", "ninja") if shutil.which(name) is None]
        return [*programs, *(word for word in self.metadata.core.dependencies if word.startswith("openvino"))]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build. `version`: "editable", or "standard" for a wheel; both find the library beside the package's modules."""
        root = Path(self.root)
        subprocess.run([sys.executable, str(root / "native" / "build.py")], check=True)
        build_data["artifacts"] += [f"/{path}" for path in _FILES if (root / path).is_file()]
        if (root / _LIBRARY).is_file():
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
