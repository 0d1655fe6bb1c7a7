"""Finds a model in OpenVINO's intermediate representation in a directory, and reads its small files.

Source: optimum-intel's exports (OVModelForCausalLM, OVConfig), which OVMS and OpenVINO GenAI read too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from dragoman.models.config import ModelError, read_json

GRAPH_FILE = "openvino_model.xml"
SEEING_FILE = "openvino_language_model.xml"  # of a model that sees: all layers behind its embeddings
TABLE_FILE = "openvino_text_embeddings_model.xml"
VISION_FILE = "openvino_vision_embeddings_model.xml"
PROJECTION_FILE = "openvino_vision_projection_model.xml"
CONFIG_FILE = "openvino_config.json"
_ACTIVATION_GROUPS = "DYNAMIC_QUANTIZATION_GROUP_SIZE"

# Keys about the export: the graph itself says what matters.
_DESCRIBES = frozenset((
    "compression", "dtype", "input_info", "optimum_version", "output_attentions", "quantization_config", "save_onnx_model",
    "transformers_version", _ACTIVATION_GROUPS,
))  # fmt: skip


def is_ir(model_dir: Path) -> bool:
    """True if there is a graph and no checkpoint: of that our own graph is built, on which options of types act."""
    return has_graph(model_dir) and not any(model_dir.glob("*.safetensors"))


def has_graph(model_dir: Path) -> bool:
    return (model_dir / GRAPH_FILE).is_file() or (model_dir / SEEING_FILE).is_file()


class SeeingFiles(NamedTuple):
    vision: Path
    projection: Path


class IrFiles(NamedTuple):
    """The files of an exported model. `table`: the graph that embeds texts, None where it is part of the other."""

    graph: Path
    table: Path | None
    seeing: SeeingFiles | None = None

    @property
    def weights(self) -> tuple[Path, ...]:
        return tuple(path.with_suffix(".bin") for path in self._graphs)

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self._graphs, *self.weights)

    @property
    def _graphs(self) -> tuple[Path, ...]:
        return (self.graph, *([] if self.table is None else [self.table]), *(self.seeing or ()))


def ir_files(model_dir: Path, *, sees: bool = False) -> IrFiles:
    """The files of the exported model; `sees`: with those that embed pictures. Raises: ModelError if one is missing."""
    whole, seeing = model_dir / GRAPH_FILE, model_dir / SEEING_FILE
    files = IrFiles(whole, None) if whole.is_file() else IrFiles(seeing, model_dir / TABLE_FILE)
    if sees:
        files = files._replace(seeing=SeeingFiles(model_dir / VISION_FILE, model_dir / PROJECTION_FILE))
    for path in files.all:
        if not path.is_file():
            raise ModelError(f"{path} does not exist; {files.graph.name} needs it")
    return files


def unknown_settings(model_dir: Path) -> tuple[str, ...]:
    settings = _settings(model_dir)
    lines = [f"{CONFIG_FILE} {key} has no effect: it is not known" for key in sorted(settings.keys() - _DESCRIBES)]
    if _ACTIVATION_GROUPS in settings:
        lines.append(f"{CONFIG_FILE} {_ACTIVATION_GROUPS} has no effect: groups follow from kernels and weights")
    return tuple(lines)


def _settings(model_dir: Path) -> dict[str, Any]:
    path = model_dir / CONFIG_FILE
    return read_json(path) if path.is_file() else {}
