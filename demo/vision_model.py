"""A small PyTorch vision model whose numerics and weight names are those of ``Idefics3ForConditionalGeneration``.

A SigLIP-like tower, pixel shuffle and a linear connector in front of the demo's Llama. Used by training and evaluation
of the demo vision model only; the server has its own engine. Every picture is one square without padding.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.model import DemoConfig, DemoLlama
from demo.pictures.prepare import GRID, PATCH, SIDE

SHUFFLE = 3
PER_PICTURE = (GRID // SHUFFLE) ** 2
IMAGE, AROUND, GLOBAL, UTTERANCE = "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"
NEW_TOKENS = (IMAGE, AROUND, GLOBAL, UTTERANCE)  # the processor wants the last one too
EXPANSION = AROUND + GLOBAL + IMAGE * PER_PICTURE + AROUND
OLD_VOCABULARY = 4096
IMAGE_ID = OLD_VOCABULARY
VOCABULARY = 4112  # a multiple of 16, for kernels


@dataclass(frozen=True)
class TowerConfig:
    """The tower's shape; the field names are those of ``vision_config``."""

    hidden_size: int = 160
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 5
    image_size: int = SIDE
    patch_size: int = PATCH
    num_channels: int = 3
    layer_norm_eps: float = 1e-6


def hf_config(tower: TowerConfig, text: DemoConfig) -> dict[str, Any]:
    """The contents of ``config.json``."""
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": IMAGE_ID,
        "scale_factor": SHUFFLE,
        "tie_word_embeddings": True,
        "use_cache": True,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
        "vision_config": {"model_type": "idefics3_vision", **asdict(tower), "hidden_act": "gelu_pytorch_tanh"},
        "text_config": text.to_hf(),
    }


class TowerAttention(nn.Module):
    """Attention of every patch to every patch."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.heads, size = config.num_attention_heads, config.hidden_size
        self.q_proj, self.k_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.v_proj, self.out_proj = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, size // self.heads).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        # Written out: the CPU's fused kernel takes several times as long backward.
        mass = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
        out = mass.to(v.dtype) @ v
        return self.out_proj(out.transpose(1, 2).reshape(batch, length, size))


class TowerMLP(nn.Module):
    """Feed-forward block."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class TowerLayer(nn.Module):
    """One encoder layer."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = TowerAttention(config), TowerMLP(config)
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class TowerEmbeddings(nn.Module):
    """Patches and their positions."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, config.hidden_size, config.patch_size, config.patch_size)
        self.position_embedding = nn.Embedding(GRID * GRID, config.hidden_size)

    def forward(self, pixels: Tensor, shifted: bool) -> Tensor:
        """``pixels [batch, SIDE, SIDE, 3]`` bytes; ``shifted``: number the rows and columns as transformers 4.57 does."""
        batch = pixels.shape[0]
        values = pixels.to(torch.float32) / 127.5 - 1.0
        patches = values.view(batch, GRID, PATCH, GRID, PATCH, 3).permute(0, 1, 3, 5, 2, 4)
        conv = self.patch_embedding
        x = F.linear(patches.reshape(batch, GRID * GRID, 3 * PATCH * PATCH), conv.weight.flatten(1), conv.bias)
        return x + self.position_embedding(position_ids(shifted))


def position_ids(shifted: bool) -> Tensor:
    """The position of every patch: rows and columns 0, 1, 2, ... or, ``shifted``, 0, 0, 1, 2, ...

    Transformers 4.57 rounds the second row and all after it down to the one before (in float32); 5.x and 4.46 do not.
    """
    steps = torch.arange(GRID)
    steps = (steps - 1).clamp(min=0) if shifted else steps
    return (steps[:, None] * GRID + steps[None, :]).flatten()


class Tower(nn.Module):
    """The vision transformer (the ``model.vision_model.`` part of the weight names)."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.embeddings = TowerEmbeddings(config)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(TowerLayer(config) for _ in range(config.num_hidden_layers))
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, pixels: Tensor, shifted: bool) -> Tensor:
        x = self.embeddings(pixels, shifted)
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


def shuffled(x: Tensor) -> Tensor:
    """Blocks of ``SHUFFLE`` x ``SHUFFLE`` patches side by side in one row each: ``[batch, PER_PICTURE, 4 * size]``."""
    batch, _, size = x.shape
    small = GRID // SHUFFLE
    blocks = x.view(batch, small, SHUFFLE, small, SHUFFLE, size).permute(0, 1, 3, 2, 4, 5)
    return blocks.reshape(batch, PER_PICTURE, SHUFFLE * SHUFFLE * size)


class DemoVision(nn.Module):
    """Tower, connector and text model."""

    def __init__(self, tower: TowerConfig, text: DemoConfig) -> None:
        super().__init__()
        self.tower = Tower(tower)
        self.projection = nn.Linear(SHUFFLE * SHUFFLE * tower.hidden_size, text.hidden_size, bias=False)
        self.text = DemoLlama(text)
        scale = (2 * tower.num_hidden_layers) ** -0.5
        for name, weight in self.tower.named_parameters():
            if weight.dim() >= 2:
                nn.init.normal_(weight, std=0.04 * (scale if name.endswith(("out_proj.weight", "fc2.weight")) else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
        nn.init.normal_(self.projection.weight, std=0.02)

    def embed(self, pixels: Tensor, shifted: bool) -> Tensor:
        """The pictures' embeddings, ``[pictures, PER_PICTURE, hidden]``."""
        return self.embeddings_of(self.tower(pixels, shifted))

    def embeddings_of(self, patches: Tensor) -> Tensor:
        """The embeddings of pictures that went through the tower."""
        return self.projection(shuffled(patches))

    def hidden(self, ids: Tensor, embeddings: Tensor | None) -> Tensor:
        """The normed last hidden states; placeholders are replaced by the pictures' embeddings in their order."""
        x = self.text.model.embed_tokens(ids)
        if embeddings is not None:
            x = x.masked_scatter((ids == IMAGE_ID)[..., None], embeddings.reshape(-1, x.shape[-1]).to(x.dtype))
        return self.text.hidden_of(x)


def hf_name(name: str) -> str:
    """A weight's name in the checkpoint that is shipped."""
    if name == "projection.weight":
        return "model.connector.modality_projection.proj.weight"
    for ours, theirs in (("tower.", "model.vision_model."), ("text.model.", "model.text_model.")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise KeyError(name)
