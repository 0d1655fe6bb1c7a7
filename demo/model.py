"""A small PyTorch Llama whose numerics and weight names are those of Hugging Face's ``LlamaForCausalLM``.

Used by training and evaluation of the demo model only; the server has its own engine. Has no attention
masks beyond the causal one: padding is always on the right.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class DemoConfig:
    """The model's shape; the field names are those of ``config.json``."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def to_hf(self) -> dict[str, Any]:
        """The contents of ``config.json``."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "pretraining_tp": 1,
            "rope_scaling": None,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
        }


def rope_tables(config: DemoConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions ``0..length-1``, each ``[length, head_dim]``."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), config.rope_theta**-exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in Llama's half-split layout."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention of all heads; short sequences are faster on the CPU written out."""
    length = q.shape[2]
    if not causal or length > 160 or q.shape[2] != k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    mask = torch.full((length, length), float("-inf")).triu(1)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return torch.softmax(scores + mask, dim=-1).to(v.dtype) @ v


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query causal attention; with ``past`` it extends a key/value cache."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: list[Tensor] | None) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        causal = True
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
                causal = False
            past[:] = [k, v]
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        out = attend(q, k, v, causal and length > 1)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, self.heads * self.dim))


class MLP(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: list[Tensor] | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and final norm (the ``model.`` part of the weight names)."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DemoLlama(nn.Module):
    """The whole model, with tied input and output embeddings."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        cos, sin = rope_tables(config, config.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        scale = (2 * config.num_hidden_layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(
                    weight, std=0.02 * (scale if name.endswith(("o_proj.weight", "down_proj.weight")) else 1)
                )

    def hidden(self, ids: Tensor, caches: list[list[Tensor]] | None = None, start: int = 0) -> Tensor:
        """The normed last hidden states of ``ids``, whose first position is ``start``."""
        return self.hidden_of(self.model.embed_tokens(ids), caches, start)

    def hidden_of(self, x: Tensor, caches: list[list[Tensor]] | None = None, start: int = 0) -> Tensor:
        """The normed last hidden states of the embeddings ``x``, whose first position is ``start``."""
        cos, sin = self.cos[start : start + x.shape[1]], self.sin[start : start + x.shape[1]]
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, caches[index] if caches is not None else None)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    @torch.no_grad()
    def generate(self, prompt: list[int], stop: set[int], max_new: int = 200) -> list[int]:
        """Greedy continuation of one prompt, the stop token included when it came."""
        caches: list[list[Tensor]] = [[] for _ in self.model.layers]
        out: list[int] = []
        ids, start = torch.tensor([prompt]), 0
        while len(out) < max_new:
            states = self.hidden(ids, caches, start)
            start += ids.shape[1]
            out.append(int(self.logits(states[:, -1]).argmax()))
            if out[-1] in stop:
                break
            ids = torch.tensor([[out[-1]]])
        return out
