"""The families of models that load, and which of them a config.json means.

Does: list and choose. Does not: read weights. Called by the loader and by whoever foretells what a model will take, on any
thread. A new family is a file here and a name in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.models.config import Config, ModelError, shown
from dragoman.models.families import vision
from dragoman.models.families.base import Family
from dragoman.models.families.bloom import Bloom
from dragoman.models.families.cohere import Cohere, Cohere2
from dragoman.models.families.deepseek import DeepseekV2, DeepseekV3
from dragoman.models.families.ernie_experts import ErnieExperts
from dragoman.models.families.exaone4 import Exaone4
from dragoman.models.families.falcon import Falcon
from dragoman.models.families.gemma import Gemma, Gemma2, Gemma3
from dragoman.models.families.glm import Glm, Glm4
from dragoman.models.families.glm_experts import GlmExperts
from dragoman.models.families.gpt2 import Gpt2
from dragoman.models.families.gpt_bigcode import GptBigCode
from dragoman.models.families.gpt_j import GptJ
from dragoman.models.families.gpt_neox import GptNeoX
from dragoman.models.families.gpt_oss import GptOss
from dragoman.models.families.granite import Granite, Granite4Dense
from dragoman.models.families.granite_experts import GraniteExperts, GraniteSharedExperts
from dragoman.models.families.hunyuan import HunyuanDense
from dragoman.models.families.lfm2 import Lfm2
from dragoman.models.families.llama import Llama
from dragoman.models.families.mistral import Mistral
from dragoman.models.families.mixtral import Mixtral
from dragoman.models.families.mpt import Mpt
from dragoman.models.families.olmo import Olmo2, Olmo3
from dragoman.models.families.olmo_experts import OlmoExperts
from dragoman.models.families.opt import Opt
from dragoman.models.families.phi import Phi
from dragoman.models.families.phi3 import Phi3
from dragoman.models.families.qwen import Qwen2, Qwen3
from dragoman.models.families.qwen3_5 import Qwen35
from dragoman.models.families.qwen_experts import Qwen2Experts, Qwen3Experts
from dragoman.models.families.refused import REFUSED
from dragoman.models.families.relatives import Ernie45, SeedOss
from dragoman.models.families.smollm3 import SmolLM3
from dragoman.models.families.stablelm import StableLm
from dragoman.models.families.starcoder2 import Starcoder2

FAMILIES: tuple[type[Family], ...] = (
    Bloom,
    Cohere,
    Cohere2,
    DeepseekV2,
    DeepseekV3,
    Ernie45,
    ErnieExperts,
    Exaone4,
    Falcon,
    Gemma,
    Gemma2,
    Gemma3,
    Glm,
    Glm4,
    GlmExperts,
    Gpt2,
    GptBigCode,
    GptJ,
    GptNeoX,
    GptOss,
    Granite,
    Granite4Dense,
    GraniteExperts,
    GraniteSharedExperts,
    HunyuanDense,
    Lfm2,
    Llama,
    Mistral,
    Mixtral,
    Mpt,
    Olmo2,
    Olmo3,
    OlmoExperts,
    Opt,
    Phi,
    Phi3,
    Qwen2,
    Qwen2Experts,
    Qwen3,
    Qwen3Experts,
    Qwen35,
    SeedOss,
    SmolLM3,
    StableLm,
    Starcoder2,
)

_BY_ARCHITECTURE: dict[str, Callable[[Config], Family]] = {
    **{name: family for family in FAMILIES for name in family.architectures},
    **dict.fromkeys(vision.ARCHITECTURES, vision.text_model),
}


def read_model(raw_config: dict[str, Any]) -> Family:
    """The model that a config.json describes.

    Raises: ModelError naming the architecture and the supported ones, or a key that is missing, wrong or not known.
    """
    config = Config(raw_config)
    names = config.value("architectures")
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    family = next((_BY_ARCHITECTURE[name] for name in known if name in _BY_ARCHITECTURE), None)
    if family is None:
        refused = next((name for name in known if name in REFUSED), None)
        if refused is not None:
            raise ModelError(f"architecture {refused} is not supported: {REFUSED[refused]}")
        supported = ", ".join(sorted(_BY_ARCHITECTURE))
        raise ModelError(f"architectures {shown(names)} are not supported; supported: {supported}")
    _refuse_packed(config, getattr(family, "packings", ()))
    model = family(config)
    config.refuse_unread()
    return model


def _refuse_packed(config: Config, known: tuple[str, ...]) -> None:
    packed = config.part("quantization_config")
    if packed is None:
        return
    method = packed.value("quant_method", "unknown")
    if method in known:
        packed.skip("modules_to_not_convert")  # which tensors are packed is told by their names
        packed.refuse_unread()
    else:
        raise ModelError(
            f"quantization_config quant_method {shown(method)} is not supported; use an unquantised checkpoint"
        )
