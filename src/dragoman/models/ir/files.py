"""Where a directory keeps a model as OpenVINO's intermediate representation, and what its small files say of it.

Does: find the files, read openvino_config.json. Does not: read graphs. Called by the loader and by whoever foretells sizes,
on any thread.
Source: optimum-intel's exports (OVModelForCausalLM, OVConfig), which OVMS and OpenVINO GenAI read too.
"""

from __future__ import annotations

from pathlib import Path

from dragoman.models.config import ModelError, read_json

GRAPH_FILE = "openvino_model.xml"
SEEING_FILE = "openvino_language_model.xml"
CONFIG_FILE = "openvino_config.json"

# What tells how the graph came to be: the graph itself says what of it matters.
_DESCRIBES = frozenset((
    "compression", "dtype", "input_info", "optimum_version", "output_attentions", "quantization_config", "save_onnx_model",
    "transformers_version",
))  # fmt: skip


def is_ir(model_dir: Path) -> bool:
    """Whether the model is served from its graph: it has one, and no weights as a checkpoint has them.

    Where both are there, the checkpoint is served: a graph of its own is built of it, which options of types act on.
    """
    has_graph = (model_dir / GRAPH_FILE).is_file() or (model_dir / SEEING_FILE).is_file()
    return has_graph and not any(model_dir.glob("*.safetensors"))


def ir_files(model_dir: Path) -> tuple[Path, Path]:
    """The graph and its weights. Raises: ModelError if the model is one that sees, or a file is missing."""
    graph = model_dir / GRAPH_FILE
    if not graph.is_file():
        raise ModelError(
            f"{model_dir / SEEING_FILE}: exported models that see are not served from their graphs; serve the "
            "checkpoint that it was exported from"
        )
    weights = graph.with_suffix(".bin")
    if not weights.is_file():
        raise ModelError(f"{weights} does not exist; {graph.name} needs it")
    return graph, weights


def unknown_settings(model_dir: Path) -> tuple[str, ...]:
    """One line for each key of openvino_config.json that is not known. Raises: ModelError if it cannot be read."""
    path = model_dir / CONFIG_FILE
    if not path.is_file():
        return ()
    unknown = sorted(read_json(path).keys() - _DESCRIBES)
    return tuple(f"{CONFIG_FILE} {key} has no effect: it is not known" for key in unknown)
