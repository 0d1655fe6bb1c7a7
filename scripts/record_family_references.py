"""Records what transformers computes for the cases of tests/models/families, in float32 and with eager attention.

Run: pip install torch transformers accelerate ml_dtypes, then `python scripts/record_family_references.py [CASE ...]`
from the repository's root; without a name every case is recorded. For each case it
    1. asks transformers how the family's files lay their tensors out and writes that into <case>.json, with the names
       that the hub's files have (HUB_NAMES says where they differ from what transformers writes),
    2. writes the checkpoint with tests/support/family_checkpoint.py, loads it with transformers and refuses to go on if
       a tensor is missing, left over or of another shape,
    3. records logits of three prompts at some positions and columns of the vocabulary in <case>.npz: `columns` [C], and
       for each prompt of N tokens `token_ids_N` [N], `positions_N` [P] and `logits_N` f32 [P, C],
    4. says which tensors do not change the logits: a test could not see a mistake in those.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.family_checkpoint import FAMILIES, Array, Case, case_names, read_case, write_case  # noqa: E402

PROMPT_LENGTHS = (5, 90, 700)
NUM_POSITIONS = 24
NUM_COLUMNS = 24

# model_type -> replacements in the names that transformers writes, where the hub's files have others.
_VISION_TOWER = [(r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.")]  # from version 5 on without it
HUB_NAMES: dict[str, list[tuple[str, str]]] = {
    "bloom": [(r"^transformer\.", "")],
    "gemma3": _VISION_TOWER,
    "gpt2": [(r"^transformer\.", "")],
    "llava": _VISION_TOWER,
    "llava_next": _VISION_TOWER,
    "llava_onevision": _VISION_TOWER,
}

# model_type -> the implementation of attention, where the eager one is wrong: Falcon's adds ALiBi twice.
ATTENTION = {"falcon": "sdpa"}


def record(name: str) -> None:
    """Record one case."""
    case = read_case(name)
    if case.get("recorded_layout", True):
        case["tensors"] = layout(case)
    write_json(FAMILIES / f"{name}.json", case)
    with tempfile.TemporaryDirectory() as directory:
        model = load(name, case, write_case(name, case, Path(directory)))
    prompts = [prompt(name, case, length) for length in PROMPT_LENGTHS]
    vocab_size = text_config(case)["vocab_size"]
    columns = np.sort(np.random.RandomState(1).permutation(vocab_size)[:NUM_COLUMNS])
    arrays: dict[str, Array] = {"columns": columns.astype(np.uint16)}
    summary = []
    for token_ids in prompts:
        length = len(token_ids)
        positions = np.unique(np.linspace(0, length - 1, NUM_POSITIONS).round().astype(int))
        logits = forward(model, token_ids)
        arrays[f"token_ids_{length}"] = token_ids.astype(np.uint16)
        arrays[f"positions_{length}"] = positions.astype(np.uint16)
        arrays[f"logits_{length}"] = logits[np.ix_(positions, columns)]
        summary.append(f"{length}: {np.sqrt(np.mean(logits**2)):.2f}")
    np.savez_compressed(FAMILIES / f"{name}.npz", allow_pickle=False, **arrays)
    size = (FAMILIES / f"{name}.npz").stat().st_size
    print(f"{name}: {size} bytes, rms of logits {', '.join(summary)}", flush=True)
    for tensor in silent_tensors(model, prompts[1], case.get("unused", [])):
        print(f"    {tensor} does not change the logits")


def text_config(case: Case) -> dict[str, Any]:
    """The language model's part of the case's config."""
    part: dict[str, Any] = case["config"].get("text_config", case["config"])
    return part


def prompt(name: str, case: Case, length: int) -> Array:
    """Random ids, the same for the same case and length."""
    limit = case.get("num_prompt_ids", text_config(case)["vocab_size"])
    return np.random.RandomState(len(name) * 1000 + length).randint(0, limit, size=length)


def layout(case: Case) -> dict[str, list[int]]:
    """Name and shape of each tensor as the hub's files of this family have them."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(case["config"]))
        config = transformers.AutoConfig.from_pretrained(directory)
        model = model_class(case)(config)
        model.save_pretrained(directory)
        with safe_open(Path(directory) / "model.safetensors", framework="numpy") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    replacements = HUB_NAMES.get(case["config"]["model_type"], [])
    return dict(sorted((hub_name(name, replacements), shape) for name, shape in shapes.items()))


def hub_name(name: str, replacements: list[tuple[str, str]]) -> str:
    """`name` after all `replacements`."""
    for pattern, replacement in replacements:
        name = re.sub(pattern, replacement, name)
    return name


def model_class(case: Case) -> Any:
    """The class of transformers that the case's config names."""
    return getattr(transformers, case["config"]["architectures"][0])


def load(name: str, case: Case, directory: Path) -> Any:
    """The checkpoint as transformers reads it; raises RuntimeError if it does not read every tensor as it is."""
    model, info = model_class(case).from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation=ATTENTION.get(case["config"]["model_type"], "eager"),
        output_loading_info=True,
    )
    extra = set(case.get("extra_tensors", {}))
    problems = {
        "missing": set(info["missing_keys"]),
        "unexpected": set(info["unexpected_keys"]) - extra,
        "of another shape": set(info["mismatched_keys"]),
    }
    for problem, tensors in problems.items():
        if tensors:
            raise RuntimeError(f"{name}: {problem}: {sorted(tensors)}")
    return model.eval()


def correct_alibi() -> None:
    """Have ALiBi as checkpoints ask for it, where transformers departs from that.

    Falcon's is rounded to bfloat16, which is off by whole tokens from position 256 on; else its code is BLOOM's. MPT's has
    the same slopes whatever `alibi_bias_max` is.
    """
    names = ("bloom", "falcon", "mpt")
    modules: list[Any] = [importlib.import_module(f"transformers.models.{name}.modeling_{name}") for name in names]
    bloom, falcon, mpt = modules
    falcon.build_alibi_tensor = bloom.build_alibi_tensor

    def mpt_alibi(model: Any, num_heads: int, length: int, **options: Any) -> Any:
        return mpt.build_mpt_alibi_tensor(num_heads, length, model.config.attn_config.alibi_bias_max, **options)

    mpt.MptModel.build_mpt_alibi_tensor = mpt_alibi


def forward(model: Any, token_ids: Array) -> Array:
    """f32 [T, vocab]."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(token_ids)[None], use_cache=False).logits[0]
    return np.asarray(logits.numpy(), dtype=np.float32)


def silent_tensors(model: Any, token_ids: Array, unused: list[str]) -> list[str]:
    """The parameters that can be changed without changing the logits of a prompt, but for those that `unused` names."""
    before = forward(model, token_ids)
    silent = []
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in unused):
            continue
        kept = parameter.data.clone()
        parameter.data *= 1 + 0.3 * torch.rand(kept.shape, generator=torch.Generator().manual_seed(1))
        if np.max(np.abs(forward(model, token_ids) - before)) < 1e-3 * np.max(np.abs(before)):
            silent.append(name)
        parameter.data = kept
    return silent


def write_json(path: Path, case: Case) -> None:
    """The case with one line for each tensor, and everything but the config in short."""
    lines = []
    for key, value in case.items():
        if key in ("tensors", "extra_tensors", "values"):
            entries = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
            lines.append(f'  "{key}": {{\n{entries}\n  }}')
        else:
            text = json.dumps(value, indent=2 if key == "config" else None)
            lines.append(f'  "{key}": ' + text.replace("\n", "\n  "))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Record the named cases, or all."""
    torch.set_num_threads(1)
    correct_alibi()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in names or [name for name in case_names() if "made_of" not in read_case(name)]:
        record(name)


if __name__ == "__main__":
    main(sys.argv[1:])
