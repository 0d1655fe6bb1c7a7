"""Adds to config.json what no key of a GGUF file says of models whose layers scan or convolve."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.gguf.files import GgufModel
from dragoman.gguf.values import Config, has_part, head_counts, layer_counts, layer_shape


def _mamba(model: GgufModel, config: Config) -> None:
    config["expand"] = _inner_size(model) / max(config.get("hidden_size", 1), 1)


def _mamba2(model: GgufModel, config: Config) -> None:
    _mamba(model, config)
    config["head_dim"] = _head_size(model)


def _nemotron_h(model: GgufModel, config: Config) -> None:
    num_layers, config["num_nextn_predict_layers"] = layer_counts(model)
    kinds = {"ssm_in": "mamba", "attn_q": "attention", "ffn_gate_inp": "moe", "ffn_up": "mlp"}
    layers = range(min(num_layers, len(model.tensors)))
    found = (
        next((kind for part, kind in kinds.items() if f"blk.{index}.{part}.weight" in model.tensors), "no")
        for index in layers
    )
    config["layers_block_type"] = list(found)
    config["mamba_head_dim"] = _head_size(model)
    config["intermediate_size"] = layer_shape(model, "ffn_up.weight")[0] if has_part(model, "ffn_up.") else 1


def _jamba(model: GgufModel, config: Config) -> None:
    name = model.architecture
    config["num_key_value_heads"] = head_counts(model)[1]
    attends = _attending(model)
    num_layers = len(attends)
    routes = [f"blk.{index}.ffn_gate_inp.weight" in model.tensors for index in range(num_layers)]
    for kind, flags in (("attn", attends), ("expert", routes)):
        places = [index for index, flag in enumerate(flags) if flag]
        first = places[0] if places else num_layers  # past the last layer: none
        period = places[1] - first if len(places) > 1 else num_layers + 1
        if [index % period == first for index in range(num_layers)] != flags:
            key = f"{name}.attention.head_count_kv" if kind == "attn" else f"{name}.expert_count"
            raise model.metadata.error(key, "layers that come again after the same number of others")
        config[f"{kind}_layer_period"], config[f"{kind}_layer_offset"] = period, first
    if not any(routes):
        config["num_experts"] = 1
    config["mamba_expand"] = _inner_size(model) / max(config.get("hidden_size", 1), 1)


def _falcon_h1(model: GgufModel, config: Config) -> None:
    config["mamba_d_head"] = _head_size(model)


def _attending_hybrid(model: GgufModel, config: Config) -> list[bool]:
    """Adds what Granite 4 and Bamba have in common; returns for each layer True if it attends."""
    config["mamba_d_head"] = _head_size(model)
    config["mamba_expand"] = _inner_size(model) / max(config.get("hidden_size", 1), 1)
    config["num_key_value_heads"] = head_counts(model)[1]
    return _attending(model)


def _granite_hybrid(model: GgufModel, config: Config) -> None:
    attends = _attending_hybrid(model, config)
    config["layer_types"] = ["attention" if attending else "mamba" for attending in attends]


def _bamba(model: GgufModel, config: Config) -> None:
    attends = _attending_hybrid(model, config)
    config["attn_layer_indices"] = [index for index, attending in enumerate(attends) if attending]


def _lfm2(model: GgufModel, config: Config) -> None:
    counts = model.metadata.listed(f"{model.architecture}.attention.head_count_kv", int)
    config["full_attn_idxs"] = [index for index, count in enumerate(counts) if count]
    config["num_key_value_heads"] = head_counts(model)[1]


def _inner_size(model: GgufModel) -> int:
    return model.metadata.count(f"{model.architecture}.ssm.inner_size")


def _head_size(model: GgufModel) -> int:
    name, values, width = model.architecture, model.metadata, _inner_size(model)
    heads = values.count(f"{name}.ssm.time_step_rank")
    if not heads or not width or width % heads:
        raise values.error(f"{name}.ssm.time_step_rank", f"what divides {name}.ssm.inner_size, {width}")
    return width // heads


def _attending(model: GgufModel) -> list[bool]:
    """For each layer: True if it attends. Raises: ModelError if that is not said of all."""
    key, num_layers = f"{model.architecture}.attention.head_count_kv", layer_counts(model)[0]
    counts = model.metadata.listed(key, int)
    if len(counts) < num_layers:
        raise model.metadata.error(key, f"an integer for each of {num_layers} layers")
    return [count > 0 for count in counts[:num_layers]]


RECURRENT_EXTRAS: Mapping[str, Callable[[GgufModel, Config], None]] = {
    "BambaForCausalLM": _bamba,
    "FalconH1ForCausalLM": _falcon_h1,
    "FalconMambaForCausalLM": _mamba,
    "GraniteMoeHybridForCausalLM": _granite_hybrid,
    "JambaForCausalLM": _jamba,
    "Lfm2ForCausalLM": _lfm2,
    "Lfm2MoeForCausalLM": _lfm2,
    "Mamba2ForCausalLM": _mamba2,
    "MambaForCausalLM": _mamba,
    "NemotronHForCausalLM": _nemotron_h,
}
"""By the architecture in config.json."""
