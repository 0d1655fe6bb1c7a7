"""Records how transformers saves the cases of tests/models/families: config.json, and the names of tensors.

Run: pip install torch transformers accelerate, then `python scripts/record_saved_checkpoints.py [CASE ...]` from the
repository's root; once with the newest version and once with 4.57. What that major version writes is replaced in
tests/models/saved_by_transformers.json, of the named cases or of all; no weights are kept. Each case is saved twice:
    CASE         a new model of that config
    CASE again   the case's own checkpoint, loaded and saved, as trainers do; left out where names are as in the first
    CASE text    the text alone of a model that sees, loaded from its checkpoint (TEXTS)
An entry has what differs from the case: `config`, values of other keys; `without`, keys that are gone; `tensors`, shapes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "models" / "families"
SAVED = ROOT / "tests" / "models" / "saved_by_transformers.json"

TEXTS = {
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "gemma3_vision": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
}

Entry = dict[str, Any]


def saved(model: Any, case: Entry) -> Entry:
    """What `save_pretrained` writes that the case has otherwise."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        written = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
        with safe_open(Path(directory) / "model.safetensors", framework="numpy") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    config = case["config"]
    entry: Entry = {"config": {key: value for key, value in written.items() if config.get(key) != value}}
    entry["without"] = [key for key in config if key not in written]
    return entry if shapes.keys() == case["tensors"].keys() else entry | {"tensors": shapes}


def record(name: str, case: Entry) -> dict[str, Entry]:
    """The entries of a case."""
    architecture = case["config"]["architectures"][0]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
        config = transformers.AutoConfig.from_pretrained(directory)
        found = {name: saved(getattr(transformers, architecture)(config), case)}
        tensors = {key: torch.zeros(shape, dtype=_type(key)) for key, shape in case["tensors"].items()}
        save_file(tensors, Path(directory) / "model.safetensors", metadata={"format": "pt"})
        loaded = {f"{name} again": architecture}
        if name in TEXTS and hasattr(transformers, TEXTS[name]):
            loaded[f"{name} text"] = TEXTS[name]
        for key, kind in loaded.items():
            entry = saved(getattr(transformers, kind).from_pretrained(directory), case)
            if key.endswith(" text") or entry.get("tensors", {}).keys() != found[name].get("tensors", {}).keys():
                found[key] = entry
    return found


def _type(tensor: str) -> torch.dtype:
    return torch.uint8 if tensor.endswith(("_blocks", "_scales")) else torch.float32


def main(names: list[str]) -> None:
    """Record the named cases, or all, that this version of transformers knows."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    entries: dict[str, Entry] = {}
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        if "made_of" in case or (names and path.stem not in names):
            continue
        try:
            entries |= record(path.stem, case)
        except (AttributeError, ImportError, KeyError, ValueError) as error:
            print(f"{path.stem}: not with {transformers.__version__}: {str(error)[:100]}")
    whole = json.loads(SAVED.read_text(encoding="utf-8")) if SAVED.exists() else {}
    if names:
        kept = {name: entry for name, entry in whole[transformers.__version__].items() if name.split()[0] not in names}
        entries = dict(sorted({**kept, **entries}.items()))
    whole = {version: cases for version, cases in whole.items() if version[0] != transformers.__version__[0]}
    whole[transformers.__version__] = entries
    lines = []
    for version in sorted(whole):
        cases = (f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in whole[version].items())
        lines.append(f" {json.dumps(version)}: {{\n" + ",\n".join(cases) + "\n }")
    SAVED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(entries)} entries of {transformers.__version__}, {SAVED.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
