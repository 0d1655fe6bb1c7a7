"""The families of models that load, chosen by config.json.

Does: list and choose. Does not: read weights. Called by the loader and by estimates of a model's memory, on any
thread. A new family is a file here and a line in `FAMILIES`; a start imports only the one that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dragoman.models.config import Config, ModelError, shown
from dragoman.models.families.base import Family
from dragoman.models.sources.quantised import QUANTISATION_KEYS, read_layout
from dragoman.models.vision.base import VisionFamily

FAMILIES: dict[str, str] = {
    "AfmoeForCausalLM": "afmoe.Afmoe",
    "ApertusForCausalLM": "plain_mlp.Apertus",
    "ArceeForCausalLM": "plain_mlp.Arcee",
    "BambaForCausalLM": "bamba.Bamba",
    "BloomForCausalLM": "bloom.Bloom",
    "CodeGenForCausalLM": "gpt_j.CodeGen",
    "Cohere2ForCausalLM": "cohere.Cohere2",
    "CohereForCausalLM": "cohere.Cohere",
    "DeepseekV2ForCausalLM": "deepseek.DeepseekV2",
    "DeepseekV3ForCausalLM": "deepseek.DeepseekV3",
    "Dots1ForCausalLM": "dots1.Dots1",
    "Ernie4_5_MoeForCausalLM": "ernie_experts.ErnieExperts",
    "Ernie4_5ForCausalLM": "relatives.Ernie45",
    "Exaone4ForCausalLM": "exaone4.Exaone4",
    "ExaoneMoEForCausalLM": "exaone_experts.ExaoneExperts",
    "ExaoneMoeForCausalLM": "exaone_experts.ExaoneExperts",
    "FalconForCausalLM": "falcon.Falcon",
    "FalconH1ForCausalLM": "falcon_h1.FalconH1",
    "FalconMambaForCausalLM": "mamba.FalconMamba",
    "Gemma2ForCausalLM": "gemma.Gemma2",
    "Gemma3ForCausalLM": "gemma.Gemma3",
    "Gemma3ForConditionalGeneration": "vision.text_model",
    "Gemma3nForCausalLM": "gemma3n.Gemma3n",
    "Gemma3nForConditionalGeneration": "vision.text_model",
    "Gemma4ForCausalLM": "gemma4.Gemma4",
    "Gemma4ForConditionalGeneration": "vision.text_model",
    "GemmaForCausalLM": "gemma.Gemma",
    "Glm4ForCausalLM": "glm.Glm4",
    "Glm4MoeForCausalLM": "glm_experts.GlmExperts",
    "Glm4MoeLiteForCausalLM": "glm_experts.GlmLite",
    "GlmForCausalLM": "glm.Glm",
    "GPT2LMHeadModel": "gpt2.Gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode.GptBigCode",
    "GPTJForCausalLM": "gpt_j.GptJ",
    "GPTNeoForCausalLM": "gpt_neo.GptNeo",
    "GPTNeoXForCausalLM": "gpt_neox.GptNeoX",
    "GptOssForCausalLM": "gpt_oss.GptOss",
    "GraniteForCausalLM": "granite.Granite",
    "GraniteMoeForCausalLM": "granite_experts.GraniteExperts",
    "GraniteMoeHybridForCausalLM": "granite_hybrid.GraniteHybrid",
    "GraniteMoeSharedForCausalLM": "granite_experts.GraniteSharedExperts",
    "HeliumForCausalLM": "helium.Helium",
    "HunYuanDenseV1ForCausalLM": "hunyuan.HunyuanDense",
    "HunYuanMoEV1ForCausalLM": "hunyuan_experts.HunyuanExperts",
    "Idefics3ForConditionalGeneration": "vision.text_model",
    "InternLM2ForCausalLM": "internlm2.InternLM2",
    "InternVLChatModel": "vision.internvl_text_model",
    "InternVLForConditionalGeneration": "vision.text_model",
    "JambaForCausalLM": "jamba.Jamba",
    "Jais2ForCausalLM": "plain_mlp.Jais2",
    "Lfm2ForCausalLM": "lfm2.Lfm2",
    "Lfm2MoeForCausalLM": "lfm2_experts.Lfm2Experts",
    "Llama4ForCausalLM": "llama4.Llama4",
    "Lfm2VlForConditionalGeneration": "vision.text_model",
    "Llama4ForConditionalGeneration": "vision.text_model",
    "LlamaForCausalLM": "llama.Llama",
    "LlavaForConditionalGeneration": "vision.text_model",
    "LlavaNextForConditionalGeneration": "vision.text_model",
    "LlavaOnevisionForConditionalGeneration": "vision.text_model",
    "MambaForCausalLM": "mamba.Mamba",
    "Mamba2ForCausalLM": "mamba2.Mamba2",
    "MiniMaxM2ForCausalLM": "minimax.MiniMaxM2",
    "Ministral3ForCausalLM": "mistral4.Ministral3",
    "Mistral3ForConditionalGeneration": "vision.text_model",
    "Mistral4ForCausalLM": "mistral4.Mistral4",
    "MistralForCausalLM": "mistral.Mistral",
    "MixtralForCausalLM": "mixtral.Mixtral",
    "MPTForCausalLM": "mpt.Mpt",
    "MptForCausalLM": "mpt.Mpt",
    "NemotronHForCausalLM": "nemotron_h.NemotronH",
    "NemotronForCausalLM": "plain_mlp.Nemotron",
    "Olmo2ForCausalLM": "olmo.Olmo2",
    "Olmo3ForCausalLM": "olmo.Olmo3",
    "OlmoeForCausalLM": "olmo_experts.OlmoExperts",
    "OlmoForCausalLM": "olmo.Olmo",
    "OPTForCausalLM": "opt.Opt",
    "Phi3ForCausalLM": "phi3.Phi3",
    "PhiForCausalLM": "phi.Phi",
    "PhiMoEForCausalLM": "phi_experts.PhiExperts",
    "PhimoeForCausalLM": "phi_experts.PhiExperts",
    "Qwen2_5_VLForConditionalGeneration": "vision.text_model",
    "Qwen2ForCausalLM": "qwen.Qwen2",
    "Qwen2MoeForCausalLM": "qwen_experts.Qwen2Experts",
    "Qwen2VLForConditionalGeneration": "vision.text_model",
    "Qwen3_5ForCausalLM": "qwen3_5.Qwen35",
    "Qwen3_5ForConditionalGeneration": "vision.text_model",
    "Qwen3_5MoeForCausalLM": "qwen_next.Qwen35Experts",
    "Qwen3_5MoeForConditionalGeneration": "vision.text_model",
    "Qwen3ForCausalLM": "qwen.Qwen3",
    "Qwen3MoeForCausalLM": "qwen_experts.Qwen3Experts",
    "Qwen3NextForCausalLM": "qwen_next.Qwen3Next",
    "Qwen3VLForConditionalGeneration": "vision.text_model",
    "Qwen3VLMoeForConditionalGeneration": "vision.text_model",
    "RecurrentGemmaForCausalLM": "recurrent_gemma.RecurrentGemma",
    "RWForCausalLM": "falcon.Falcon",
    "SeedOssForCausalLM": "relatives.SeedOss",
    "SmolLM3ForCausalLM": "smollm3.SmolLM3",
    "SmolVLMForConditionalGeneration": "vision.text_model",
    "SolarOpenForCausalLM": "glm_experts.SolarOpen",
    "StableLmForCausalLM": "stablelm.StableLm",
    "Starcoder2ForCausalLM": "starcoder2.Starcoder2",
    "Zamba2ForCausalLM": "zamba2.Zamba2",
}
"""Architectures in config.json, and what reads them: a class of a module here, or a function that chooses one."""


def read_model(raw_config: dict[str, Any], *, sees: bool = False) -> Family:
    """The model that a config.json describes; `sees`: with its tower, if it has one and we know it.

    Raises: ModelError naming the architecture and the supported ones, or a key that is missing, wrong or not known.
    """
    config = Config(raw_config)
    names = config.value("architectures")
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    served = next((name for name in known if name in FAMILIES), None)
    if served is None:
        supported = ", ".join(FAMILIES)
        raise ModelError(
            f"architectures {shown(names)} are not supported by the built-in engine (--engine vllm has others: "
            f"docs/vllm.md); supported: {supported}"
        )
    family = find_family(served)
    config.skip(*QUANTISATION_KEYS)
    read_layout(raw_config, getattr(family, "packings", ()))
    model = family(config)
    tower = _find_tower(served) if sees else None
    if tower is not None:
        try:
            model.see(tower(config, model.facts.hidden_size))
        except ModelError as error:
            raise ModelError(f"{error}; limit_mm_per_prompt image=0 serves its texts alone") from error
    config.refuse_unread()
    return model


def has_tower(raw_config: dict[str, Any]) -> bool:
    """True if a config.json that `read_model` reads is that of a model whose pictures are understood."""
    names = [name for name in raw_config["architectures"] if name in FAMILIES]
    return _find_tower(names[0]) is not None


def _find_tower(architecture: str) -> type[VisionFamily] | None:
    if not FAMILIES[architecture].startswith("vision."):
        return None
    from dragoman.models.families.vision import find_tower  # brings a dozen families along

    return find_tower(architecture)


def find_family(architecture: str) -> Callable[[Config], Family]:
    """The constructor of an architecture in `FAMILIES`, which reads its config."""
    module, _, name = FAMILIES[architecture].partition(".")
    family: Callable[[Config], Family] = getattr(import_module(f"{__name__}.{module}"), name)
    return family
