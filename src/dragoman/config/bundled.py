"""The bundled models and their names."""

from __future__ import annotations

from pathlib import Path

DEMO_NAME = "demo"
_PACKAGE = Path(__file__).resolve().parent.parent
BUNDLED = {DEMO_NAME: _PACKAGE / "demo_model", "demo-vision": _PACKAGE / "demo_vision_model"}


_SIGNS = ("config.json", "*/config.json", "*.gguf", "*/*.gguf", "serving.properties", "graph.pbtxt")
"""Files that only folders of models have."""


def bundled_or(path: Path) -> Path:
    """The bundled model's directory if `path` is its name and no model has that path; else `path`."""
    directory = BUNDLED.get(str(path))
    if directory is None or path.is_file() or any(any(path.glob(sign)) for sign in _SIGNS):
        return path
    return directory


def bundled_name(directory: Path) -> str | None:
    return next((name for name, known in BUNDLED.items() if known == directory), None)
