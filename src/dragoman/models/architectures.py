"""The architectures that load, by their names in config.json, and the modules that read them, which it does not import."""

from __future__ import annotations

TOWERS: dict[str, str] = {
    "Gemma3ForConditionalGeneration": "gemma.Gemma3",
    "Gemma4ForConditionalGeneration": "gemma.Gemma4",
    "Idefics3ForConditionalGeneration": "idefics3.Idefics3",
    "InternVLChatModel": "internvl.InternVLChat",
    "InternVLForConditionalGeneration": "internvl.InternVL",
    "Lfm2VlForConditionalGeneration": "lfm2_vl.Lfm2Vl",
    "LlavaForConditionalGeneration": "llava.Llava",
    "LlavaNextForConditionalGeneration": "llava.LlavaNext",
    "LlavaOnevisionForConditionalGeneration": "llava.LlavaOnevision",
    "Mistral3ForConditionalGeneration": "mistral3.Mistral3",
    "Qwen2_5_VLForConditionalGeneration": "qwen_vl.Qwen25VL",
    "Qwen2VLForConditionalGeneration": "qwen_vl.Qwen2VL",
    "Qwen3_5ForConditionalGeneration": "qwen_vl.Qwen3VL",
    "Qwen3_5MoeForConditionalGeneration": "qwen_vl.Qwen3VL",
    "Qwen3VLForConditionalGeneration": "qwen_vl.Qwen3VL",
    "Qwen3VLMoeForConditionalGeneration": "qwen_vl.Qwen3VL",
    "SmolVLMForConditionalGeneration": "idefics3.Idefics3",
}
"""Architectures whose pictures are understood, and what embeds them: classes in modules of `models.vision`."""

FAMILIES: dict[str, str] = {
    "AfmoeForCausalLM": "deepseek.Afmoe",
    "ApertusForCausalLM": "relatives.Apertus",
    "ArceeForCausalLM": "relatives.Arcee",
    "BambaForCausalLM": "hybrids.Bamba",
    "BloomForCausalLM": "gpt.Bloom",
    "CodeGenForCausalLM": "gpt.CodeGen",
    "Cohere2ForCausalLM": "relatives.Cohere2",
    "CohereForCausalLM": "relatives.Cohere",
    "DeepseekV2ForCausalLM": "deepseek.DeepseekV2",
    "DeepseekV3ForCausalLM": "deepseek.DeepseekV3",
    "Dots1ForCausalLM": "deepseek.Dots1",
    "Ernie4_5_MoeForCausalLM": "relatives.ErnieExperts",
    "Ernie4_5ForCausalLM": "relatives.Ernie45",
    "Exaone4ForCausalLM": "olmo.Exaone4",
    "ExaoneMoeForCausalLM": "olmo.ExaoneExperts",
    "ExaoneMoEForCausalLM": "olmo.ExaoneExperts",
    "FalconForCausalLM": "gpt.Falcon",
    "FalconH1ForCausalLM": "hybrids.FalconH1",
    "FalconMambaForCausalLM": "mamba.FalconMamba",
    "Gemma2ForCausalLM": "gemma.Gemma2",
    "Gemma3ForCausalLM": "gemma.Gemma3",
    "Gemma3nForCausalLM": "gemma.Gemma3n",
    "Gemma3nForConditionalGeneration": "vision.text_model",
    "Gemma4ForCausalLM": "gemma.Gemma4",
    "GemmaForCausalLM": "gemma.Gemma",
    "Glm4ForCausalLM": "glm.Glm4",
    "Glm4MoeForCausalLM": "glm.GlmExperts",
    "Glm4MoeLiteForCausalLM": "glm.GlmLite",
    "GlmForCausalLM": "glm.Glm",
    "GPT2LMHeadModel": "gpt.Gpt2",
    "GPTBigCodeForCausalLM": "gpt.GptBigCode",
    "GPTJForCausalLM": "gpt.GptJ",
    "GPTNeoForCausalLM": "gpt.GptNeo",
    "GPTNeoXForCausalLM": "gpt.GptNeoX",
    "GptOssForCausalLM": "gpt_oss.GptOss",
    "GraniteForCausalLM": "granite.Granite",
    "GraniteMoeForCausalLM": "granite.GraniteExperts",
    "GraniteMoeHybridForCausalLM": "granite.GraniteHybrid",
    "GraniteMoeSharedForCausalLM": "granite.GraniteSharedExperts",
    "HeliumForCausalLM": "relatives.Helium",
    "HunYuanDenseV1ForCausalLM": "hunyuan.HunyuanDense",
    "HunYuanMoEV1ForCausalLM": "hunyuan.HunyuanExperts",
    "InternLM2ForCausalLM": "relatives.InternLM2",
    "InternVLChatModel": "vision.internvl_text_model",
    "JambaForCausalLM": "hybrids.Jamba",
    "Jais2ForCausalLM": "relatives.Jais2",
    "Lfm2ForCausalLM": "lfm2.Lfm2",
    "Lfm2MoeForCausalLM": "lfm2.Lfm2Experts",
    "Llama4ForCausalLM": "llama4.Llama4",
    "Llama4ForConditionalGeneration": "vision.text_model",
    "LlamaForCausalLM": "llama.Llama",
    "MambaForCausalLM": "mamba.Mamba",
    "Mamba2ForCausalLM": "mamba.Mamba2",
    "MiniMaxM2ForCausalLM": "mistral.MiniMaxM2",
    "Ministral3ForCausalLM": "mistral.Ministral3",
    "Mistral4ForCausalLM": "mistral.Mistral4",
    "MistralForCausalLM": "mistral.Mistral",
    "MixtralForCausalLM": "mistral.Mixtral",
    "MPTForCausalLM": "gpt.Mpt",
    "MptForCausalLM": "gpt.Mpt",
    "NemotronHForCausalLM": "nemotron_h.NemotronH",
    "NemotronForCausalLM": "relatives.Nemotron",
    "Olmo2ForCausalLM": "olmo.Olmo2",
    "Olmo3ForCausalLM": "olmo.Olmo3",
    "OlmoeForCausalLM": "olmo.OlmoExperts",
    "OlmoForCausalLM": "olmo.Olmo",
    "OPTForCausalLM": "gpt.Opt",
    "Phi3ForCausalLM": "phi.Phi3",
    "PhiForCausalLM": "phi.Phi",
    "PhiMoEForCausalLM": "phi.PhiExperts",
    "PhimoeForCausalLM": "phi.PhiExperts",
    "Qwen2ForCausalLM": "qwen.Qwen2",
    "Qwen2MoeForCausalLM": "qwen.Qwen2Experts",
    "Qwen3_5ForCausalLM": "qwen.Qwen35",
    "Qwen3_5MoeForCausalLM": "qwen.Qwen35Experts",
    "Qwen3ForCausalLM": "qwen.Qwen3",
    "Qwen3MoeForCausalLM": "qwen.Qwen3Experts",
    "Qwen3NextForCausalLM": "qwen.Qwen3Next",
    "RecurrentGemmaForCausalLM": "hybrids.RecurrentGemma",
    "RWForCausalLM": "gpt.Falcon",
    "SeedOssForCausalLM": "relatives.SeedOss",
    "SmolLM3ForCausalLM": "relatives.SmolLM3",
    "SolarOpenForCausalLM": "glm.SolarOpen",
    "StableLmForCausalLM": "relatives.StableLm",
    "Starcoder2ForCausalLM": "mistral.Starcoder2",
    "Zamba2ForCausalLM": "hybrids.Zamba2",
}
FAMILIES |= {name: "vision.text_model" for name in TOWERS if name not in FAMILIES}
"""What reads each architecture that generates text: a class of a module of `families`, or a function that chooses one."""


def names_of(family: type) -> tuple[str, ...]:
    """The architectures that a class of `families` reads, the usual one first."""
    place = f"{family.__module__.rpartition('.')[2]}.{family.__name__}"
    return tuple(name for name, found in FAMILIES.items() if found == place)


ENCODERS: dict[str, str] = {
    "Bert": "bert.Bert",
    "Camembert": "bert.Roberta",
    "DistilBert": "bert.DistilBert",
    "Gte": "bert.Gte",
    "JinaEmbeddingsV3": "bert.Jina",
    "MPNet": "bert.MPNet",
    "ModernBert": "modernbert.ModernBert",
    "New": "bert.Gte",
    "NomicBert": "bert.Nomic",
    "Roberta": "bert.Roberta",
    "XLMRoberta": "bert.Roberta",
}
"""What an architecture's name begins with, and what reads it."""

# Heads of an architecture's name, that of a model that sees first.
_HEADS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "Model")
# Types whose spelling differs from the architecture's.
_OTHER_TYPES = {
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "RefinedWeb": "FalconForCausalLM",
    "RefinedWebModel": "FalconForCausalLM",
}


def architecture_of_type(model_type: str) -> str | None:
    """The architecture that a config.json means by its `model_type` alone."""
    heads = _HEADS[1:] if model_type.endswith("_text") else _HEADS
    wanted = _letters(model_type.removesuffix("_text"))
    known = (*FAMILIES, *(f"{name}Model" for name in ENCODERS))
    found = (
        name for head in heads for name in known if name.endswith(head) and _letters(name.removesuffix(head)) == wanted
    )
    return _OTHER_TYPES.get(model_type) or next(found, None)


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
