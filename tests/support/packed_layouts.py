"""The layouts of quantised checkpoints that are tested, each as a packer and the quantization_config that goes with it.

Does: list them, with a model to pack and logits to compare. Does not: pack (`packers` does), or judge. Used by the tests
of quantised checkpoints and by scripts/models_page.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import BLOCK_SIZE, ModelOptions, load_model
from dragoman.models.storage.constants import WeightType
from tests.support.forward import forward_batch
from tests.support.packers import Packer, awq, fp8, gptq, int_quantized, pack_quantized
from tests.support.random_checkpoint import RandomShape

Array = np.ndarray[Any, Any]

LLAMA = RandomShape("packed", seed=7, hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=256)

AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """A quantization_config as llm-compressor writes it."""
    described = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
        "dynamic": False,
    }
    described |= {"actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}, **weights}
    group = {"weights": described, "input_activations": None, "output_activations": None, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": 1.5,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.10.2",
    }


CHANNEL = {"strategy": "channel", "group_size": None}
BLOCKS = {"type": "float", "num_bits": 8, "strategy": "block", "group_size": None, "block_structure": [64, 32]}

LAYOUTS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "awq": (awq(), AWQ),
    "awq of whole rows": (awq(-1), AWQ | {"group_size": -1}),
    "awq, symmetric": (awq(symmetric=True), AWQ | {"zero_point": False}),
    "gptq": (gptq(), GPTQ),
    "gptq, not symmetric": (gptq(symmetric=False), GPTQ | {"sym": False}),
    "gptq, any order": (gptq(act_order=True), GPTQ | {"desc_act": True}),
    "gptq of 8 bits, any order": (
        gptq(8, act_order=True, symmetric=False),
        GPTQ | {"bits": 8, "desc_act": True, "sym": False},
    ),
    "gptq of whole rows": (gptq(8, -1), GPTQ | {"bits": 8, "group_size": -1}),
    "gptq_v2": (gptq(symmetric=False, is_v2=True), GPTQ | {"checkpoint_format": "gptq_v2", "sym": False}),
    "w4a16": (pack_quantized(), compressed("pack-quantized")),
    "w4a16, not symmetric": (pack_quantized(symmetric=False), compressed("pack-quantized", symmetric=False)),
    "w4a16, any order": (pack_quantized(act_order=True), compressed("pack-quantized", actorder="group")),
    "w4a16 of whole rows": (pack_quantized(group=-1), compressed("pack-quantized", **CHANNEL)),
    "w8a16": (pack_quantized(8, -1), compressed("pack-quantized", num_bits=8, **CHANNEL)),
    "w8a16, not symmetric": (
        pack_quantized(8, symmetric=False),
        compressed("pack-quantized", num_bits=8, symmetric=False),
    ),
    "w8a8": (int_quantized(), compressed("int-quantized", num_bits=8, **CHANNEL)),
    "w8a8, not symmetric": (
        int_quantized(symmetric=False),
        compressed("int-quantized", num_bits=8, symmetric=False, **CHANNEL),
    ),
    "w8a8 with one scale": (
        int_quantized(per_tensor=True),
        compressed("int-quantized", num_bits=8, strategy="tensor", group_size=None),
    ),
    "fp8 in blocks": (fp8((128, 128)), FP8),
    "fp8 in blocks that rows do not fill": (fp8((48, 80)), FP8 | {"weight_block_size": [48, 80]}),
    "fp8 with one scale": (fp8("tensor", "_scale"), {"quant_method": "fp8", "activation_scheme": "static"}),
    "e5m2": (fp8("row", "_scale", ml_dtypes.float8_e5m2), {"quant_method": "fp8"}),
    "fbgemm": (fp8("row", "_scale"), {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
    "fp8 of compressed-tensors": (
        fp8("row", "_scale"),
        compressed("float-quantized", type="float", num_bits=8, **CHANNEL),
    ),
    "fp8 of compressed-tensors in blocks": (fp8((64, 32), "_scale"), compressed("float-quantized", **BLOCKS)),
}

# With groups that fit the widths of the recorded families.
SMALL_GROUPS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "awq 16": (awq(16), AWQ | {"group_size": 16}),
    "gptq 16": (
        gptq(4, 16, act_order=True, symmetric=False),
        GPTQ | {"group_size": 16, "desc_act": True, "sym": False},
    ),
}


def prompt_logits(directory: Path, weight_type: WeightType, num_tokens: int = 40) -> Array:
    """Of a prompt of random tokens."""
    loaded = load_model(directory, ModelOptions(weight_type))
    runner = OpenVinoRunner(loaded, num_blocks=-(-num_tokens // BLOCK_SIZE))
    token_ids = np.random.RandomState(5).randint(0, 300, num_tokens).tolist()
    row = (token_ids, 0, range(-(-num_tokens // BLOCK_SIZE)))
    logits = runner.forward(forward_batch([row], logit_rows=range(num_tokens))).copy()
    runner.close()
    return logits


def difference(found: Array, expected: Array) -> float:
    """Relative, root mean square."""
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
