"""Records how optimum-intel exports the cases of tests/models/families, as the archives of tests/models/exported.

Run: pip install optimum-intel nncf ml_dtypes, then `python scripts/record_ir_references.py [NAME ...]` from the
repository's root; without a name every export of EXPORTS is recorded. A name is that of a case, or of a case and a form that
its weights are compressed to: `qwen3-int4`. What the graphs have to compute is recorded with the cases
(scripts/record_family_references.py), or is what the graph computes as it was exported.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from optimum.exporters.openvino.model_configs import LFM2OpenVINOConfig
from optimum.intel import OVModelForCausalLM, OVModelForVisualCausalLM, OVWeightQuantizationConfig
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
from tests.support.exported_model import EXPORTED, case_of, parts_of  # noqa: E402
from tests.support.family_checkpoint import write_family_checkpoint  # noqa: E402

EXPORTS = (
    "qwen3", "qwen3-f16", "qwen3-int8", "qwen3-int4", "llama_llama3", "mistral_window", "phi3", "gemma3_text", "gemma2",
    "granite", "olmo2", "gpt_oss", "lfm2", "phi3_128k", "mpt", "smollm3", "granite4_dense", "granite4_hybrid-int8", "llava",
)  # fmt: skip
CONFIGS = {  # of models that have no case: their weights are drawn here, and kept whole
    "granite4_hybrid": transformers.GraniteMoeHybridConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        shared_intermediate_size=48,
        num_hidden_layers=3,
        layer_types=["mamba", "attention", "mamba"],
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        position_embedding_type="nope",
        num_local_experts=0,
        mamba_n_heads=2,
        mamba_d_head=32,
        mamba_d_state=8,
        mamba_expand=2,
    ),
}
FORMS = {
    "int8": OVWeightQuantizationConfig(bits=8),
    "int4": OVWeightQuantizationConfig(bits=4, group_size=32, ratio=1.0),
}
GRAPHS = ("openvino_model", "openvino_language_model", "openvino_text_embeddings_model")
KEPT = ("openvino_config.json", "config.json", "generation_config.json")

_CONSTANT = re.compile(rb'offset="(\d+)" size="(\d+)"')


def record(name: str) -> None:
    """Record one export."""
    form = name.partition("-")[2]
    with tempfile.TemporaryDirectory() as folder:
        case = write_checkpoint(case_of(name), Path(folder) / "case")
        tensors = {} if case_of(name) in CONFIGS else load_file(case / "model.safetensors")
        directory = Path(folder) / "exported"
        export(case, directory, form)
        graphs = [graph for graph in GRAPHS if (directory / f"{graph}.xml").exists()]
        parts, rest = {}, b""
        for graph in graphs:
            spans = _CONSTANT.findall((directory / f"{graph}.xml").read_bytes())
            weights = (directory / f"{graph}.bin").read_bytes()
            named = [(int(begin), int(size)) for begin, size in spans]
            parts[f"{graph}.bin"], left = parts_of(weights, named, tensors)
            rest += left
        EXPORTED.mkdir(exist_ok=True)
        target = EXPORTED / f"{name}.tar.xz"
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for kept in (*(f"{graph}.xml" for graph in graphs), *KEPT):
                if (directory / kept).exists():
                    add(archive, kept, (directory / kept).read_bytes())
            add(archive, "parts.json", json.dumps(parts).encode())
            add(archive, "rest.bin", rest)
        print(f"{name}: {target.stat().st_size} bytes, {len(rest)} of them weights", flush=True)


def write_checkpoint(case: str, directory: Path) -> Path:
    """Write the checkpoint of a case; returns `directory`."""
    if case not in CONFIGS:
        return write_family_checkpoint(case, directory)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[case])
    for name, values in model.named_parameters():
        if values.dim() > 1:
            values.data = torch.randn_like(values) * (0.5 if "embed" in name else values.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    return directory


def export(case: Path, directory: Path, form: str) -> None:
    """Write a checkpoint as optimum-intel exports it."""
    path = case / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["torch_dtype"] = "float16" if form == "f16" else "float32"  # the export keeps it
    path.write_text(json.dumps(config), encoding="utf-8")
    options: dict[str, Any] = {"quantization_config": FORMS[form]} if form in FORMS else {}
    kind = OVModelForVisualCausalLM if "vision_config" in config else OVModelForCausalLM
    model = kind.from_pretrained(str(case), export=True, compile=False, load_in_8bit=False, **options)
    model.save_pretrained(directory)


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file; the same content gives the same archive at any time."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def main(names: list[str]) -> None:
    """Record the named exports, or all; what cannot be exported is told."""
    torch.set_num_threads(1)
    LFM2OpenVINOConfig.MAX_TRANSFORMERS_VERSION = None  # whether a newer one will do is seen by the tests
    for name in names or EXPORTS:
        try:
            record(name)
        except Exception as error:  # the other exports are of use without it
            print(f"{name}: {type(error).__name__}: {str(error)[-300:]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
