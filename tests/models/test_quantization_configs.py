"""The quantization_config of checkpoints that people have is understood, and what is not followed is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.models import ModelError
from dragoman.models.families import read_model
from dragoman.models.sources.quantised import find_layout, read_layout
from tests.support.family_checkpoint import read_case

Described = dict[str, Any]

AWQ: Described = {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}
GPTQ: Described = {"bits": 4, "group_size": 128, "quant_method": "gptq", "sym": True, "desc_act": False}
FP8: Described = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}


def compressed(weights: Described, form: str = "pack-quantized", **more: Any) -> Described:
    """As llm-compressor writes it."""
    group = {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {"config_groups": {"group_0": group}, "format": form, "quant_method": "compressed-tensors", **more}


W4A16: Described = {
    "actorder": "group",
    "block_structure": None,
    "dynamic": False,
    "group_size": 128,
    "num_bits": 4,
    "observer": "minmax",
    "observer_kwargs": {},
    "strategy": "group",
    "symmetric": True,
    "type": "int",
}
W8: Described = W4A16 | {"num_bits": 8, "group_size": None, "strategy": "channel", "actorder": None}
KV_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}

# With the keys that the tools write which made them.
REAL: dict[str, tuple[Described, str]] = {
    "AutoAWQ": (AWQ | {"modules_to_not_convert": None}, "AWQ int4"),
    "AutoAWQ, of a model that sees": (AWQ | {"modules_to_not_convert": ["visual"]}, "AWQ int4"),
    "AutoAWQ by transformers": (
        AWQ
        | {
            "backend": "autoawq",
            "do_fuse": False,
            "exllama_config": None,
            "fuse_max_seq_len": None,
            "modules_to_fuse": None,
        },
        "AWQ int4",
    ),
    "AutoGPTQ": (
        GPTQ
        | {"damp_percent": 0.1, "desc_act": True, "true_sequential": True, "model_file_base_name": "model"}
        | {"model_name_or_path": None, "static_groups": False, "is_marlin_format": False},
        "GPTQ int4",
    ),
    "AutoGPTQ by transformers": (
        GPTQ
        | {"batch_size": 1, "block_name_to_quantize": None, "cache_block_outputs": True, "damp_percent": 0.01}
        | {"dataset": None, "exllama_config": {"version": 1}, "max_input_length": None, "model_seqlen": None}
        | {"module_name_preceding_first_block": None, "modules_in_block_to_quantize": None, "pad_token_id": None}
        | {"tokenizer": None, "true_sequential": True, "use_cuda_fp16": False, "use_exllama": True, "bits": 8},
        "GPTQ int8",
    ),
    "GPTQModel": (
        GPTQ
        | {
            "checkpoint_format": "gptq",
            "dynamic": None,
            "lm_head": False,
            "pack_dtype": "int32",
            "static_groups": False,
        }
        | {"meta": {"damp_auto_increment": 0.0015, "quantizer": ["gptqmodel:1.5.0"]}, "true_sequential": True},
        "GPTQ int4",
    ),
    "AutoRound as GPTQ": (
        GPTQ
        | {"autoround_version": "0.4.0", "block_name_to_quantize": "model.layers", "damp_percent": 0.01, "iters": 200}
        | {"data_type": "int", "enable_quanted_input": True, "low_gpu_mem_usage": True, "lr": 0.005, "minmax_lr": 0.005}
        | {"nsamples": 512, "provider": "auto-round", "seqlen": 2048, "true_sequential": False, "amp": True}
        | {
            "batch_size": 8,
            "enable_minmax_tuning": True,
            "gradient_accumulate_steps": 1,
            "scale_dtype": "torch.float16",
        },
        "GPTQ int4",
    ),
    "AutoRound": (
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 128}
        | {"sym": True, "autoround_version": "0.6.0", "data_type": "int", "extra_config": {"lm_head": {"bits": 16}}},
        "GPTQ int4",
    ),
    "AutoRound as AWQ": (
        {
            "quant_method": "intel/auto-round",
            "backend": "auto_round:auto_awq",
            "bits": 4,
            "group_size": 128,
            "sym": False,
        },
        "AWQ int4",
    ),
    "DeepSeek": (FP8 | {"scale_fmt": "ue8m0"}, "fp8"),
    "Qwen": (FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}, "fp8"),
    "vLLM": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "fp8"),
    "Mistral": (FP8 | {"activation_scheme": "static", "dequantize": False, "weight_block_size": None}, "fp8"),
    "Llama": ({"activation_scale_ub": 1200.0, "modules_to_not_convert": [], "quant_method": "fbgemm_fp8"}, "fp8"),
    "llm-compressor, 4 bits": (
        compressed(W4A16, global_compression_ratio=1.9, ignore=["lm_head"], kv_cache_scheme=None)
        | {"quantization_status": "compressed", "sparsity_config": {}, "transform_config": {}, "version": "0.11.0"},
        "compressed-tensors int4",
    ),
    "llm-compressor, 8 bits": (
        compressed(
            W8, "int-quantized", quantization_status="frozen", sparsity_config={"format": "dense", "ignore": []}
        ),
        "compressed-tensors int8",
    ),
    "llm-compressor, fp8": (
        compressed(W8 | {"type": "float"}, "float-quantized", kv_cache_scheme=KV_CACHE),
        "compressed-tensors fp8",
    ),
    "llm-compressor, before it was called so": (
        {"quant_method": "sparseml", "quantization_config": compressed(W8), "sparsity_config": {"format": "dense"}},
        "compressed-tensors int8",
    ),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "text_config", "llm_config"])
def test_what_tools_write_is_understood(name: str, place: str) -> None:
    described, label = REAL[name]
    raw = {place: {"quantization_config": described} if place.endswith(("text_config", "llm_config")) else described}
    layout = read_layout(raw)
    assert layout is not None
    assert layout.label == label


@pytest.mark.parametrize("name", REAL)
def test_families_take_it(name: str) -> None:
    config = read_case("llama_default")["config"]
    assert read_model(config | {"quantization_config": REAL[name][0]}).facts == read_model(config).facts
    seeing = read_case("llava")["config"]
    text = seeing["text_config"] | {"quantization_config": REAL[name][0]}
    assert read_model(seeing | {"text_config": text}).facts == read_model(seeing).facts


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            '"bitsandbytes" is not supported .*: .* use the checkpoint',
        ),
        ({"load_in_8bit": True}, '"bitsandbytes" is not supported'),
        *(
            (
                {"quant_method": method},
                f'"{method}" is not supported .supported: awq, .*: use the checkpoint that is not',
            )
            for method in ("hqq", "aqlm", "quip", "exl2", "quark", "torchao", "eetq")
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, '"modelopt" is not supported'),
        ({}, '"unknown" is not supported'),
        (AWQ | {"bits": 3}, "bits is 3, allowed: 4"),
        (AWQ | {"version": "gemv"}, 'version is "gemv", allowed: "gemm"'),
        (AWQ | {"backend": "llm-awq"}, 'backend is "llm-awq", allowed: "autoawq"'),
        (AWQ | {"gain": 2}, r"unknown keys .*: gain \(2\)"),
        (AWQ | {"group_size": 0}, "group_size is 0, allowed: an integer of at least 1"),
        (GPTQ | {"bits": 3}, "bits is 3, allowed: 4 or 8"),
        (GPTQ | {"bits": None}, "has no bits"),
        (GPTQ | {"checkpoint_format": "marlin"}, 'checkpoint_format is "marlin", allowed: one of gptq, gptq_v2'),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format is true, allowed: false"),
        (GPTQ | {"twist": "a\nb"}, r"unknown keys .*: twist"),
        (
            {"quant_method": "auto-round", "packing_format": "auto_round:fp8"},
            "packing_format is .*, allowed: auto_round:auto",
        ),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size is .128., allowed: a list of 2 numbers of at least 1"),
        (FP8 | {"weight_block_size": [1.5, 128]}, "weight_block_size is .1.5, 128., allowed: whole numbers"),
        (FP8 | {"bits": 8}, r"unknown keys .*: bits \(8\)"),
        (compressed(W4A16, "nvfp4-pack-quantized"), 'format is "nvfp4-pack-quantized", allowed: one of pack-quantized'),
        (compressed(W4A16 | {"num_bits": 2}), "num_bits is 2, allowed: 4 or 8"),
        (compressed(W4A16 | {"num_bits": 4, "type": "float"}), "num_bits is 4, allowed: 8"),
        (compressed(W4A16 | {"strategy": "tensor_group"}), 'strategy is "tensor_group", allowed: one of tensor'),
        (compressed(W4A16 | {"wings": 2}), r"weights has unknown keys .*: wings \(2\)"),
        (compressed(W4A16 | {"dynamic": True}), "dynamic is true, allowed: false"),
        (
            compressed(W4A16, sparsity_config={"format": "sparse-24-bitmask"}),
            "sparsity_config is .*, allowed: one of format",
        ),
        (
            compressed(W4A16, transform_config={"config_groups": {"u": {}}}),
            "transform_config is .*, allowed: one without",
        ),
        (compressed(W4A16) | {"config_groups": {}}, "config_groups is {}, allowed: at least one group"),
        (compressed(W4A16) | {"config_groups": {"g": ["Linear"]}}, "config_groups g is .*, allowed: an object"),
        (
            compressed(W4A16) | {"config_groups": {"g": {"targets": ["Linear"]}}},
            "g is .*, allowed: an object with weights",
        ),
        (compressed(W4A16, quantization_status="calibration"), 'quantization_status is "calibration", allowed: one of'),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_not_followed_is_refused_by_name(described: Described, words: str) -> None:
    config = read_case("llama_default")["config"]
    with pytest.raises(ModelError, match=words):
        read_model(config | {"quantization_config": described})


@pytest.mark.parametrize(
    ("name", "described", "label"),
    [
        ("quantize_config.json", {key: value for key, value in GPTQ.items() if key != "quant_method"}, "GPTQ int4"),
        ("quant_config.json", {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}, "AWQ int4"),
    ],
)
def test_files_that_the_first_tools_wrote_are_read(name: str, described: Described, label: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text(json.dumps(described))
    layout, file = find_layout(tmp_path)
    assert layout is not None
    assert layout.label == label
    assert file == tmp_path / name
    (tmp_path / name).write_text(json.dumps(described | {"gain": 2}))
    with pytest.raises(ModelError, match=rf"{name} has unknown keys .*: gain"):
        find_layout(tmp_path)
