"""Writes the small checkpoints of tests/models/families: a model family's config.json and tensor layout, random values.

Does: makes the same bytes for the same case on every machine, with numpy and safetensors alone. Does not: know any
family; what a case's file says is all there is. Used by the tests of families and by
scripts/record_family_references.py, which must see identical weights.

A case is tests/models/families/<case>.json with these keys:
    config         config.json as checkpoints of the family have it, with tiny sizes
    tensors        name -> shape, as the family's files name them (recorded)
    dtype          how values are stored: "F32" (the default), "F16" or "BF16"
    dtypes         pattern of names -> dtype, for tensors that are stored otherwise ("U8" for packed bits)
    norm_center    what the weights of norms vary around: 1 (the default), or 0 where the model adds one
    values         pattern of names -> {"center", "std"} or {"low", "high"}, where the rules below do not fit
    extra_tensors  name -> shape of tensors that real files hold and nobody reads
    num_prompt_ids prompts use the ids below it (the default is the vocabulary); ids of images lie above
    unused         patterns of tensors that text alone does not need
    recorded_layout  false where `tensors` was written by hand
    made_of        the case whose numbers it has in other layouts, with all keys that it does not say itself
                   (tests/support/repacked_checkpoint.py)
"""

from __future__ import annotations

import json
import pickle
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import save_file

from dragoman.models.families import read_model
from tests.support.repacked_checkpoint import LAYOUTS

Array = np.ndarray[Any, Any]
Case = dict[str, Any]

FAMILIES = Path(__file__).parents[1] / "models" / "families"

_EMBEDDINGS = ("embed", "wte", "wpe")  # in the names of token and position tables
_NORMS = ("norm", "ln_", ".ln", "layer_norm")
_QUERY_KEY_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm")
_ATTENTION_INPUTS = ("q_proj", "k_proj", "qkv", "c_attn", "query", "Wqkv", "kv_b", "q_b")


def case_names() -> list[str]:
    """Every recorded case, sorted."""
    return sorted(path.stem for path in FAMILIES.glob("*.json"))


def first_case_names() -> list[str]:
    """A case of each family that loads, sorted."""
    by_family = {type(read_model(read_case(name)["config"])): name for name in reversed(case_names())}
    return sorted(by_family.values())


def read_case(name: str) -> Case:
    """What tests/models/families/<name>.json says."""
    return complete_case(FAMILIES, name)


def complete_case(folder: Path, name: str) -> Case:
    """What a case's file says, and what the case says that it is made of; that one stands in `source`."""
    case: Case = pickle.loads(_pickled_case(folder, name))
    return case


@cache  # tests ask again for each of many values, and change what they get
def _pickled_case(folder: Path, name: str) -> bytes:
    case: Case = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    if "made_of" not in case:
        return pickle.dumps(case)
    source = complete_case(folder, case["made_of"])
    case = source | case | {"source": source}
    shapes = {tensor: list(values.shape) for tensor, values in case_tensors(name, case).items()}
    return pickle.dumps(case | {"tensors": shapes, "extra_tensors": {}})


def recorded_name(folder: Path, name: str) -> str:
    """The case that was recorded: that one, or the one that it is made of."""
    case: Case = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return str(case.get("made_of", name))


def write_case(name: str, case: Case, directory: Path) -> Path:
    """Write config.json and model.safetensors of `case`; returns `directory`. `name` decides the random values."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(case["config"], indent=2), encoding="utf-8")
    save_file(case_tensors(name, case), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def case_tensors(name: str, case: Case) -> dict[str, Array]:
    """The random values of a case's tensors."""
    if "made_of" in case:
        found = case_tensors(case["made_of"], case["source"])
        for layout in case["layouts"]:
            found = LAYOUTS[layout](found)
        return found | {tensor: np.zeros(shape, np.float32) for tensor, shape in case.get("extra_tensors", {}).items()}
    shapes = {**case["tensors"], **case.get("extra_tensors", {})}
    return {tensor: _stored(name, case, tensor, shape) for tensor, shape in shapes.items()}


def write_family_checkpoint(name: str, directory: Path) -> Path:
    """Write the recorded case `name`; returns `directory`."""
    return write_case(name, read_case(name), directory)


def _stored(case_name: str, case: Case, tensor: str, shape: list[int]) -> Array:
    stream = np.random.RandomState(crc32(f"{case_name}/{tensor}".encode()))  # this stream is frozen for ever
    dtype = _first_match(case.get("dtypes", {}), tensor) or case.get("dtype", "F32")
    rule = _first_match(case.get("values", {}), tensor) or _rule(tensor, shape, case.get("norm_center", 1))
    if "low" in rule:
        return stream.randint(int(rule["low"]), int(rule["high"]), size=shape).astype(_numpy_type(dtype))
    values = rule.get("center", 0.0) + rule["std"] * stream.standard_normal(shape)
    return np.asarray(values, dtype=np.float32).astype(_numpy_type(dtype))


def _first_match(patterns: dict[str, Any], tensor: str) -> Any:
    return next((value for pattern, value in patterns.items() if fnmatchcase(tensor, pattern)), None)


def _rule(tensor: str, shape: list[int], norm_center: float) -> dict[str, float]:
    """Values that keep activations near one, attention far from uniform and logits at about two."""
    if tensor.endswith("sinks"):
        return {"std": 1.0}
    if tensor.endswith("bias"):
        return {"std": 0.2}
    if any(part in tensor for part in _QUERY_KEY_NORMS):
        return {"center": norm_center + 0.5, "std": 0.2}  # larger queries and keys: sharper attention
    if len(shape) == 1:
        return {"center": norm_center if any(part in tensor for part in _NORMS) else 0.0, "std": 0.2}
    if any(part in tensor for part in _EMBEDDINGS):
        return {"std": 2.0 / shape[-1] ** 0.5}
    gain = 1.5 if any(part in tensor for part in _ATTENTION_INPUTS) else 1.0
    if "lm_head" in tensor:
        gain = 2.0
    return {"std": gain / shape[-1] ** 0.5}


def _numpy_type(dtype: str) -> Any:
    if dtype == "BF16":
        import ml_dtypes  # here, so that cases in other types need numpy alone

        return ml_dtypes.bfloat16
    return {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I32": np.int32}[dtype]
